"""What an account earned, line by line: seal, draw, verdict, epoch, claim, or why a line waits.

Lines are those of `verification.earnings`; where the money of each is follows from what epochs paid
(`market.domain.earnings`). A page visits few jobs, and folds of jobs are remembered, so no request
reads a history that was read before. The caller is in a transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Malformed, NotFound
from contracts.terms.ids import Address, Digest, EpochNumber, JobId
from contracts.terms.moments import UnixMillis
from market.bodies.earnings import DrawnView, EarningsView, EarningView, PaidPartView, PartsView
from market.domain import ledger
from market.domain.earnings import Around, PartPaid, paid_parts, parts_of, reason_of, state_of
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
from market.service.find_job import find_job
from market.service.follow_jobs import Followed, FollowedJobs
from market.service.ports import UnitOfWork
from market.service.rows import BalanceRow, EpochRow, JobRow
from market.service.seals_on_chain import seals_on_chain
from verification.earnings import Line

MAX_JOBS_A_PAGE = 8


@dataclass(frozen=True)
class Period:
    """When epochs are due, and how much one may debit of a job."""

    millis: int
    max_cap: BaseUnits


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
) -> EarningsView:
    """Lines of an account beyond `after`: of one job, or job by job in the order of posting.

    Raises:
        NotFound: no such job.
        Malformed: `after` is of another job.
    """
    claims = await claims_of(account, work)
    if job is not None:
        if after is not None and after[0] != job:
            raise Malformed("after: the cursor is of another job")
        rows = [await find_job(job, work)]
        parts = await _parts_of_job(account, rows[0], work, followed)
        found = await followed.load(job, rows[0].num_messages, work)
        num_lines = len(found.earnings.lines.get(account, ()))
    else:
        rows = await _jobs_that_paid(account, work)
        parts, num_lines = await _parts_of_account(account, rows, claims, work), None
    first, place = after or (None, 0)
    jobs = [row.job for row in rows]
    if first is not None and first not in jobs:
        raise Malformed("after: the account has earned nothing in that job")
    rows = rows if first is None else rows[jobs.index(first) :]
    reading = _Reading(account, claims, now, period, work, followed)
    lines: list[EarningView] = []
    following = None
    for index, row in enumerate(rows):
        if len(lines) == limit or index == MAX_JOBS_A_PAGE:
            following = _cursor(row.job, place)
            break
        page, is_whole = await reading.lines(row, place, limit - len(lines))
        lines += page
        if not is_whole:
            following = lines[-1].cursor
            break
        place = 0
    return EarningsView(
        account=account, job=job, clock=now, parts=parts, num_lines=num_lines,
        lines=tuple(lines), next=following,
    )  # fmt: skip


async def earning_of(
    job: JobId,
    subject: Digest,
    work: UnitOfWork,
    followed: FollowedJobs,
    *,
    now: UnixMillis,
    period: Period,
) -> EarningView:
    """The line of a GradCommit or an AuditReport, as its account sees it.

    Raises:
        NotFound: no such job, or no seal holds a message of this digest that is paid.
    """
    row = await find_job(job, work)
    line = (await followed.load(job, row.num_messages, work)).earnings.of_subject.get(subject)
    if line is None:
        raise NotFound("no seal holds such work", subject=subject.hex())
    account, before = line.account, line.number - 1
    reading = _Reading(account, await claims_of(account, work), now, period, work, followed)
    (found,), _ = await reading.lines(row, before, 1)
    return found


def _cursor(job: JobId, number: int) -> str:
    """A place in a list that goes over several jobs."""
    return f"{job.hex()}:{number}"


async def _parts_of_job(
    account: Address, row: JobRow, work: UnitOfWork, followed: FollowedJobs
) -> PartsView:
    """Where all that an account earned in a job is: the ledger's balances, and what is held."""
    names = ledger.earned(row.job, account), ledger.vested(row.job, account)
    balances = await balances_of(names, work)
    epochs = await paid_epochs(row.job, account, work)
    earnings = (await followed.load(row.job, row.num_messages, work)).earnings
    debited = max((each.until for each in epochs if each.state != "planned"), default=0)
    final = max((each.until for each in epochs if each.state == "final"), default=0)
    claimed = max((each.until for each in epochs if each.is_claimed), default=0)
    return PartsView(
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
) -> PartsView:
    """The same of all its jobs; nobody adds up what is frozen or lost in them."""
    waiting = [ledger.earned(row.job, account) for row in rows]
    ripe = [ledger.vested(row.job, account) for row in rows]
    balances = await balances_of([*waiting, *ripe, ledger.due(account)], work)
    final = await work[EpochRow].where(state="final", order="-epoch", limit=1)
    granted = (await epoch_sums(account, [each.epoch for each in final], work)).values()
    claimable = max(0, sum(granted) - claims.paid)
    return PartsView(
        waiting=BaseUnits(sum(balances.get(name, 0) for name in waiting)),
        frozen=None,
        forfeited=None,
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

    async def lines(self, row: JobRow, after: int, limit: int) -> tuple[list[EarningView], bool]:
        """Lines of one job, and whether these are the last ones."""
        found = await self.followed.load(row.job, row.num_messages, self.work)
        page = found.earnings.of_account(self.account, after=after, limit=limit + 1)
        # All that a fold says is taken before anything is waited for: others go on with it.
        shown = [each._replace(line=replace(each.line)) for each in page[:limit]]
        draws = [drawn_of(each.line, found) for each in shown]
        record = found.earnings.record
        ended = record is not None and record.ended
        waits = [found.earnings.wait_of(each.line) for each in shown]
        around = await self._around(row, ended=ended)
        epochs = await paid_epochs(row.job, self.account, self.work)
        # The seals that hold lines or vested them, with their batches as far as on chain.
        steps = {step for e in shown for step in (e.line.sealed, e.line.resolved) if step}
        chain = await seals_on_chain(row.job, steps, self.work)
        debited = await debited_of(row.job, self.work)
        transactions = await self._claims([paid_parts(each, epochs) for each in shown])
        lines = []
        for standing, draw, wait in zip(shown, draws, waits, strict=True):
            line, paid = standing.line, paid_parts(standing, epochs)
            parts = parts_of(standing, paid)
            state = state_of(standing, parts)
            seal, anchor = chain.get(line.sealed, (None, None))
            vesting, vested_on = chain.get(line.resolved or 0, (None, None))
            cap = min(row.epoch_cap, self.period.max_cap)
            reason = reason_of(
                state, wait, paid, around,
                worth=standing.amount,
                lost_by=line.lost_by,
                is_anchored=vested_on is not None,
                above_cap=vesting is not None and vesting.vested - debited > cap,
            )  # fmt: skip
            lines.append(
                EarningView.of(
                    line,
                    cursor=_cursor(row.job, line.number),
                    job=row.job,
                    units=line.num_units,
                    seal=None if seal is None else seal.digest,
                    anchor=anchor,
                    draw=draw,
                    amount=standing.amount,
                    state=state,
                    parts=PartsView.of(parts),
                    paid=tuple(paid_view(p, transactions.get(p.epoch.epoch)) for p in paid),
                    vested=line.resolved,
                    waits_for=reason,
                )
            )
        return lines, len(page) <= limit

    async def _around(self, row: JobRow, *, ended: bool) -> Around:
        return Around(
            job_state=JobState(row.state),
            ended=ended,
            now=self.now,
            window=spec_of(row).message.rules.vesting_window,
            close_ends=row.ends_at if row.due is not None else None,
            next_epoch=await _next_epoch_at(row, self.now, self.period, self.work),
        )

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


def drawn_of(line: Line, found: Followed) -> DrawnView | None:
    """Whether a line's message was drawn, and what came of it; None of one that never is."""
    if line.rate is None:
        return None
    is_known = has_coin(line, found)
    outcome = found.tally.outcome_of(line.subject) if is_known else None
    heard = found.traces.reports.get(line.subject, ()) if is_known else ()
    return DrawnView(
        rate=f"{line.rate.numerator}/{line.rate.denominator}",
        drawn=outcome is not None if is_known else None,
        outcome=outcome,
        auditors=tuple(each.auditor for each in heard),
    )


def has_coin(line: Line, found: Followed) -> bool:
    """Whether the coin is here that draws, or leaves out, a line's message."""
    trace = found.traces.steps.get(line.sealed)
    return trace is not None and trace.coin is not None


def paid_view(part: PartPaid, claimed_by: Digest | None) -> PaidPartView:
    """What of a line an epoch pays, and the transaction that claimed it."""
    return PaidPartView.of(part.epoch, amount=part.amount, claimed_by=claimed_by)


async def _next_epoch_at(
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


async def _jobs_that_paid(account: Address, work: UnitOfWork) -> list[JobRow]:
    """Jobs in which an account ever earned a base unit, in the order of their posting."""
    names = {ledger.earned(job, account): job for job in await jobs_of(account, work)}
    known = await work[BalanceRow].where(account=tuple(names)) if names else []
    jobs = tuple(names[row.account] for row in known)
    rows = await work[JobRow].where(job=jobs) if jobs else []
    return sorted(rows, key=lambda row: (row.posted_at, row.job))
