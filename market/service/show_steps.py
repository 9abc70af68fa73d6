"""A job's sealed steps: what each holds, where it is anchored, what its beacon drew and came to.

The caller is in a transaction. Units: base units, milliseconds.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from contracts.terms.errors import NotFound
from contracts.terms.ids import Address, JobId, PeerId, StepNumber
from market.bodies.earnings import AnchorView
from market.bodies.offers import OutcomesView
from market.bodies.tracing import (
    DrawablesView,
    StepBeaconView,
    StepLinesView,
    StepLineView,
    StepsView,
    StepView,
)
from market.domain.sizes import exchanged
from market.service.coding import seal_of
from market.service.find_job import find_job
from market.service.follow_jobs import NO_ROUND, Followed, FollowedJobs
from market.service.ports import UnitOfWork
from market.service.rows import SealRow
from market.service.show_beacons import seals_on_chain
from market.service.show_earnings import drawn_of
from verification.earnings import Line
from verification.tallies import StepTrace

_NO_OUTCOMES = dict.fromkeys(OutcomesView.model_fields, 0)


async def steps_of(
    job: JobId, work: UnitOfWork, followed: FollowedJobs, *, after: int, limit: int
) -> StepsView:
    """Sealed steps beyond `after`, ascending.

    Raises:
        NotFound: no such job.
    """
    row = await find_job(job, work)
    seals = await work[SealRow].where(job=job, order="step", after=after, limit=limit)
    chain = await seals_on_chain(job, (seal.step for seal in seals), work)
    found = await followed.load(job, row.num_messages, work)
    steps = (step_view(seal, chain[seal.step][1], found) for seal in seals)
    return StepsView(job=job, steps=tuple(steps))


async def lines_of_step(
    job: JobId, step: StepNumber, work: UnitOfWork, followed: FollowedJobs,
    *, after: int, limit: int,
) -> StepLinesView:  # fmt: skip
    """A step with those of its seal's lines that come after the first `after`, at most `limit`.

    Raises:
        NotFound: no such job, or the step is not sealed.
    """
    row = await find_job(job, work)
    seal = await work[SealRow].get(job, step)
    if seal is None:
        raise NotFound("no such step is sealed", step=step)
    _, anchor = (await seals_on_chain(job, [step], work))[step]
    found = await followed.load(job, row.num_messages, work)
    lines = found.earnings.by_step.get(step, [])
    shown, end = lines[after : after + limit], after + limit
    return StepLinesView(
        job=job,
        step=step_view(seal, anchor, found),
        num_lines=len(lines),
        lines=tuple(step_line_view(line, found) for line in shown),
        next=end if end < len(lines) else None,
    )


def step_view(row: SealRow, anchor: AnchorView | None, found: Followed) -> StepView:
    """A seal with what the fold knows of its step."""
    seal, step = seal_of(row).message, StepNumber(row.step)
    trace = found.traces.steps.get(step, StepTrace(None, {}))
    closed, lines = trace.closed, found.work_of(step)
    working, done = {line.peer for line in lines}, found.rounds.get(step, NO_ROUND)
    before = found.rounds.get(StepNumber(step - 1), NO_ROUND)
    outcomes = found.traces.outcomes(step, found.tally)
    return StepView.of(
        seal,
        seal=row.digest,
        stored_at=row.stored_at,
        round_closed=None if closed is None else closed.digest(),
        closed_at=None if closed is None else closed.closed_at,
        merged=len(lines),
        peers=len(working),
        missed_by=_missed_by(done.members.keys() - working, found) if lines else (),
        tokens=done.tokens - before.tokens,
        tokens_so_far=done.tokens,
        items=sum(line.num_items for line in lines if line.stage == 0),
        items_ahead=done.ahead,
        exchanged=_exchanged(lines, found),
        anchor=anchor,
        beacon=trace.beacon and StepBeaconView.of(trace.beacon, said_in=trace.beacon.step),
        drawables=DrawablesView(
            work=trace.drawables.get("work", 0),
            sums=trace.drawables.get("bucket", 0),
            reports=trace.drawables.get("report", 0),
        ),
        drawn=len(trace.drawn),
        outcomes=OutcomesView.model_validate(_NO_OUTCOMES | dict(outcomes)),
    )


def _missed_by(peers: Iterable[PeerId], found: Followed) -> tuple[Address, ...]:
    record = found.history.record
    return () if record is None else tuple(sorted({record.leases[each].account for each in peers}))


def _exchanged(lines: Sequence[Line], found: Followed) -> int:
    record = found.history.record
    if not lines or record is None:
        return 0
    peers = Counter(stage for stage, _ in {(line.stage, line.peer) for line in lines})
    return exchanged(record.spec, [num_peers for _, num_peers in sorted(peers.items())])


def step_line_view(line: Line, found: Followed) -> StepLineView:
    """A line of a step, and what became of it."""
    standing = found.earnings.of_line(line)
    return StepLineView.of(
        line,
        work_step=line.step,
        units=line.num_items,
        amount=standing.amount,
        state=standing.held,
        draw=drawn_of(line, found),
    )
