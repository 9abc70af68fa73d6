"""Signatures by session keys over what is no message of a job (see `market.api.schemas`)."""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from contracts.terms.errors import BadSignature
from contracts.terms.ids import Digest, SessionKey


def check_session(key: SessionKey, signed: Digest, signature: bytes) -> None:
    """Check that `key` signed the digest.

    Raises:
        BadSignature: it did not.
    """
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    except (InvalidSignature, ValueError) as error:
        raise BadSignature(f"not signed by session key {key.hex()}") from error
