"""A provider offers a machine, or takes the offer back.

An offer needs no stake: what a job asks for, its account bonds when the job takes the offer.
"""

from dataclasses import replace

from contracts.terms.ids import Digest
from contracts.terms.messages import Offer
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import decode_signed, expect, verify_wallet
from market.bodies.events import OfferEvent
from market.bodies.signing import withdrawal_digest
from market.domain.offers import check_offer
from market.service.feeds import event_of, tell_market
from market.service.find_job import need
from market.service.ports import Chain, UnitOfWork
from market.service.rows import OfferRow
from market.service.session import check_session


async def post_offer(encoded: bytes, now: UnixMillis, work: UnitOfWork, chain: Chain) -> OfferRow:
    """Store a signed offer. Safe to repeat: an offer that is known is returned as it is.

    Raises:
        BadSignature: not signed by the account that it names.
        Expired: its window is over.
    """
    signed = expect(decode_signed(encoded), Offer)
    offer = signed.message
    verify_wallet(signed, offer.account, chain.domain)
    async with work:
        if known := await work[OfferRow].get(offer.digest()):
            return known
        check_offer(offer, now=now)
        row = _row(offer, encoded, now)
        await work[OfferRow].add(row)
        tell_market(event_of(OfferEvent, row, at=now), work)
    return row


def _row(offer: Offer, encoded: bytes, now: UnixMillis) -> OfferRow:
    return OfferRow(
        offer=offer.digest(),
        signed=encoded,
        account=offer.account,
        session_key=offer.session_key,
        price=offer.price,
        device_class=offer.device_class,
        memory_bytes=offer.memory_bytes,
        flops_per_second=offer.flops_per_second,
        available_from=offer.available_from,
        expires_at=offer.expires_at,
        posted_at=now,
    )


async def withdraw_offer(
    offer: Digest, signature: bytes, now: UnixMillis, work: UnitOfWork
) -> None:
    """Take an offer back; a lease that it has goes on. Safe to repeat.

    Raises:
        NotFound: no such offer.
        BadSignature: not by the agent's session key.
    """
    async with work:
        row = need(await work[OfferRow].lock(offer), "offer", offer=offer)
        check_session(row.session_key, withdrawal_digest(offer), signature)
        if not row.withdrawn:
            row = replace(row, withdrawn=True)
            await work[OfferRow].put(row)
            tell_market(event_of(OfferEvent, row, at=now), work)
