"""Heartbeats of offers and leases: rows, so that a restart of anything forgets nobody."""

from contracts.terms.errors import Conflict, NotFound
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from market.api.schemas import heartbeat_digest
from market.domain.offers import check_moment
from market.service.leases import LIVE
from market.service.ports import UnitOfWork
from market.service.rows import HeartbeatRow, LeaseRow, OfferRow
from market.service.session import check_session


async def hear_offer(
    offer: Digest, at: UnixMillis, signature: bytes, now: UnixMillis, work: UnitOfWork
) -> list[LeaseRow]:
    """Note that an agent is alive; returns the live leases of its offer.

    Raises:
        NotFound: no such offer.
        BadSignature: not by the agent's session key.
        Expired: replayed, or a clock that is off.
    """
    async with work:
        row = await work[OfferRow].get(offer)
        if row is None:
            raise NotFound("no such offer", offer=offer.hex())
        check_session(row.session_key, heartbeat_digest(offer, at), signature)
        await _note(offer, at, now, work)
        return await work[LeaseRow].where(offer=offer, state=LIVE)


async def hear_lease(
    lease: Digest, at: UnixMillis, signature: bytes, now: UnixMillis, work: UnitOfWork
) -> LeaseRow:
    """Note that a peer is alive; returns its lease as it is.

    Raises:
        NotFound: no such lease.
        Conflict: nobody accepted it yet, so no key is known.
        BadSignature, Expired: see `hear_offer`.
    """
    async with work:
        row = await work[LeaseRow].get(lease)
        if row is None:
            raise NotFound("no such lease", lease=lease.hex())
        if row.session_key is None:
            raise Conflict("the lease is not accepted yet", lease=lease.hex())
        check_session(row.session_key, heartbeat_digest(lease, at), signature)
        await _note(lease, at, now, work)
        return row


async def _note(subject: Digest, at: UnixMillis, now: UnixMillis, work: UnitOfWork) -> None:
    known = await work[HeartbeatRow].lock(subject)
    check_moment(at, now=now, previous=known.at if known else None)
    await work[HeartbeatRow].put(HeartbeatRow(subject, at, now))
