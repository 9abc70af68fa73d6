"""A provider offers a machine, or takes the offer back.

Stakes are rows that follow the chain (`sync_chain`); the chain itself is asked only where the row
is missing or says too little, as its account may have staked a moment ago.
"""

from dataclasses import replace

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import NotFound
from contracts.terms.ids import Address, Digest
from contracts.terms.messages import Offer
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import decode_signed, expect, verify_wallet
from market.bodies.events import OfferEvent
from market.bodies.signing import withdrawal_digest
from market.domain.offers import check_offer
from market.service.feeds import tell_market
from market.service.ports import Chain, StakeNow, UnitOfWork
from market.service.rows import OfferRow, StakeRow
from market.service.session import check_session

LEAST_STAKE = BaseUnits(1)  # that an offer needs; a job may want more


async def post_offer(encoded: bytes, now: UnixMillis, work: UnitOfWork, chain: Chain) -> OfferRow:
    """Store a signed offer. Safe to repeat: an offer that is known is returned as it is.

    Raises:
        BadSignature: not signed by the account that it names.
        Expired: its window is over.
        InsufficientStake: the account has no free stake on chain.
    """
    signed = expect(decode_signed(encoded), Offer)
    offer = signed.message
    verify_wallet(signed, offer.account, chain.domain)
    async with work:
        row = await work[StakeRow].get(offer.account)
        if row is not None and row.active - row.reserved >= LEAST_STAKE:
            return await _store(offer, encoded, row, now, work)
    at, stake = await chain.stake_of(offer.account)  # it may have staked a moment ago
    async with work:
        row = stake_row(offer.account, at, stake)
        stored = await _store(offer, encoded, row, now, work)
        await work[StakeRow].put(row)
    return stored


async def _store(
    offer: Offer, encoded: bytes, stake: StakeRow, now: UnixMillis, work: UnitOfWork
) -> OfferRow:
    if known := await work[OfferRow].get(offer.digest()):
        return known
    free = BaseUnits(stake.active - stake.reserved)
    check_offer(offer, now=now, free_stake=free, wanted=LEAST_STAKE)
    row = OfferRow(
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
    await work[OfferRow].add(row)
    await work.emit("clear", row.offer)
    _tell_of_offer(row, now, work)
    return row


def _tell_of_offer(row: OfferRow, now: UnixMillis, work: UnitOfWork) -> None:
    event = OfferEvent(
        at=now,
        offer=row.offer,
        account=row.account,
        device_class=row.device_class,
        price=row.price,
        withdrawn=row.withdrawn,
    )
    tell_market(event, work)


def stake_row(account: Address, block: int, stake: StakeNow) -> StakeRow:
    """What the chain says of an account's stake at a block, as a row."""
    return StakeRow(
        account=account,
        active=stake.active,
        reserved=stake.reserved,
        unbonding=stake.unbonding,
        block=block,
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
        row = await work[OfferRow].lock(offer)
        if row is None:
            raise NotFound("no such offer", offer=offer.hex())
        check_session(row.session_key, withdrawal_digest(offer), signature)
        if not row.withdrawn:
            row = replace(row, withdrawn=True)
            await work[OfferRow].put(row)
            _tell_of_offer(row, now, work)
