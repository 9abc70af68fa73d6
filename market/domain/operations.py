"""What became of something that a poster asked of its job: a function of how the job stands. Pure.

Nothing is remembered of an operation but what was asked, and whether a later wish came before the
job was as this one wanted it. Whoever asks how it is gets it from the job's own rows.
"""

from dataclasses import dataclass
from typing import Literal

from contracts.terms.moments import UnixMillis, UnixSeconds
from market.domain.jobs import Action, JobState


@dataclass(frozen=True)
class Standing:
    """How a job stands, as far as operations on it go."""

    state: JobState
    wish: int  # number of the newest wish
    heeded: int  # of the newest one that the job is as wanted by
    is_hosted: bool  # a host runs its coordinator
    had_money: bool  # something was in escrow for it
    refundable_at: UnixSeconds | None  # once it is closing


@dataclass(frozen=True)
class Outcome:
    """How far an operation is."""

    state: Literal["pending", "done", "failed"]
    waits_for: Literal["host", "coordinator", "close", "refund_delay"] | None = None
    until: UnixMillis | None = None
    error: Literal["superseded", "ended"] | None = None


DONE = Outcome("done")


def outcome(action: Action, wish: int, job: Standing, *, superseded: bool) -> Outcome:
    """What became of `action`, asked with the wish of this number.

    Args:
        action: What was asked.
        wish: Its number.
        job: How its job stands now.
        superseded: Whether a later wish came before this one was heeded.
    """
    if superseded:
        return Outcome("failed", error="superseded")
    if action == Action.CANCEL:
        return _of_cancel(job)
    if job.heeded >= wish or wish < job.wish:
        return DONE
    match job.state:
        case JobState.DRAFT | JobState.FUNDED:
            return DONE  # no round sees it any more, or again
        case JobState.MATCHED if action == Action.RESUME or not job.is_hosted:
            return DONE
        case JobState.MATCHED:
            return Outcome("pending", waits_for="host")
        case JobState.RUNNING:
            return Outcome("pending", waits_for="coordinator" if job.is_hosted else "host")
    return Outcome("failed", error="ended")


def _of_cancel(job: Standing) -> Outcome:
    """A cancel is done when nothing is in escrow that nobody earned."""
    match job.state:
        case JobState.REFUNDED:
            return DONE
        case JobState.FAILED if not job.had_money:
            return DONE
        case JobState.FAILED | JobState.FINISHED:
            return Outcome("pending", waits_for="close")
        case JobState.CLOSED:
            ends = None if job.refundable_at is None else UnixMillis(job.refundable_at * 1000)
            return Outcome("pending", waits_for="refund_delay", until=ends)
    return Outcome("pending", waits_for="coordinator" if job.is_hosted else "host")
