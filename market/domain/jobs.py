"""What happens to a job next: its life as a function from (state, event) to (state, effects). Pure.

draft -> funded -> matched -> running -> finished -> closed -> refunded; failed from the first four,
closed from any before it, since others than us close jobs too.
Invariants: money is in escrow in every state but draft, refunded and a draft's failed; a state is
never left backwards, but matched -> funded when a lease lapsed before anybody worked; an event that
does not fit the state changes nothing, so every event may be told twice.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class JobState(StrEnum):
    """Where a job is in its life."""

    DRAFT = "draft"  # signed and admitted; its budget is not in escrow yet
    FUNDED = "funded"  # in escrow, waiting for leases
    MATCHED = "matched"  # every stage has its leases
    RUNNING = "running"  # its coordinator opened it
    FINISHED = "finished"  # the last seal is here
    CLOSED = "closed"  # closing on chain; the refund waits for its delay
    REFUNDED = "refunded"  # what was not earned went back
    FAILED = "failed"  # it will not train; what is in escrow is on its way back


@dataclass(frozen=True)
class Funded:
    """JobEscrow holds the budget."""


@dataclass(frozen=True)
class Leased:
    """All leases are reserved."""


@dataclass(frozen=True)
class LeaseLapsed:
    """A lease ended before anybody worked."""


@dataclass(frozen=True)
class Opened:
    """The coordinator posted its JobOpening."""


@dataclass(frozen=True)
class LastSealed:
    """A seal with `last` is stored."""


@dataclass(frozen=True)
class DeadlinePassed:
    """The deadline of the spec is over."""


@dataclass(frozen=True)
class FundingRefused:
    """The chain will never take the permit."""

    reason: str


@dataclass(frozen=True)
class CloseRequested:
    """JobEscrow is closing the job for good: nothing can keep it open any more."""


@dataclass(frozen=True)
class RefundPaid:
    """JobEscrow paid the rest back."""


Event: TypeAlias = (
    Funded
    | Leased
    | LeaseLapsed
    | Opened
    | LastSealed
    | DeadlinePassed
    | FundingRefused
    | CloseRequested
    | RefundPaid
)


@dataclass(frozen=True)
class FindLeases:
    """Let the next clearing round see the job."""


@dataclass(frozen=True)
class AskForHost:
    """Let a host claim the job."""


@dataclass(frozen=True)
class EndLeases:
    """Free the offers that worked for it."""


@dataclass(frozen=True)
class CloseEscrow:
    """Ask JobEscrow to close it."""


@dataclass(frozen=True)
class NoteFailure:
    """Tell the poster why."""

    reason: str


Effect: TypeAlias = FindLeases | AskForHost | EndLeases | CloseEscrow | NoteFailure

_NEVER_TRAINED = "the deadline passed before the job was done"


def advance(state: JobState, event: Event) -> tuple[JobState, tuple[Effect, ...]]:
    """Apply one event; an event that does not fit the state changes nothing."""
    match state, event:
        case JobState.DRAFT, Funded():
            return JobState.FUNDED, (FindLeases(),)
        case JobState.DRAFT, FundingRefused(reason):
            return JobState.FAILED, (NoteFailure(reason),)
        case JobState.DRAFT, DeadlinePassed():
            return JobState.FAILED, (NoteFailure(_NEVER_TRAINED),)
        case JobState.FUNDED, Leased():
            return JobState.MATCHED, (AskForHost(),)
        case JobState.MATCHED, LeaseLapsed():
            return JobState.FUNDED, (FindLeases(),)
        case JobState.MATCHED, Opened():
            return JobState.RUNNING, ()
        case JobState.RUNNING, LastSealed():
            return JobState.FINISHED, (EndLeases(), CloseEscrow())
        case ((JobState.FUNDED | JobState.MATCHED | JobState.RUNNING), DeadlinePassed()):
            return JobState.FAILED, (NoteFailure(_NEVER_TRAINED), EndLeases(), CloseEscrow())
        case JobState.FAILED, Funded():  # the permit was mined after we gave up
            return JobState.FAILED, (CloseEscrow(),)
        case JobState.CLOSED, RefundPaid():
            return JobState.REFUNDED, ()
        case ((JobState.CLOSED | JobState.REFUNDED), _):
            return state, ()
        case _, CloseRequested():  # a poster may close what has no seal yet in any state
            return JobState.CLOSED, (EndLeases(),)
    return state, ()


TAKES_MESSAGES = frozenset(
    {JobState.MATCHED, JobState.RUNNING, JobState.FINISHED, JobState.FAILED, JobState.CLOSED}
)
"""States in which the stream of kept items may grow: work that was sealed while the market was
away still counts; repeats are answered in every state."""

SETTLES = frozenset(
    {JobState.RUNNING, JobState.FINISHED, JobState.CLOSED, JobState.REFUNDED, JobState.FAILED}
)
"""States in which a seal may still be settled."""
