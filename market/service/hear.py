"""Heartbeats of offers and leases: rows, so that a restart of anything forgets nobody."""

from contracts.terms.errors import Conflict
from contracts.terms.ids import Digest, SessionKey
from contracts.terms.moments import UnixMillis
from market.bodies.offers import LeasesView
from market.bodies.signing import heartbeat_digest
from market.domain.offers import check_moment
from market.service.find_job import need
from market.service.ports import UnitOfWork
from market.service.rows import HeartbeatRow, LeaseRow, OfferRow
from market.service.session import check_session
from market.service.show_offers import show_live_leases

MAX_KEYS = 100_000


class SessionKeys:
    """Keys of offers, which are part of what an offer's name is the digest of."""

    def __init__(self) -> None:
        self._keys: dict[Digest, SessionKey] = {}

    async def of_offer(self, offer: Digest, work: UnitOfWork) -> SessionKey:
        """Who speaks for an offer.

        Raises:
            NotFound: no such offer.
        """
        if offer not in self._keys:
            row = need(await work[OfferRow].get(offer), "offer", offer=offer)
            if len(self._keys) >= MAX_KEYS:
                self._keys.clear()
            self._keys[offer] = row.session_key
        return self._keys[offer]


async def hear_offer(
    offer: Digest,
    at: UnixMillis,
    signature: bytes,
    now: UnixMillis,
    work: UnitOfWork,
    keys: SessionKeys | None = None,
) -> LeasesView:
    """Note that an agent is alive; returns the live leases of its offer.

    Raises:
        NotFound: no such offer.
        BadSignature: not by the agent's session key.
        Expired: replayed, or a clock that is off.
    """
    async with work:
        key = await (keys or SessionKeys()).of_offer(offer, work)
        check_session(key, heartbeat_digest(offer, at), signature)
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
