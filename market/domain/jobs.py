"""What happens to a job next: its life as a function from (state, event) to (state, effects). Pure.

draft -> funded -> matched -> running -> finished -> closed -> refunded; failed from the first four,
closed from any before it, since others than us close jobs too. Beside its state a job has what its
poster wants of it: running, paused, or cancelled for good. A cancelled job that is in escrow goes
the usual way to its end, only shorter: its coordinator, which opens it if nobody did, gives the
`last` seal as soon as it can, so money moves by a seal that everybody checks, and by nothing else.
Invariants: money is in escrow in every state but draft, refunded and a draft's failed; a state is
never left backwards, but matched -> funded when a lease lapsed before anybody worked, and failed ->
funded when the permit of a draft that was cancelled is mined after all; an event that does not fit
the state changes nothing, so every event may be told twice; what is cancelled stays so.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from contracts.terms.errors import Conflict


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


class Wanted(StrEnum):
    """What its poster wants of a job."""

    RUNNING = "running"
    PAUSED = "paused"  # no step is begun; members stay
    CANCELLED = "cancelled"  # what was done is paid, the rest goes back


class Action(StrEnum):
    """What a poster may ask of its job."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"


@dataclass(frozen=True)
class Funded:
    """JobEscrow holds the budget; `cancelled`: of a job that its poster wants no more of."""

    cancelled: bool = False


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
class Cancelled:
    """Its poster wants no more of it."""


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
    | Cancelled
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
_DROPPED = "cancelled by its poster"


def advance(state: JobState, event: Event) -> tuple[JobState, tuple[Effect, ...]]:
    """Apply one event; an event that does not fit the state changes nothing."""
    match state, event:
        case JobState.DRAFT, Funded():
            return JobState.FUNDED, (FindLeases(),)
        case JobState.DRAFT, FundingRefused(reason):
            return JobState.FAILED, (NoteFailure(reason),)
        case JobState.DRAFT, DeadlinePassed():
            return JobState.FAILED, (NoteFailure(_NEVER_TRAINED),)
        case JobState.DRAFT, Cancelled():
            return JobState.FAILED, (NoteFailure(_DROPPED),)
        case JobState.FUNDED, Cancelled():
            return JobState.FUNDED, (EndLeases(), AskForHost())
        case JobState.MATCHED, Cancelled():
            return JobState.MATCHED, (AskForHost(),)
        case JobState.FUNDED, Opened():  # a cancelled one, see `takes_messages`
            return JobState.RUNNING, ()
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
        case JobState.FAILED, Funded(cancelled=True):
            return JobState.FUNDED, (AskForHost(),)
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


def takes_messages(state: JobState, wanted: Wanted) -> bool:
    """Whether the stream may grow; a job that was cancelled unmatched is opened to be ended."""
    return state in TAKES_MESSAGES or (state, wanted) == (JobState.FUNDED, Wanted.CANCELLED)


def is_hosted(state: JobState, wanted: Wanted) -> bool:
    """Whether a host may run a job's coordinator. A paused one that is not open is not opened."""
    if state == JobState.FUNDED:
        return wanted == Wanted.CANCELLED
    if state == JobState.MATCHED:
        return wanted != Wanted.PAUSED
    return state in (JobState.RUNNING, JobState.FINISHED)


HAS_ENDED = frozenset({JobState.FINISHED, JobState.CLOSED, JobState.REFUNDED, JobState.FAILED})
"""States in which nobody works for a job any more."""

_LEADS_TO = {
    Action.PAUSE: Wanted.PAUSED,
    Action.RESUME: Wanted.RUNNING,
    Action.CANCEL: Wanted.CANCELLED,
}


def wanted_after(state: JobState, wanted: Wanted, action: Action) -> Wanted:
    """What a poster wants who asked for `action`; asking twice changes nothing.

    Raises:
        Conflict: the job is over, or was cancelled.
    """
    if state in HAS_ENDED:
        raise Conflict(f"a job that is {state.value} cannot be changed", state=state.value)
    if wanted == Wanted.CANCELLED and action != Action.CANCEL:
        raise Conflict("the job was cancelled, and that is for good", wanted=wanted.value)
    return _LEADS_TO[action]


SETTLES = frozenset(
    {JobState.RUNNING, JobState.FINISHED, JobState.CLOSED, JobState.REFUNDED, JobState.FAILED}
)
"""States in which a seal may still be settled."""
