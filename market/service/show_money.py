"""What is shown of a job's money: its budget in the escrow, its accounts, and its newest pay.

Limits, stakes and claims are those of confirmed events (`market.service.money`); what was earned
and has vested is the newest seal's. Units: base units, Unix seconds.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from contracts.governance.escrow import Budget, EscrowTimes, FundingTerms, due_of, end_of
from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import NOTHING, BaseUnits, in_tokens
from contracts.terms.ids import ZERO_ADDRESS, Address, JobId
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.bodies.money import (
    AccountMoney,
    AnnouncedView,
    JobMoney,
    OrderView,
    PayLeafView,
    PayView,
    ReturnView,
)
from market.domain.earnings import RECENT, Sealed, pace_of
from market.service.account_pay import claimed_in, newest_seal
from market.service.coding import decode_arguments, decode_pay, wide
from market.service.find_job import find_job
from market.service.listing import Asked, Listing
from market.service.money import CONTRACT, budget_of, terms_of
from market.service.ports import UnitOfWork
from market.service.rows import BudgetRow, ChainEventRow, JobRow, LimitRow, OrderRow, SealRow

ACCOUNTS = Listing(LimitRow, "account")
MAX_GRANTS_LOOKED_AT = 2000
HOUR = 3600
HOURS_AHEAD = 24
"""For which a coordinator may set limits aside once the job runs steadily."""


async def money_of_job(
    job: JobId, asked: Asked, times: EscrowTimes, now: UnixMillis, work: UnitOfWork
) -> JobMoney:
    """A job's budget, and a part of its accounts by address.

    Args:
        job: Which.
        asked: Which part of its accounts.
        times: Of the escrow.
        now: The market's clock.
        work: To read in.

    Raises:
        NotFound: no such job. Malformed: the cursor is none of this list.
    """
    async with work:
        row = await find_job(job, work)
        known = await work[BudgetRow].get(job)
        seal, totals = await newest_seal(row, work), await money_totals(row, work)
        limits = await work[LimitRow].where(job=job)
        part = await ACCOUNTS.part(asked, work, job=job)
        recent = await recent_seals(row, work)
        committed_lately = await _committed_since(job, UnixSeconds(now // 1000 - HOUR), work)
    leaves = {} if seal is None else {leaf.account: leaf for leaf in decode_pay(seal.pay)}
    budget = budget_of(known)
    poster = row.poster if known is None else known.poster
    terms = FundingTerms(ZERO_ADDRESS, 0, 0) if known is None else terms_of(known)
    closed_at = UnixSeconds(budget.closed_at) if budget.closed_at else None
    pace = pace_of(recent)
    return JobMoney(
        job=job,
        poster=poster,
        clock=now,
        **totals,
        burst=BaseUnits(terms.burst),
        rate=BaseUnits(terms.rate),
        allowance=BaseUnits(budget.allowance_at(terms, now // 1000)),
        committed_an_hour=committed_lately,
        warning=warning_of(
            limits, leaves, terms.burst, NOTHING if pace is None else pace.spent_an_hour
        ),
        closed_at=closed_at,
        releasable_at=None if closed_at is None else UnixSeconds(closed_at + times.tail),
        returns=returns_of(budget, limits, leaves, times.tail),
        num_accounts=len(limits),
        accounts=tuple(
            account_money(limit, leaves.get(limit.account), budget, times) for limit in part.rows
        ),
        next=part.next,
    )


async def pay_of_job(job: JobId, work: UnitOfWork) -> PayView:
    """The newest seal of a job, and all leaves under its pay root.

    Raises:
        NotFound: no such job.
    """
    async with work:
        row = await find_job(job, work)
        seal = await newest_seal(row, work)
    if seal is None:
        return PayView(job=job, step=0, seal=None, leaves=())
    leaves = tuple(PayLeafView.of(leaf) for leaf in decode_pay(seal.pay))
    return PayView(job=job, step=seal.step, seal=seal.signed, leaves=leaves)


def order_view(row: OrderRow) -> OrderView:
    """An order, and how far it is."""
    state = "waiting" if row.transaction is None else "sent"
    return OrderView.of(row, state="refused" if row.refusal is not None else state)


async def money_totals(row: JobRow, work: UnitOfWork) -> dict[str, BaseUnits]:
    """The sums that a job's view shows, by the names of its fields. In a transaction."""
    budget, seal = budget_of(await work[BudgetRow].get(row.job)), await newest_seal(row, work)
    return {
        "funded": BaseUnits(budget.funded),
        "committed": BaseUnits(budget.committed),
        "free": BaseUnits(budget.free),
        "earned": NOTHING if seal is None else seal.earned,
        "vested": NOTHING if seal is None else seal.vested,
        "claimed": (await claimed_in([row.job], work))[row.job],
    }


async def recent_seals(row: JobRow, work: UnitOfWork) -> list[Sealed]:
    """The newest seals, by which the pace of a job is told, oldest first. In a transaction."""
    seals = await work[SealRow].where(job=row.job, order="-step", limit=RECENT + 1)
    return [Sealed(seal.step, seal.earned, seal.stored_at) for seal in reversed(seals)]


def account_money(
    row: LimitRow, leaf: PayLeaf | None, budget: Budget, times: EscrowTimes
) -> AccountMoney:
    """An account in a job."""
    earned, vested = (NOTHING, NOTHING) if leaf is None else (leaf.earned, leaf.vested)
    end = end_of(row.end, budget.closed_at)
    slash = None
    if row.slash_amount:
        slash = AnnouncedView(amount=row.slash_amount, burns_from=row.slash_from)
    return AccountMoney.of(
        row,
        earned=earned,
        vested=vested,
        due=due_of(vested, row.limit, row.claimed),
        end=UnixSeconds(end) if end else None,
        releasable_at=UnixSeconds(end + times.tail) if end else None,
        slash=slash,
    )


def returns_of(
    budget: Budget, limits: Iterable[LimitRow], leaves: Mapping[Address, PayLeaf], tail: int
) -> tuple[ReturnView, ...]:
    """What comes back to the poster and when, as far as ends and the newest seal decide it."""
    unspent: dict[int, int] = defaultdict(int)
    for row in limits:
        leaf, end = leaves.get(row.account), end_of(row.end, budget.closed_at)
        kept = max(row.claimed, row.earned, 0 if leaf is None else leaf.earned)
        if end and row.limit > kept:
            unspent[end + tail] += row.limit - kept
    found = [
        ReturnView(at=UnixSeconds(at), amount=BaseUnits(amount), what="unspent")
        for at, amount in sorted(unspent.items())
    ]
    if budget.free > 0:
        found.insert(0, ReturnView(at=None, amount=BaseUnits(budget.free), what="free"))
    return tuple(found)


def warning_of(
    limits: Sequence[LimitRow],
    leaves: Mapping[Address, PayLeaf],
    burst: int,
    earned_an_hour: BaseUnits,
) -> str | None:
    """A warning where limits of accounts that work are far ahead of what these have earned.

    An honest coordinator keeps them ahead by the first limits, for which `burst` is meant, and
    later by a day of the work that comes in.
    """
    ahead = 0
    for row in limits:
        leaf = leaves.get(row.account)
        if not row.end:
            ahead += max(0, row.limit - (0 if leaf is None else leaf.earned))
    most = max(burst, HOURS_AHEAD * earned_an_hour)
    if ahead <= most:
        return None
    return (
        f"the coordinator has set aside {in_tokens(ahead)} tokens for work that is not done yet, "
        f"and {in_tokens(most)} would do: take back what is free, or close the job"
    )


async def _committed_since(job: JobId, start: UnixSeconds, work: UnitOfWork) -> BaseUnits:
    """By how much limits were raised since a moment, of the newest raises."""
    rows = await work[ChainEventRow].where(
        contract=CONTRACT, job=job, event="LimitSet", order="-block", limit=MAX_GRANTS_LOOKED_AT
    )
    is_whole = len(rows) < MAX_GRANTS_LOOKED_AT
    limits: dict[object, int] = {}
    added = 0
    for row in sorted(rows, key=lambda each: (each.block, each.log_index)):
        arguments = decode_arguments(row.args)
        account, limit = arguments["account"], wide(arguments["limit"])
        before = limits.get(account, 0 if is_whole else limit)
        limits[account] = limit
        if row.at >= start:
            added += max(0, limit - before)
    return BaseUnits(added)
