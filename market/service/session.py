"""Signatures by session keys over what is no message of a job (see `market.bodies`); whose."""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from contracts.terms.errors import BadSignature, Conflict
from contracts.terms.ids import Address, Digest, SessionKey
from market.service.ports import UnitOfWork
from market.service.rows import AuditBondRow, AuditorRow, LeaseRow


def check_session(key: SessionKey, signed: Digest, signature: bytes) -> None:
    """Check that `key` signed the digest.

    Raises:
        BadSignature: it did not.
    """
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    except (InvalidSignature, ValueError) as error:
        raise BadSignature(f"not signed by session key {key.hex()}") from error


async def need_free_key(key: SessionKey, account: Address, work: UnitOfWork) -> None:
    """Refuse a session key that another account has bound itself to, who is paid by it.

    Nobody proves here that he holds the key's secret half, and keys are public once they are bound:
    whoever binds one first has it. The caller is in a transaction.

    Raises:
        Conflict: it is another account's.
    """
    bound: list[LeaseRow | AuditorRow | AuditBondRow] = [
        *await work[LeaseRow].where(session_key=key),
        *await work[AuditorRow].where(session_key=key),
        *await work[AuditBondRow].where(session_key=key),
    ]
    if any(each.account != account for each in bound):
        raise Conflict("this session key is another account's: make a new one")


async def account_of_session(key: SessionKey, work: UnitOfWork) -> Address | None:
    """Who bound himself to this session key, as a lease's peer or as an outside auditor."""
    async with work:
        for lease in await work[LeaseRow].where(session_key=key):
            return lease.account
        for auditor in await work[AuditorRow].where(session_key=key):
            return auditor.account
        for bond in await work[AuditBondRow].where(session_key=key):
            if bond.listed is not None:
                return bond.account  # by a key of before: its jobs go on under it
    return None
