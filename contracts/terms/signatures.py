"""Who signed what: verification of session (Ed25519) and wallet (secp256k1, EIP-712) signatures.

`Signed` is a message with its signature, as it is stored and sent. Making signatures needs keys and
lives in `contracts.keys`.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

import coincurve
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from contracts.terms.digest import keccak
from contracts.terms.encoding import Value, decode, encode
from contracts.terms.errors import BadSignature, Malformed, UnknownVersion
from contracts.terms.ids import Address, Digest, SessionKey
from contracts.terms.kinds import message_from_value
from contracts.terms.messages import Message, WalletMessage
from contracts.terms.typed_data import Domain

M = TypeVar("M", bound=Message)
M_co = TypeVar("M_co", bound=Message, covariant=True)  # a Signed[Seal] is one
T = TypeVar("T", bound=Message)

_HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0


@dataclass(frozen=True)
class Signed(Generic[M_co]):
    """A message and its signature: 64 bytes Ed25519, or 65 bytes r, s, v by a wallet."""

    message: M_co
    signature: bytes

    def encoded(self) -> bytes:
        """Canonical bytes: what is stored, sent and kept in the audit file."""
        return encode(self.value())

    def value(self) -> dict[str, Value]:
        """The same as a part of what is encoded."""
        return {"message": self.message.value(), "signature": self.signature}


def decode_signed(data: bytes) -> Signed[Message]:
    """The signed message that `data` spells; the signature is not checked here.

    Raises:
        TooLarge, Malformed, UnknownVersion: see `kinds.decode_message`.
    """
    return signed_from_value(decode(data))


def signed_from_value(value: object) -> Signed[Message]:
    """The signed message that a decoded `value` spells; the signature is not checked here.

    Raises:
        Malformed, UnknownVersion: see `kinds.message_from_value`.
    """
    if not isinstance(value, dict) or set(value) != {"message", "signature"}:
        raise Malformed("a signed message has exactly the fields message and signature")
    signature = value["signature"]
    if not isinstance(signature, bytes) or len(signature) not in (64, 65):
        raise Malformed("a signature has 64 or 65 bytes")
    return Signed(message_from_value(value["message"]), signature)


def expect(signed: Signed[Message], cls: type[T]) -> Signed[T]:
    """`signed` as a `Signed[cls]`.

    Raises:
        UnknownVersion: it is another message.
    """
    if not isinstance(signed.message, cls):
        raise UnknownVersion(f"expected {cls.__name__}, got {signed.message.kind}")
    return Signed(signed.message, signed.signature)


def verify_session(signed: Signed[M], key: SessionKey) -> None:
    """Check that `key` signed the message.

    Raises:
        BadSignature: it did not.
    """
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signed.signature, signed.message.digest())
    except (InvalidSignature, ValueError) as error:
        raise BadSignature(f"{signed.message.kind}: not signed by {key.hex()}") from error


def verify_wallet(signed: Signed[M], account: Address, domain: Domain) -> None:
    """Check that the wallet `account` signed the message under `domain`.

    Raises:
        BadSignature: it did not, or the message is not one that wallets sign.
    """
    message = signed.message
    if not isinstance(message, WalletMessage):
        raise BadSignature(f"{message.kind} is not signed by wallets")
    if recover(domain.signing_digest(message.digest()), signed.signature) != account:
        raise BadSignature(f"{message.kind}: not signed by 0x{account.hex()} on this chain")


def recover(signing_digest: Digest, signature: bytes) -> Address:
    """The account whose wallet made `signature` (r, s, v with v 27 or 28).

    Raises:
        BadSignature: no valid signature, or a high s (OpenZeppelin's ECDSA refuses it too).
    """
    if len(signature) != 65 or signature[64] not in (27, 28):
        raise BadSignature("a wallet signature has 65 bytes and ends with 27 or 28")
    if int.from_bytes(signature[32:64], "big") > _HALF_ORDER:
        raise BadSignature("malleable signature: s is in the upper half")
    recoverable = signature[:64] + bytes([signature[64] - 27])
    try:
        key = coincurve.PublicKey.from_signature_and_message(recoverable, signing_digest, None)
    except Exception as error:  # coincurve raises bare Exception when no key fits
        raise BadSignature("no key fits this signature") from error
    return account_of(key.format(compressed=False))


def account_of(public_key: bytes) -> Address:
    """Account of an uncompressed public key (65 bytes, first byte 4)."""
    return Address(keccak(public_key[1:])[12:])
