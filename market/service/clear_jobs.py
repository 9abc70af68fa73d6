"""A clearing round: jobs buy the leases they lack, those that cannot run yet before the others.

A job that is funded buys its bundle, all or nothing. One that is matched or runs takes back who was
silent, then replaces who is gone, then adds spares. Funded jobs are read a page a round, so that
those that never match keep no newer one from its turn. Offers are read once a round, into a book,
and every job is tried against the book first: only one that would buy, or has to be told why it
cannot, costs a transaction. Safe to run twice at once: a job's row and the winning offers' rows are
held while they change, and what a job lacks is read again under its lock. The job's row is waited
for, as the messages of a busy job hold it most of the time; offers that another round holds are
left to it. A job that its poster paused buys nothing, but who was silent in it may come back.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from contracts.terms.amounts import NOTHING
from contracts.terms.errors import NoMatch, Unavailable
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis
from market.bodies.events import RoundEvent, UnmatchedEvent
from market.bodies.market import WinnerView
from market.domain.jobs import JobState, Wanted
from market.domain.matching import (
    Book,
    Bundle,
    Clearing,
    Seat,
    bundle_of,
    buy,
    deal,
    judge,
)
from market.domain.quote import WhyNot, need_of, why_no_bundle
from market.service.candidates import candidates
from market.service.coding import WHY_NOT, WINNERS, spec_of
from market.service.feeds import tell_job, tell_market
from market.service.leases import LIVE, SILENT, come_back, reserve
from market.service.pace import Pace
from market.service.ports import Place, UnitOfWork
from market.service.rows import AuditBondRow, JobRow, LeaseRow, LimitRow, OfferRow, RoundRow
from verification.distances.thresholds import shipped_calibration

MAX_JOBS_A_ROUND = 1000
_UNDER_WAY = (JobState.MATCHED.value, JobState.RUNNING.value)
_AUDITS = ("accepted", "bonded")


@dataclass(frozen=True)
class _Buyer:
    """A job, its leases, and the accounts that may sell it nothing."""

    row: JobRow
    spec: JobSpec
    leases: tuple[LeaseRow, ...]
    limits: tuple[LimitRow, ...]
    auditors: frozenset[Address]  # have signed to audit it

    @property
    def live(self) -> list[LeaseRow]:
        return [lease for lease in self.leases if lease.state in LIVE]

    @property
    def missing(self) -> Bundle:
        return bundle_of(self.spec).without(len(self.live))

    @property
    def is_funded(self) -> bool:
        return self.row.state == JobState.FUNDED.value

    @property
    def taken(self) -> frozenset[Address]:
        """Accounts with a live lease, or whose work in this job has ended until a release."""
        ended = (each.account for each in self.limits if each.end)
        return self.auditors.union(ended, (lease.account for lease in self.live))

    @property
    def bonded(self) -> frozenset[Address]:
        """Accounts that have at stake in it what it asks for."""
        least = self.spec.min_stake
        return frozenset(each.account for each in self.limits if each.stake >= least)

    def wants(self) -> bool:
        """Whether it lacks anything."""
        missing = self.missing
        return self.row.wanted != Wanted.CANCELLED and missing.slots + missing.spares > 0


async def clear_jobs(now: UnixMillis, work: UnitOfWork, pace: Pace | None = None) -> list[LeaseRow]:
    """Run one round; returns the leases that it reserved or brought back.

    Args:
        now: This moment.
        work: Unit of work.
        pace: How long it may take, and where the round before stopped; None: the oldest funded
            jobs, to their end.

    Raises:
        ExceptionGroup: what broke at single jobs, which held up no other.
        Unavailable: storage does not answer.
    """
    pace = pace or Pace()
    async with work:
        funded = await _funded(pace, work)
        waiting = funded + await work[JobRow].where(state=_UNDER_WAY, order="posted_at")
        buyers = [each for each in await _buyers(waiting, work) if each.wants()]
        last = next((each for each in reversed(buyers) if each.is_funded), None)
        if last is None:
            pace.behind = _end_of(funded)
        if not buyers:
            return []
        book = Book(await candidates(now, work), now)
    found, broken = list[LeaseRow](), list[Exception]()
    with pace.round():
        for buyer in pace.turns(buyers, key=lambda each: each.row.job):
            try:
                if _has_business(buyer, book, pace):
                    async with work:  # one job a transaction: a round that stops keeps what it did
                        found += await _clear_one(buyer.row, book, pace, work)
            except Unavailable:
                raise
            except Exception as error:  # whatever it is, it is of this job: others have their turn
                error.add_note(f"at job {buyer.row.job.hex()}")
                broken.append(error)
            if buyer is last:
                pace.behind = _end_of(funded)
    if broken:
        raise ExceptionGroup("jobs that broke", broken)
    return found


async def _funded(pace: Pace, work: UnitOfWork) -> list[JobRow]:
    """The page of funded jobs that is this round's: the oldest, when there are no more."""
    rows = await work[JobRow].where(
        state=JobState.FUNDED.value,
        is_compared=True,
        order="posted_at",
        after=pace.behind,
        limit=MAX_JOBS_A_ROUND,
    )
    if rows or pace.behind is None:
        return rows
    pace.behind = None
    return await _funded(pace, work)


def _end_of(page: Sequence[JobRow]) -> Place | None:
    """Where the next page begins; None: at the oldest job."""
    if len(page) < MAX_JOBS_A_ROUND:
        return None
    return Place(page[-1].posted_at, (page[-1].job,))


async def _buyers(rows: Sequence[JobRow], work: UnitOfWork) -> list[_Buyer]:
    jobs = tuple(row.job for row in rows)
    if not jobs:
        return []
    leases, limits = (
        defaultdict[JobId, list[LeaseRow]](list),
        defaultdict[JobId, list[LimitRow]](list),
    )
    auditors = defaultdict[JobId, set[Address]](set)
    for lease in await work[LeaseRow].where(job=jobs):
        leases[lease.job].append(lease)
    for limit in await work[LimitRow].where(job=jobs):
        limits[limit.job].append(limit)
    for bond in await work[AuditBondRow].where(job=jobs, state=_AUDITS):
        auditors[bond.job].add(bond.account)
    return [
        _Buyer(
            row,
            spec_of(row).message,
            tuple(leases[row.job]),
            tuple(limits[row.job]),
            frozenset(auditors[row.job]),
        )
        for row in rows
    ]


def _has_business(buyer: _Buyer, book: Book, pace: Pace) -> bool:
    """Whether the round changes anything for a job, as far as the book and its rows tell."""
    if _returning(buyer, book):
        return True
    if buyer.row.wanted != Wanted.RUNNING:
        return False
    _, cleared = _try(buyer, book)
    if cleared is None:
        return buyer.is_funded and pace.may_explain(buyer.row.job)
    return bool(cleared.winners)


def _try(buyer: _Buyer, book: Book) -> tuple[int, Clearing | None]:
    """How many offers fit a job, and what it would buy; nothing if there are too few sellers."""
    missing = buyer.missing
    need = need_of(buyer.spec, book.now, shipped_calibration())
    fitting = book.fitting(need, buyer.taken, buyer.bonded)
    # One more than can be bought: the lowest losing ask is the price.
    asks = book.cheapest(fitting, missing.slots + missing.spares + 1)
    try:
        cleared = buy(
            asks,
            bundle_of(buyer.spec),
            [Seat(lease.stage, 0, lease.price) for lease in buyer.live],
            reserve=buyer.spec.price_ceiling,
            all_or_nothing=buyer.is_funded,
        )
    except NoMatch:
        return fitting.bit_count(), None
    return fitting.bit_count(), cleared


async def _clear_one(seen: JobRow, book: Book, pace: Pace, work: UnitOfWork) -> list[LeaseRow]:
    held = await work[JobRow].lock(seen.job)
    if held is None or held.state != seen.state:
        return []
    (buyer,) = await _buyers([held], work)
    if not buyer.wants():
        return []
    back = await _bring_back(buyer, book, work)
    names = {lease.lease for lease in back}
    others = (lease for lease in buyer.leases if lease.lease not in names)
    buyer = replace(buyer, leases=(*others, *back))
    if not buyer.wants() or held.wanted != Wanted.RUNNING:
        return back
    return back + await _buy(buyer, book, pace, work)


def _returning(buyer: _Buyer, book: Book) -> list[LeaseRow]:
    """Silent leases whose offers are heard again, and are free, as many as are missing."""
    silent = [each for each in buyer.leases if each.state == SILENT and book.is_free(each.offer)]
    missing = buyer.missing
    return sorted(silent, key=lambda lease: lease.lease)[: missing.slots + missing.spares]


async def _bring_back(buyer: _Buyer, book: Book, work: UnitOfWork) -> list[LeaseRow]:
    back = []
    for lease in _returning(buyer, book):
        for offer in await _lock_free([lease.offer], book, work):
            book.take(offer.offer)
            back.append(await come_back(lease, offer, book.now, work))
    return back


async def _buy(buyer: _Buyer, book: Book, pace: Pace, work: UnitOfWork) -> list[LeaseRow]:
    row, spec, now, missing = buyer.row, buyer.spec, book.now, buyer.missing
    asks, cleared = _try(buyer, book)
    told = RoundRow(
        number=0,
        job=row.job,
        at=now,
        slots=missing.slots,
        spares=missing.spares,
        reserve=spec.price_ceiling,
        asks=asks,
        is_bought=False,
        price=None,
        winners=WINNERS.dump_json(()),
        excluded=WHY_NOT.dump_json(WhyNot()),
    )
    if cleared is None:
        if buyer.is_funded:
            with pace.explaining(row.job):
                await _note_why(buyer, book, told, work)
        return []
    held = {
        offer.offer: offer
        for offer in await _lock_free([w.offer for w in cleared.winners], book, work)
    }
    winners = [held[ask.offer] for ask in cleared.winners if ask.offer in held]
    if buyer.is_funded and len(winners) < missing.slots:
        return []  # another round took one: all or nothing, the next round tries
    seats = await _seats(buyer.live, work)
    speeds = [offer.flops_per_second for offer in winners]
    stages = deal(speeds, seats, num_stages=spec.batch.stages)
    if winners:
        event = RoundEvent(
            at=now,
            job=row.job,
            bought=len(winners),
            price=cleared.price,
            offers=book.num_offers(buyer.taken),
        )
        tell_market(event, work)
        bought = tuple(
            WinnerView.of(offer, ask=offer.price, stage=stage)
            for offer, stage in zip(winners, stages, strict=True)
        )
        told = replace(told, is_bought=True, price=cleared.price, winners=WINNERS.dump_json(bought))
        await work[RoundRow].add(told)
    leases = []
    for offer, stage in zip(winners, stages, strict=True):
        promised = NOTHING if offer.account in buyer.bonded else spec.min_stake
        book.take(offer.offer, stake=promised)
        leases.append(
            await reserve(
                offer, row.job, spec, stage=stage, price=cleared.price, now=now, work=work
            )
        )
    return leases


async def _seats(live: Sequence[LeaseRow], work: UnitOfWork) -> list[Seat]:
    names = tuple(lease.offer for lease in live)
    offers = await work[OfferRow].where(offer=names)
    speeds = {offer.offer: offer.flops_per_second for offer in offers}
    return [Seat(lease.stage, speeds[lease.offer], lease.price) for lease in live]


async def _lock_free(offers: list[Digest], book: Book, work: UnitOfWork) -> list[OfferRow]:
    """Rows of offers that are free still; the others are taken for the rest of the round."""
    if not offers:
        return []
    held = await work[OfferRow].where(
        offer=tuple(offers), lease=None, withdrawn=False, order="price", lock=True
    )
    for gone in set(offers).difference(row.offer for row in held):
        book.take(gone)
    return held


async def _note_why(buyer: _Buyer, book: Book, told: RoundRow, work: UnitOfWork) -> None:
    """Said anew only when it is something else: the rounds of a job that waits are alike."""
    row, spec = buyer.row, buyer.spec
    need = need_of(spec, told.at, shipped_calibration())
    offers = book.offers(buyer.taken)
    why = why_no_bundle(spec, need, judge(need, offers), buyer.missing)
    found = WHY_NOT.dump_json(why)
    if found == row.not_matched:
        return
    await work[JobRow].put(replace(row, not_matched=found))
    await work[RoundRow].add(replace(told, excluded=found))
    tell_job(row.job, UnmatchedEvent(at=told.at, not_matched=why.exclusions), work)
    event = RoundEvent(at=told.at, job=row.job, bought=0, price=None, offers=len(offers))
    tell_market(event, work)
