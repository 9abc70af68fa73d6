"""Heartbeats of offers and leases: rows, so that a restart of anything forgets nobody."""

from contracts.terms.errors import Conflict
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from market.bodies.offers import LeasesView
from market.bodies.signing import heartbeat_digest
from market.domain.offers import check_moment
from market.service.find_job import need
from market.service.ports import UnitOfWork
from market.service.rows import HeartbeatRow, LeaseRow, OfferRow
from market.service.session import check_session
from market.service.show_offers import show_live_leases


async def hear_offer(
    offer: Digest, at: UnixMillis, signature: bytes, now: UnixMillis, work: UnitOfWork
) -> LeasesView:
    """Note that an agent is alive; returns the live leases of its offer.

    Raises:
        NotFound: no such offer.
        BadSignature: not by the agent's session key.
        Expired: replayed, or a clock that is off.
    """
    async with work:
        row = need(await work[OfferRow].get(offer), "offer", offer=offer)
        check_session(row.session_key, heartbeat_digest(offer, at), signature)
        await _note(offer, at, now, work)
        return await show_live_leases(offer, work)


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
        row = need(await work[LeaseRow].get(lease), "lease", lease=lease)
        if row.session_key is None:
            raise Conflict("the lease is not accepted yet", lease=lease.hex())
        check_session(row.session_key, heartbeat_digest(lease, at), signature)
        await _note(lease, at, now, work)
        return row


async def _note(subject: Digest, at: UnixMillis, now: UnixMillis, work: UnitOfWork) -> None:
    check_moment(at, now=now, previous=None)
    if not await work[HeartbeatRow].put_later(HeartbeatRow(subject, at, now), "at"):
        known = await work[HeartbeatRow].get(subject)
        check_moment(at, now=now, previous=known.at if known else at)
