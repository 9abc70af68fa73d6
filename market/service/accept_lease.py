"""A provider binds itself to a job that won its offer."""

from collections.abc import Mapping
from dataclasses import replace

from contracts.terms.errors import Conflict, Expired, NotFound
from contracts.terms.ids import Digest
from contracts.terms.messages import LeaseAccept
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import decode_signed, expect, verify_wallet
from market.service.leases import tell_of_lease
from market.service.ports import Chain, UnitOfWork
from market.service.rows import LeaseRow, OfferRow
from market.service.session import need_free_key


async def accept_lease(
    lease: Digest,
    encoded: bytes,
    now: UnixMillis,
    work: UnitOfWork,
    chain: Chain,
) -> LeaseRow:
    """Store a LeaseAccept. Safe to repeat.

    The stake is reserved on chain next (`reserve_stakes`); then the lease is active.

    Raises:
        NotFound: no such lease.
        BadSignature: not by the account.
        Conflict: terms that differ from the lease, another LeaseAccept is stored, or the session
            key is another account's.
        Expired: the time to accept is over.
    """
    signed = expect(decode_signed(encoded), LeaseAccept)
    accept = signed.message
    verify_wallet(signed, accept.account, chain.domain)
    async with work:
        row = await work[LeaseRow].lock(lease)
        if row is None:
            raise NotFound("no such lease", lease=lease.hex())
        if row.accept_digest == accept.digest():
            return row
        await _check_agreed(row, accept, work)
        if row.state != "reserved" or row.accept_ends <= now:
            raise Expired("the lease was not accepted in time", accept_ends=row.accept_ends)
        await need_free_key(accept.session_key, accept.account, work)
        row = replace(
            row,
            state="accepted",
            accept=encoded,
            accept_digest=accept.digest(),
            session_key=accept.session_key,
        )
        await work[LeaseRow].put(row)
        await work.emit("reserve", lease)
        tell_of_lease(row, now, work)
    return row


async def _check_agreed(row: LeaseRow, accept: LeaseAccept, work: UnitOfWork) -> None:
    if row.accept_digest is not None:
        raise Conflict("another LeaseAccept is stored for this lease")
    offer = await work[OfferRow].get(row.offer)
    wanted = {
        "job": row.job,
        "account": row.account,
        "offer": row.offer,
        "price": row.price,
        "stake": row.stake,
        "device_class": offer.device_class if offer else "",
    }
    check_terms(accept, wanted)


def check_terms(accept: LeaseAccept, wanted: Mapping[str, object]) -> None:
    """Check that a LeaseAccept says what was agreed.

    Raises:
        Conflict: it does not; data says what would fit.
    """
    for field, value in wanted.items():
        if getattr(accept, field) != value:
            shown = value.hex() if isinstance(value, bytes) else str(value)
            raise Conflict(f"{field} differs from what was agreed", field=field, would_fit=shown)
