"""The offers that stand, as matching sees them. The caller is inside a transaction."""

from collections import Counter

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, JobId
from contracts.terms.moments import UnixMillis
from market.domain.offers import Candidate
from market.service.leases import heard_of
from market.service.ports import UnitOfWork
from market.service.reputation import reputations_of
from market.service.rows import (
    AuditBondRow,
    FreeMoneyRow,
    LeaseRow,
    LimitRow,
    OfferRow,
)


async def candidates(now: UnixMillis, work: UnitOfWork) -> list[Candidate]:
    """Every offer that is not withdrawn and not over."""
    offers = await work[OfferRow].where(withdrawn=False)
    standing = [offer for offer in offers if offer.expires_at * 1000 > now]
    heard = await heard_of((offer.offer for offer in standing), work)
    accounts = tuple({offer.account for offer in standing})
    balances = await work[FreeMoneyRow].where(account=accounts)
    reputations = await reputations_of(accounts, work)
    promised = await _promised(work)
    free = {
        each.account: BaseUnits(max(0, each.amount - promised[each.account])) for each in balances
    }
    return [
        Candidate(
            offer=offer.offer,
            account=offer.account,
            price=offer.price,
            memory_bytes=offer.memory_bytes,
            flops_per_second=offer.flops_per_second,
            available_from=offer.available_from,
            expires_at=offer.expires_at,
            heard_at=heard.get(offer.offer),
            leased=offer.lease is not None or offer.blocked_until > now,
            free_stake=free.get(offer.account, BaseUnits(0)),
            device_class=offer.device_class,
            reputation=reputations[offer.account],
        )
        for offer in standing
    ]


async def _promised(work: UnitOfWork) -> Counter[Address]:
    """Base units that each account has to bond for what it was leased for, and has not yet.

    Leased twice for one balance, it could not bond in time and be said to have missed a lease.
    """
    wanted = dict[tuple[JobId, Address], int]()
    for lease in await work[LeaseRow].where(state=("reserved", "accepted")):
        place = (lease.job, lease.account)
        wanted[place] = max(wanted.get(place, 0), lease.stake)
    for bond in await work[AuditBondRow].where(state="accepted"):
        wanted[bond.job, bond.account] = bond.stake
    jobs = tuple({job for job, _ in wanted})
    limits = await work[LimitRow].where(job=jobs)
    bonded = {(each.job, each.account): each.stake for each in limits}
    found = Counter[Address]()
    for place, stake in wanted.items():
        found[place[1]] += max(0, stake - bonded.get(place, 0))
    return found
