"""The two keys of a party: a wallet that a contract knows, a session key that its peers know.

The wallet (secp256k1) signs what a contract may have to check; the session key (Ed25519) signs the
rest and is the root of its peer's TLS leaf (docs/protocol.md 1).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import coincurve
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from contracts.terms.digest import peer_id
from contracts.terms.ids import Address, Digest, PeerId, SessionKey
from contracts.terms.messages import Message, WalletMessage
from contracts.terms.signatures import Signed, account_of
from contracts.terms.typed_data import TypedStruct, WalletDomain, signing_digest

M = TypeVar("M", bound=Message)
W = TypeVar("W", bound=WalletMessage)


@dataclass(frozen=True, repr=False)
class Wallet:
    """A secp256k1 key. Its text form never shows the secret."""

    secret: bytes

    def __repr__(self) -> str:
        return f"Wallet(0x{self.account.hex()})"

    @property
    def account(self) -> Address:
        """The account that contracts know."""
        return account_of(self._key().public_key.format(compressed=False))

    def sign(self, message: W, domain: WalletDomain) -> Signed[W]:
        """`message` with its EIP-712 signature under `domain`."""
        return Signed(message, self.sign_digest(domain.signing_digest(message.digest())))

    def sign_permit(
        self,
        typed: TypedStruct,
        values: tuple[object, ...],
        domain_separator: Digest,
    ) -> bytes:
        """Signature of a foreign struct (EIP-2612) under a foreign domain separator."""
        return self.sign_digest(signing_digest(domain_separator, typed.hash(values)))

    def sign_digest(self, signing_digest: Digest) -> bytes:
        """65 bytes r, s, v (v 27 or 28) over 32 bytes that are already hashed."""
        signature = self._key().sign_recoverable(signing_digest, hasher=None)
        return signature[:64] + bytes([signature[64] + 27])

    def _key(self) -> coincurve.PrivateKey:
        return coincurve.PrivateKey(self.secret)


@dataclass(frozen=True, repr=False)
class Session:
    """An Ed25519 key of one process in one job. Its text form never shows the secret."""

    secret: bytes

    def __repr__(self) -> str:
        return f"Session({self.key.hex()})"

    @cached_property
    def private_key(self) -> Ed25519PrivateKey:
        """For TLS."""
        return Ed25519PrivateKey.from_private_bytes(self.secret)

    @cached_property
    def key(self) -> SessionKey:
        """Public key, 32 bytes."""
        public = self.private_key.public_key()
        return SessionKey(public.public_bytes(Encoding.Raw, PublicFormat.Raw))

    @cached_property
    def peer(self) -> PeerId:
        """Id of the peer that holds this key."""
        return peer_id(self.key)

    def sign(self, message: M) -> Signed[M]:
        """`message` with its signature."""
        return Signed(message, self.private_key.sign(message.digest()))
