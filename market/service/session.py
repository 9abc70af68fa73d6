"""Signatures by session keys over what is no message of a job (see `market.api.schemas`); whose."""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from contracts.terms.errors import BadSignature
from contracts.terms.ids import Address, Digest, SessionKey
from market.service.ports import UnitOfWork
from market.service.rows import AuditorRow, LeaseRow, ListedAuditorRow


def check_session(key: SessionKey, signed: Digest, signature: bytes) -> None:
    """Check that `key` signed the digest.

    Raises:
        BadSignature: it did not.
    """
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    except (InvalidSignature, ValueError) as error:
        raise BadSignature(f"not signed by session key {key.hex()}") from error


async def account_of_session(key: SessionKey, work: UnitOfWork) -> Address | None:
    """Who bound himself to this session key, as a lease's peer or as an outside auditor."""
    async with work:
        for lease in await work[LeaseRow].where(session_key=key):
            return lease.account
        for auditor in await work[AuditorRow].where(session_key=key):
            return auditor.account
        for listed in await work[ListedAuditorRow].where(session_key=key, limit=1):
            return listed.account  # by a key of before: its jobs go on under it
    return None
