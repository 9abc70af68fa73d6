"""A job's sealed steps: what each holds, where it is anchored, what its coin drew and came to.

The caller is in a transaction. Units: base units, milliseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from contracts.terms.errors import NotFound
from contracts.terms.ids import Digest, JobId, StepNumber
from contracts.terms.messages import Seal, StepCoin
from contracts.terms.moments import UnixMillis
from market.service.coding import seal_of
from market.service.follow_jobs import Followed, FollowedJobs
from market.service.ports import UnitOfWork
from market.service.rows import BatchRow, JobRow, SealRow
from market.service.seals_on_chain import seals_on_chain
from market.service.show_earnings import Drawing, drawing_of
from verification.draws.cases import Kind
from verification.earnings import Standings
from verification.tallies import Outcome
from verification.traces import StepTrace


@dataclass(frozen=True)
class SealedStep:
    """A step with its seal."""

    seal: Seal
    digest: Digest
    stored_at: UnixMillis
    batch: BatchRow | None  # None: in none that is confirmed on chain
    close: Digest | None
    closed_at: UnixMillis | None
    average: Digest | None
    members: int  # GradCommits that were averaged
    coin: StepCoin | None  # None: it is not here yet, or nothing waits for it
    drawables: Mapping[Kind, int]
    drawn: int
    outcomes: Mapping[Outcome, int]


@dataclass(frozen=True)
class StepLine:
    """A line of a step, and what became of it."""

    standing: Standings
    drawing: Drawing


async def steps_of(
    job: JobId, work: UnitOfWork, followed: FollowedJobs, *, after: int, limit: int
) -> list[SealedStep]:
    """Sealed steps beyond `after`, ascending.

    Raises:
        NotFound: no such job.
    """
    row = await _job(job, work)
    seals = await work[SealRow].where(job=job, order="step", after=after, limit=limit)
    chain = await seals_on_chain(job, (seal.step for seal in seals), work)
    found = await followed.load(job, row.num_messages, work)
    return [sealed_step(seal, chain[seal.step][1], found) for seal in seals]


async def lines_of_step(
    job: JobId, step: StepNumber, work: UnitOfWork, followed: FollowedJobs,
    *, after: int, limit: int,
) -> tuple[SealedStep, int, list[StepLine]]:  # fmt: skip
    """A step, how many lines its seal holds, and those beyond `after`, at most `limit`.

    Raises:
        NotFound: no such job, or the step is not sealed.
    """
    row = await _job(job, work)
    seal = await work[SealRow].get(job, step)
    if seal is None:
        raise NotFound("no such step is sealed", step=step)
    _, batch = (await seals_on_chain(job, [step], work))[step]
    found = await followed.load(job, row.num_messages, work)
    lines = found.earnings.by_step.get(step, [])
    shown = [found.earnings.of_line(line) for line in lines[after : after + limit]]
    copies = [each._replace(line=replace(each.line)) for each in shown]
    views = [StepLine(each, drawing_of(each.line, found)) for each in copies]
    return sealed_step(seal, batch, found), len(lines), views


def sealed_step(row: SealRow, batch: BatchRow | None, found: Followed) -> SealedStep:
    """A seal with what the fold knows of its step."""
    step = StepNumber(row.step)
    trace = found.traces.steps.get(step, StepTrace(None, None, {}))
    close, average = trace.close, trace.average
    return SealedStep(
        seal=seal_of(row).message,
        digest=row.digest,
        stored_at=row.stored_at,
        batch=batch,
        close=None if close is None else close.digest(),
        closed_at=None if close is None else close.closed_at,
        average=None if average is None else average.digest(),
        members=0 if average is None else len(average.members),
        coin=trace.coin,
        drawables=trace.drawables,
        drawn=len(trace.drawn),
        outcomes=found.traces.outcomes(step, found.tally),
    )


async def _job(job: JobId, work: UnitOfWork) -> JobRow:
    row = await work[JobRow].get(job)
    if row is None:
        raise NotFound("no such job", job=job.hex())
    return row
