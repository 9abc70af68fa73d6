"""What an account earned, line by line: seal, draw, verdict, claim, or why a line waits.

Lines are those of `verification.earnings`; where the money of each is follows from the newest seal
and the account's limit and claims (`market.domain.earnings`). A page visits few jobs, and folds of
jobs are remembered, so no request reads a history that was read before. The caller is in a
transaction.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from contracts.terms.amounts import NOTHING, BaseUnits
from contracts.terms.errors import Malformed, NotFound
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.moments import UnixMillis
from market.bodies.earnings import EARNINGS_PAGE, DrawnView, EarningsView, EarningView, PartsView
from market.domain.earnings import (
    Around,
    OwnPay,
    paid_parts,
    parts_of,
    parts_of_all,
    reason_of,
    state_of,
)
from market.domain.jobs import JobState
from market.service.account_pay import claims_of, jobs_of, own_pay
from market.service.coding import spec_of
from market.service.find_job import find_job
from market.service.follow_jobs import Followed, FollowedJobs
from market.service.ports import UnitOfWork
from market.service.rows import JobRow
from market.service.show_beacons import seals_on_chain
from verification.earnings import Line

MAX_JOBS_A_PAGE = 8


async def earnings_of(
    account: Address,
    work: UnitOfWork,
    followed: FollowedJobs,
    *,
    job: JobId | None = None,
    after: tuple[JobId, int] | None = None,
    limit: int = EARNINGS_PAGE,
    now: UnixMillis,
) -> EarningsView:
    """Lines of an account beyond `after`: of one job, or job by job in the order of posting.

    Raises:
        NotFound: no such job.
        Malformed: `after` is of another job.
    """
    async with work:
        if job is not None:
            if after is not None and after[0] != job:
                raise Malformed("after: the cursor is of another job")
            rows = [await find_job(job, work)]
            pay = await own_pay(account, rows, work)
            earnings = (await followed.load(job, rows[0].num_messages, work)).earnings
            held = earnings.frozen(account), earnings.forfeited(account)
            parts = parts_of_all(pay[job], *held)
            num_lines = len(earnings.lines.get(account, ()))
        else:
            rows, pay = await _jobs_that_paid(account, work)
            parts, num_lines = _parts_of_account(pay), None
        first, place = after or (None, 0)
        jobs = [row.job for row in rows]
        if first is not None and first not in jobs:
            raise Malformed("after: the account has earned nothing in that job")
        rows = rows if first is None else rows[jobs.index(first) :]
        reading = _Reading(account, pay, work, followed)
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
    job: JobId, subject: Digest, work: UnitOfWork, followed: FollowedJobs
) -> EarningView:
    """The line of a claim, as its account sees it.

    Raises:
        NotFound: no such job, or no seal holds a message of this digest that is paid.
    """
    row = await find_job(job, work)
    line = (await followed.load(job, row.num_messages, work)).earnings.of_subject.get(subject)
    if line is None:
        raise NotFound("no seal holds such work", subject=subject.hex())
    account, before = line.account, line.number - 1
    reading = _Reading(account, await own_pay(account, [row], work), work, followed)
    (found,), _ = await reading.lines(row, before, 1)
    return found


def _cursor(job: JobId, number: int) -> str:
    """A place in a list that goes over several jobs."""
    return f"{job.hex()}:{number}"


def _parts_of_account(pay: Mapping[JobId, OwnPay]) -> PartsView:
    """The sums of all its jobs; nobody adds up what is frozen or lost in them."""
    parts = [parts_of_all(each, NOTHING, NOTHING) for each in pay.values()]
    names = ("waiting", "vested", "over_limit", "claimed")
    sums = {name: BaseUnits(sum(getattr(each, name) for each in parts)) for name in names}
    return PartsView(**sums, frozen=None, forfeited=None)


@dataclass(frozen=True)
class _Reading:
    """One request."""

    account: Address
    pay: Mapping[JobId, OwnPay]
    work: UnitOfWork
    followed: FollowedJobs

    async def lines(self, row: JobRow, after: int, limit: int) -> tuple[list[EarningView], bool]:
        """Lines of one job, and whether these are the last ones."""
        found = await self.followed.load(row.job, row.num_messages, self.work)
        page = found.earnings.of_account(self.account, after=after, limit=limit + 1)
        # All that a fold says is taken before anything is waited for: others go on with it.
        shown = [each._replace(line=replace(each.line)) for each in page[:limit]]
        draws = [drawn_of(each.line, found) for each in shown]
        record, pay = found.earnings.record, self.pay[row.job]
        waits = [found.earnings.wait_of(each.line) for each in shown]
        around = Around(
            job_state=JobState(row.state),
            ended=record is not None and record.ended,
            window=spec_of(row).message.rules.vesting_window,
            has_ended=pay.has_ended,
        )
        claims = await claims_of(row.job, self.account, self.work)
        chain = await seals_on_chain(row.job, {each.line.sealed for each in shown}, self.work)
        lines = []
        for standing, draw, wait in zip(shown, draws, waits, strict=True):
            line, parts = standing.line, parts_of(standing, pay)
            state = state_of(standing, parts)
            seal, anchor = chain.get(line.sealed, (None, None))
            lines.append(
                EarningView.of(
                    line,
                    cursor=_cursor(row.job, line.number),
                    job=row.job,
                    units=line.num_items,
                    seal=None if seal is None else seal.digest,
                    anchor=anchor,
                    draw=draw,
                    amount=standing.amount,
                    state=state,
                    parts=parts,
                    claims=paid_parts(standing, claims),
                    vested=line.resolved,
                    waits_for=reason_of(
                        state, wait, around, worth=standing.amount, lost_by=line.lost_by
                    ),
                )
            )
        return lines, len(page) <= limit


def drawn_of(line: Line, found: Followed) -> DrawnView | None:
    """Whether a line's message was drawn, and what came of it; None of one that never is."""
    if line.rate is None:
        return None
    is_known = has_beacon(line, found)
    outcome = found.tally.outcome_of(line.subject) if is_known else None
    heard = found.traces.reports.get(line.subject, ()) if is_known else ()
    return DrawnView(
        rate=f"{line.rate.numerator}/{line.rate.denominator}",
        drawn=outcome is not None if is_known else None,
        outcome=outcome,
        auditors=tuple(each.auditor for each in heard),
    )


def has_beacon(line: Line, found: Followed) -> bool:
    """Whether the beacon is here that draws, or leaves out, a line's message."""
    trace = found.traces.steps.get(line.sealed)
    return trace is not None and trace.beacon is not None


async def _jobs_that_paid(
    account: Address, work: UnitOfWork
) -> tuple[list[JobRow], dict[JobId, OwnPay]]:
    """Jobs in which an account earned a base unit, in the order of their posting."""
    jobs = tuple(await jobs_of(account, work))
    rows = await work[JobRow].where(job=jobs)
    pay = await own_pay(account, rows, work)
    paid = [row for row in rows if pay[row.job].earned]
    paid.sort(key=lambda row: (row.posted_at, row.job))
    return paid, {row.job: pay[row.job] for row in paid}
