"""A provider binds itself to a job that won its offer."""

from dataclasses import replace

from contracts.terms.amounts import format_tokens
from contracts.terms.errors import Conflict, Expired, NotFound
from contracts.terms.escrow_messages import Bond
from contracts.terms.ids import Digest
from contracts.terms.messages import LeaseAccept
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed, decode_signed, expect, verify_wallet
from contracts.terms.typed_data import Domain
from market.service.activate import activate, bond_of
from market.service.leases import tell_of_lease
from market.service.orders import store_order
from market.service.ports import Chain, UnitOfWork
from market.service.rows import AuditBondRow, JobRow, LeaseRow, OfferRow
from market.service.session import need_free_key


async def accept_lease(
    lease: Digest,
    encoded: bytes,
    bond: bytes | None,
    now: UnixMillis,
    work: UnitOfWork,
    chain: Chain,
) -> LeaseRow:
    """Store a LeaseAccept, and the Bond behind it. Safe to repeat.

    The bond is sent next (`orders`); once it is confirmed, the lease is active. One whose account
    has enough at stake in the job begins at once.

    Raises:
        NotFound: no such lease.
        BadSignature: not by the account.
        Conflict: terms that differ from the lease, a bond is missing or too low, another
            LeaseAccept is stored, or the session key is another account's.
        Expired: the time to accept is over, or that of the bond.
    """
    signed = expect(decode_signed(encoded), LeaseAccept)
    accept, times = signed.message, await chain.times()
    verify_wallet(signed, accept.account, chain.domain)
    async with work:
        seen = await work[LeaseRow].get(lease)
        job = None if seen is None else await work[JobRow].lock(seen.job)
        row = await work[LeaseRow].lock(lease)  # after its job, as all who hold both
        if row is None or job is None:
            raise NotFound("no such lease", lease=lease.hex())
        if row.accept_digest == accept.digest():
            return row
        await _check_agreed(row, accept, work)
        if row.state != "reserved" or row.accept_ends <= now:
            raise Expired("the lease was not accepted in time", accept_ends=row.accept_ends)
        await need_free_key(accept.session_key, accept.account, work)
        is_backed = row.stake <= await bond_of(row.job, row.account, work)
        if not is_backed:
            await store_order(check_bond(bond, row, chain.domain), times, now, work)
        row = replace(
            row,
            state="accepted",
            accept=encoded,
            accept_digest=accept.digest(),
            session_key=accept.session_key,
        )
        await work[LeaseRow].put(row)
        tell_of_lease(row, now, work)
        if is_backed:
            await activate(job, row.account, now, work)
        return await work[LeaseRow].get(lease) or row


def check_bond(
    encoded: bytes | None, asked: LeaseRow | AuditBondRow, domain: Domain
) -> Signed[Bond]:
    """The Bond behind a lease, or behind what an outside auditor says in a job.

    Raises:
        Conflict: there is none, it is of another job or account, or of too little.
        BadSignature: not by the account.
    """
    if encoded is None:
        stake = format_tokens(asked.stake)
        raise Conflict(f"a signed Bond of {stake} tokens is needed", would_fit=str(asked.stake))
    signed = expect(decode_signed(encoded), Bond)
    bond = signed.message
    verify_wallet(signed, asked.account, domain)
    if (bond.job, bond.account) != (asked.job, asked.account):
        raise Conflict("the bond is of another job or account", would_fit=asked.job.hex())
    if bond.stake < asked.stake:
        raise Conflict("the bond is too low", stake=str(bond.stake), would_fit=str(asked.stake))
    return signed


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
    for field, value in wanted.items():
        if getattr(accept, field) != value:
            shown = value.hex() if isinstance(value, bytes) else str(value)
            raise Conflict(f"{field} differs from what was agreed", field=field, would_fit=shown)
