"""A request that its caller signs: `Authorization: Tallystick NAME AT BODY SIGNATURE`.

NAME is an account (20 bytes) or a session key (32), AT the caller's moment in ms since the Unix
epoch, BODY the BLAKE3 digest of the body, SIGNATURE by that wallet (`Wallet.sign_digest`) or
session key over `request_digest`; bytes are hex. It holds for this method, path, query,
Idempotency-Key and body, on this chain and Settlement contract, for `CLOCK_SKEW_MILLIS`.
Nothing is stored for it, so it outlives restarts of both sides. Within its time it may be repeated
by who overhears it: routes that take it do the same request once.
"""

from dataclasses import dataclass

from contracts.terms.digest import digest
from contracts.terms.encoding import Value, encode
from contracts.terms.errors import BadSignature
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from contracts.terms.typed_data import Domain

REQUEST_SCHEME = "Tallystick"
_SIGNATURE_BYTES = {20: 65, 32: 64}  # by the length of the name


@dataclass(frozen=True)
class SignedCall:
    """What a signed request says of itself; `name` is an account or a session key."""

    name: bytes
    at: UnixMillis
    body: Digest
    signature: bytes

    def header(self) -> str:
        """The value of `Authorization`."""
        name, body, signature = self.name.hex(), self.body.hex(), self.signature.hex()
        return f"{REQUEST_SCHEME} {name} {self.at} {body} {signature}"


def request_digest(
    domain: Domain, method: str, target: str, key: str, body: Digest, at: UnixMillis
) -> Digest:
    """What is signed.

    Args:
        domain: Of the market's chain.
        method: In capitals.
        target: Path with its query, from `/v1` on.
        key: Idempotency-Key; empty without one.
        body: BLAKE3 of the body, also of an empty one.
        at: The caller's moment.
    """
    said: list[Value] = [domain.chain_id, domain.settlement, method, target, key, body, at]
    return digest("request", encode(said))


def signed_call(authorization: str) -> SignedCall | None:
    """What a header says; None if it is of another scheme.

    Raises:
        BadSignature: of this scheme, and not in its form.
    """
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() != REQUEST_SCHEME.lower():
        return None
    words = rest.split()
    if len(words) == 4 and words[1].isascii() and words[1].isdecimal() and len(words[1]) < 16:
        try:
            name, body, signature = (bytes.fromhex(words[i]) for i in (0, 2, 3))
        except ValueError:
            name = body = signature = b""
        if len(body) == 32 and _SIGNATURE_BYTES.get(len(name)) == len(signature):
            return SignedCall(name, UnixMillis(int(words[1])), Digest(body), signature)
    raise BadSignature(f"Authorization: {REQUEST_SCHEME} NAME AT BODY SIGNATURE, bytes in hex")
