"""Which sealed steps of a job hold work of a peer, or work that came to a certain end?

An auditor looks for a liar's steps among thousands. The fold is walked, not the database, and at
most `MAX_LOOKED_AT` lines of it at once; whoever is not done asks again beyond the last step looked
at. The caller is in a transaction.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from contracts.terms.ids import JobId, StepNumber
from market.bodies.tracing import StepLineView, StepView
from market.service.find_job import find_job
from market.service.follow_jobs import Followed, FollowedJobs
from market.service.ports import UnitOfWork
from market.service.show_beacons import seals_on_chain
from market.service.show_earnings import has_beacon
from market.service.show_steps import step_line_view, step_view
from verification.earnings import Line
from verification.tallies import Outcome

MAX_LOOKED_AT = 20_000

Fate: TypeAlias = Outcome | Literal["undrawn", "undecided"]
"""What came of a message: of its draw, or `undrawn`; `undecided` until its beacon is here."""

FATES: tuple[Fate, ...] = (*get_args(Outcome), "undrawn", "undecided")


@dataclass(frozen=True)
class Wanted:
    """What work has to be like; what is None may be anything."""

    doer: bytes | None = None  # a peer, or its account
    fate: Fate | None = None


@dataclass(frozen=True)
class FoundStep:
    """A step, and those of its lines that are wanted."""

    step: StepView
    lines: tuple[StepLineView, ...] = ()


async def find_steps(
    job: JobId, wanted: Wanted, work: UnitOfWork, followed: FollowedJobs, *, after: int, limit: int
) -> tuple[list[FoundStep], int | None]:
    """Steps beyond `after` that hold wanted work, at most `limit`, and where to go on, if anywhere.

    Raises:
        NotFound: no such job.
    """
    row = await find_job(job, work)
    found = await followed.load(job, row.num_messages, work)
    fitting, last = _fitting(found, wanted, after, limit)  # before anything else is waited for
    chain = await seals_on_chain(job, fitting, work)
    found = await followed.load(job, row.num_messages, work)
    steps = [
        FoundStep(step_view(*chain[step], found), lines)
        for step, lines in fitting.items()
        if step in chain
    ]
    return steps, last


def _fitting(
    found: Followed, wanted: Wanted, after: int, limit: int
) -> tuple[dict[StepNumber, tuple[StepLineView, ...]], int | None]:
    """Wanted lines by step, and the last step looked at unless that is the newest."""
    fitting: dict[StepNumber, tuple[StepLineView, ...]] = {}
    looked_at = 0
    for step, lines in _beyond(found, after):
        if len(fitting) == limit or looked_at > MAX_LOOKED_AT:
            return fitting, step - 1
        looked_at += len(lines)
        if fits := [line for line in lines if _is_wanted(line, wanted, found)]:
            fitting[step] = tuple(step_line_view(line, found) for line in fits)
    return fitting, None


def _beyond(found: Followed, after: int) -> Iterator[tuple[StepNumber, list[Line]]]:
    by_step = found.earnings.by_step
    return ((step, by_step[step]) for step in sorted(by_step) if step > after)


def _is_wanted(line: Line, wanted: Wanted, found: Followed) -> bool:
    if line.kind != "work" or wanted.doer not in (None, line.peer, line.account):
        return False
    return wanted.fate is None or fate_of(line, found) == wanted.fate


def fate_of(line: Line, found: Followed) -> Fate | None:
    """What came of a line's message; None where nobody is ever drawn."""
    if line.rate is None:
        return None
    if not has_beacon(line, found):
        return "undecided"
    return found.tally.outcome_of(line.subject) or "undrawn"
