"""What an account earned, line by line: seal, draw, verdict, epoch, claim, or why a line waits.

Lines are those of `verification.earnings`; where the money of each is follows from what epochs paid
(`market.domain.earnings`). A page visits few jobs, and folds of jobs are remembered, so no request
reads a history that was read before. The caller is in a transaction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Malformed, NotFound
from contracts.terms.ids import Address, Digest, EpochNumber, JobId, PeerId
from contracts.terms.moments import UnixMillis
from market.domain import ledger
from market.domain.earnings import (
    Around,
    LineState,
    PartPaid,
    Parts,
    Reason,
    paid_parts,
    parts_of,
    reason_of,
    state_of,
)
from market.domain.jobs import JobState
from market.service.account_pay import (
    Claims,
    claim_transaction,
    claims_of,
    debited_of,
    epoch_sums,
    jobs_of,
    paid_epochs,
)
from market.service.booking import balances_of
from market.service.coding import spec_of
from market.service.follow_jobs import Followed, FollowedJobs
from market.service.ports import UnitOfWork
from market.service.rows import BalanceRow, BatchRow, EpochRow, JobRow, SealRow
from market.service.seals_on_chain import seals_on_chain
from verification.earnings import Line, Standings
from verification.tallies import Outcome

MAX_JOBS_A_PAGE = 8


@dataclass(frozen=True)
class Period:
    """When epochs are due, and how much one may debit of a job."""

    millis: int
    max_cap: BaseUnits


@dataclass(frozen=True)
class Drawing:
    """Whether a line was drawn, and what came of it."""

    is_drawn: bool | None  # None: its coin is not here yet, or it is never drawn
    outcome: Outcome | None
    auditors: tuple[PeerId, ...]  # who has reported on it, the first one first


@dataclass(frozen=True)
class EarnedLine:
    """A line with all that is known of it."""

    job: JobId
    line: Line
    amount: BaseUnits
    state: LineState
    parts: Parts
    paid: tuple[PartPaid, ...]
    claims: Mapping[EpochNumber, Digest]  # transactions by which epochs of `paid` were claimed
    seal: Digest | None
    batch: BatchRow | None  # None: in none that is confirmed on chain
    drawing: Drawing
    reason: Reason | None


@dataclass(frozen=True)
class Earned:
    """A page of lines. Sums are of all lines, not of the page."""

    parts: Parts  # of the job, or of all jobs: then nothing is said of frozen and forfeited pay
    num_lines: int | None  # of the job
    lines: tuple[EarnedLine, ...]
    after: tuple[JobId, int] | None  # where the next page begins; None: this is the last one


async def earnings_of(
    account: Address,
    work: UnitOfWork,
    followed: FollowedJobs,
    *,
    job: JobId | None,
    after: tuple[JobId, int] | None,
    limit: int,
    now: UnixMillis,
    period: Period,
) -> Earned:
    """Lines of an account beyond `after`: of one job, or job by job in the order of posting.

    Raises:
        NotFound: no such job.
        Malformed: `after` is of another job.
    """
    claims = await claims_of(account, work)
    if job is not None:
        if after is not None and after[0] != job:
            raise Malformed("after: the cursor is of another job")
        rows = [await _job(job, work)]
        parts = await parts_of_job(account, rows[0], work, followed)
        num_lines = len((await _load(rows[0], work, followed)).earnings.lines.get(account, ()))
    else:
        rows = await _jobs_that_paid(account, work)
        parts, num_lines = await _parts_of_account(account, rows, claims, work), None
    start = 0 if after is None else after[1]
    if after is not None:
        rows = _from(after[0], rows)
    reading = _Reading(account, claims, now, period, work, followed)
    lines: list[EarnedLine] = []
    for index, row in enumerate(rows):
        if len(lines) == limit or index == MAX_JOBS_A_PAGE:
            return Earned(parts, num_lines, tuple(lines), (row.job, start))
        found, is_whole = await reading.lines(row, start, limit - len(lines))
        lines += found
        if not is_whole:
            return Earned(parts, num_lines, tuple(lines), (row.job, lines[-1].line.number))
        start = 0
    return Earned(parts, num_lines, tuple(lines), None)


async def parts_of_job(
    account: Address, row: JobRow, work: UnitOfWork, followed: FollowedJobs
) -> Parts:
    """Where all that an account earned in a job is: the ledger's balances, and what is held."""
    names = ledger.earned(row.job, account), ledger.vested(row.job, account)
    balances = await balances_of(names, work)
    epochs = await paid_epochs(row.job, account, work)
    earnings = (await _load(row, work, followed)).earnings
    debited = max((each.until for each in epochs if each.state != "planned"), default=0)
    final = max((each.until for each in epochs if each.state == "final"), default=0)
    claimed = max((each.until for each in epochs if each.is_claimed), default=0)
    return Parts(
        waiting=BaseUnits(balances.get(names[0], 0)),
        frozen=earnings.frozen(account),
        forfeited=earnings.forfeited(account),
        vested=BaseUnits(balances.get(names[1], 0)),
        debited=BaseUnits(debited - final),
        final=BaseUnits(final - claimed),
        claimed=BaseUnits(claimed),
    )


async def _parts_of_account(
    account: Address, rows: Sequence[JobRow], claims: Claims, work: UnitOfWork
) -> Parts:
    waiting = [ledger.earned(row.job, account) for row in rows]
    ripe = [ledger.vested(row.job, account) for row in rows]
    balances = await balances_of([*waiting, *ripe, ledger.due(account)], work)
    final = await work[EpochRow].where(state="final", order="-epoch", limit=1)
    granted = (await epoch_sums(account, [each.epoch for each in final], work)).values()
    claimable = max(0, sum(granted) - claims.paid)
    return Parts(
        waiting=BaseUnits(sum(balances.get(name, 0) for name in waiting)),
        vested=BaseUnits(sum(balances.get(name, 0) for name in ripe)),
        debited=BaseUnits(balances.get(ledger.due(account), 0) - claimable),
        final=BaseUnits(claimable),
        claimed=claims.paid,
    )


@dataclass(frozen=True)
class _Reading:
    """One request."""

    account: Address
    claims: Claims
    now: UnixMillis
    period: Period
    work: UnitOfWork
    followed: FollowedJobs

    async def lines(self, row: JobRow, after: int, limit: int) -> tuple[list[EarnedLine], bool]:
        """Lines of one job, and whether these are the last ones."""
        found = await _load(row, self.work, self.followed)
        page = found.earnings.of_account(self.account, after=after, limit=limit + 1)
        # All that a fold says is taken before anything is waited for: others go on with it.
        shown = [each._replace(line=replace(each.line)) for each in page[:limit]]
        drawings = [drawing_of(each.line, found) for each in shown]
        record = found.earnings.record
        ended = record is not None and record.ended
        waits = [found.earnings.wait_of(each.line) for each in shown]
        around = await self._around(row, ended=ended)
        epochs = await paid_epochs(row.job, self.account, self.work)
        chain = await self._on_chain(row, shown)
        debited = await debited_of(row.job, self.work)
        transactions = await self._claims([paid_parts(each, epochs) for each in shown])
        lines = []
        for standing, drawing, wait in zip(shown, drawings, waits, strict=True):
            line, paid = standing.line, paid_parts(standing, epochs)
            parts = parts_of(standing, paid)
            state = state_of(standing, parts)
            seal, batch = chain.get(line.sealed, (None, None))
            vesting, vested_on = chain.get(line.resolved or 0, (None, None))
            cap = min(row.epoch_cap, self.period.max_cap)
            reason = reason_of(
                state, wait, paid, around,
                worth=standing.amount,
                lost_by=line.lost_by,
                is_anchored=vested_on is not None,
                above_cap=vesting is not None and vesting.vested - debited > cap,
            )  # fmt: skip
            digest = None if seal is None else seal.digest
            lines.append(
                EarnedLine(
                    row.job, line, standing.amount, state, parts, paid, transactions,
                    digest, batch, drawing, reason,
                )
            )  # fmt: skip
        return lines, len(page) <= limit

    async def _around(self, row: JobRow, *, ended: bool) -> Around:
        return Around(
            job_state=JobState(row.state),
            ended=ended,
            now=self.now,
            window=spec_of(row).message.rules.vesting_window,
            close_ends=row.ends_at if row.due is not None else None,
            next_epoch=await next_epoch_at(row, self.now, self.period, self.work),
        )

    async def _on_chain(
        self, row: JobRow, shown: Sequence[Standings]
    ) -> dict[int, tuple[SealRow, BatchRow | None]]:
        """The seals that hold lines or vested them, with their batches as far as on chain."""
        steps = {each.line.sealed for each in shown}
        steps |= {each.line.resolved for each in shown if each.line.resolved is not None}
        return await seals_on_chain(row.job, steps, self.work)

    async def _claims(self, paid: Sequence[Sequence[PartPaid]]) -> dict[EpochNumber, Digest]:
        """Transactions of the claims by which the epochs of a page were paid out."""
        claimed = sorted({p.epoch.epoch for each in paid for p in each if p.epoch.is_claimed})
        sums = await epoch_sums(self.account, claimed, self.work) if claimed else {}
        found = {}
        for epoch, granted in sums.items():
            event = self.claims.reached(granted)
            transaction = None if event is None else await claim_transaction(event, self.work)
            if transaction is not None:
                found[epoch] = transaction
        return found


def drawing_of(line: Line, found: Followed) -> Drawing:
    """Whether a line's message was drawn, and what came of it."""
    trace = found.traces.steps.get(line.sealed)
    if line.rate is None or trace is None or trace.coin is None:
        return Drawing(None, None, ())
    outcome = found.tally.outcome_of(line.subject)
    heard = (each.auditor for each in found.traces.reports.get(line.subject, ()))
    return Drawing(outcome is not None, outcome, tuple(heard))


async def next_epoch_at(
    row: JobRow, now: UnixMillis, period: Period, work: UnitOfWork
) -> UnixMillis:
    """When the next epoch may debit a job, at the earliest: see `settle_epoch`."""
    newest = await work[EpochRow].where(order="-epoch", limit=1)
    if not newest:
        return now
    begun, at = newest[0], now
    if (
        row.state == JobState.RUNNING.value
        and begun.planned_at // period.millis == now // period.millis
    ):
        at = UnixMillis((now // period.millis + 1) * period.millis)
    if begun.state in ("planned", "proposed") and begun.window_ends is not None:
        at = UnixMillis(max(at, begun.window_ends * 1000))
    return at


async def _job(job: JobId, work: UnitOfWork) -> JobRow:
    row = await work[JobRow].get(job)
    if row is None:
        raise NotFound("no such job", job=job.hex())
    return row


async def _jobs_that_paid(account: Address, work: UnitOfWork) -> list[JobRow]:
    """Jobs in which an account ever earned a base unit, in the order of their posting."""
    names = {ledger.earned(job, account): job for job in await jobs_of(account, work)}
    known = await work[BalanceRow].where(account=tuple(names)) if names else []
    jobs = tuple(names[row.account] for row in known)
    rows = await work[JobRow].where(job=jobs) if jobs else []
    return sorted(rows, key=lambda row: (row.posted_at, row.job))


def _from(job: JobId, rows: Sequence[JobRow]) -> list[JobRow]:
    """`rows` from a job on.

    Raises:
        Malformed: it is none of them.
    """
    for index, row in enumerate(rows):
        if row.job == job:
            return list(rows[index:])
    raise Malformed("after: the account has earned nothing in that job")


async def _load(row: JobRow, work: UnitOfWork, followed: FollowedJobs) -> Followed:
    return await followed.load(row.job, row.num_messages, work)
