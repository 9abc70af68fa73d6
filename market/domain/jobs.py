"""What happens to a job next, what became of it, and of what its poster asked of it? Pure.

A job's life is a function from (state, event) to (state, effects): draft -> funded -> matched ->
running -> finished -> closed -> refunded; failed from the first four, closed from any before it,
since others than us close jobs too. Beside its state a job has what its poster wants of it:
running, paused, or cancelled for good. A cancelled job that is in escrow goes the usual way to its
end, only shorter: its coordinator, which opens it if nobody did, gives the `last` seal as soon as
it can, so money moves by a seal that everybody checks, and by nothing else. Invariants: money is in
escrow in every state but draft, refunded and a draft's failed; a state is never left backwards, but
matched -> funded when a lease lapsed before anybody worked, and failed -> funded when the permit of
a draft that was cancelled is mined after all; an event that does not fit the state changes nothing,
so every event may be told twice; what is cancelled stays so.

The state says where a job is in its life on the chain: a job that trained all its steps ends as
`refunded`. People ask another question, whether the model is there and what was paid; pages and
command line show an outcome, which follows from the state, the poster's wish and the sealed steps.

Nothing is remembered of an operation but what was asked, and whether a later wish came before the
job was as this one wanted it. Whoever asks how it is gets it from the job's own rows.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from contracts.terms.errors import Conflict
from contracts.terms.moments import UnixMillis, UnixSeconds

# ---------------------------------------------------------------------------------------- its life


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


# ------------------------------------------------ what became of it, in the words that people read


class Outcome(StrEnum):
    """How a job stands, for people."""

    UNFUNDED = "unfunded"
    WAITING = "waiting"
    STARTING = "starting"
    TRAINING = "training"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    SETTLING = "settling"
    FINISHED = "finished"
    STOPPED = "stopped"
    REFUNDED = "refunded"
    FAILED = "failed"


_SENTENCES = {
    Outcome.UNFUNDED: "waits for its budget to reach escrow",
    Outcome.WAITING: "waits for machines",
    Outcome.STARTING: "has its machines; training begins",
    Outcome.TRAINING: "is being trained",
    Outcome.PAUSED: "was paused by its poster",
    Outcome.CANCELLING: "was cancelled; what was done is being settled",
    Outcome.SETTLING: "is trained; the last audits and payments are being settled",
    Outcome.FINISHED: "is trained; what was not spent is on its way back",
    Outcome.STOPPED: "ended before its last step; what was done is paid",
    Outcome.REFUNDED: "was never trained; the budget went back",
    Outcome.FAILED: "failed; what was not earned goes back",
}
_REFUNDED = {
    Outcome.FINISHED: "is trained and paid; what was not spent went back to the poster",
    Outcome.STOPPED: "ended before its last step; what was done is paid, the rest went back",
}
"""What is said once the escrow is empty."""

_ENDED = (JobState.FINISHED, JobState.CLOSED, JobState.REFUNDED)
_BEFORE_WORK = {
    JobState.DRAFT: Outcome.UNFUNDED,
    JobState.FUNDED: Outcome.WAITING,
    JobState.MATCHED: Outcome.STARTING,
}


def outcome(state: JobState, wanted: Wanted, *, step: int, steps: int) -> Outcome:
    """How a job stands.

    Args:
        state: Where it is in its life.
        wanted: What its poster wants of it.
        step: The newest sealed step; steps beyond `steps` only settle audits.
        steps: Steps that were ordered.
    """
    if state == JobState.FAILED:
        return Outcome.FAILED
    if state in _ENDED:
        if step >= steps:
            return Outcome.FINISHED
        return Outcome.STOPPED if step else Outcome.REFUNDED
    if step >= steps:
        return Outcome.SETTLING
    if wanted == Wanted.CANCELLED:
        return Outcome.CANCELLING
    if wanted == Wanted.PAUSED:
        return Outcome.PAUSED
    return _BEFORE_WORK.get(state, Outcome.TRAINING)


def sentence(found: Outcome, state: JobState) -> str:
    """What an outcome says of `the job`, in the state that it follows from."""
    if state == JobState.REFUNDED and found in _REFUNDED:
        return _REFUNDED[found]
    return _SENTENCES[found]


def trained(step: int, steps: int) -> int:
    """Steps of the order that are sealed: what follows the last one is settling, not training."""
    return min(step, steps)


# ------------------------------------------------------------------- what became of what was asked


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
class OperationOutcome:
    """How far an operation is."""

    state: Literal["pending", "done", "failed"]
    waits_for: Literal["host", "coordinator", "close", "refund_delay"] | None = None
    until: UnixMillis | None = None
    error: Literal["superseded", "ended"] | None = None


DONE = OperationOutcome("done")


def operation_outcome(
    action: Action, wish: int, job: Standing, *, superseded: bool
) -> OperationOutcome:
    """What became of `action`, asked with the wish of this number.

    Args:
        action: What was asked.
        wish: Its number.
        job: How its job stands now.
        superseded: Whether a later wish came before this one was heeded.
    """
    if superseded:
        return OperationOutcome("failed", error="superseded")
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
            return OperationOutcome("pending", waits_for="host")
        case JobState.RUNNING:
            return OperationOutcome("pending", waits_for="coordinator" if job.is_hosted else "host")
    return OperationOutcome("failed", error="ended")


def _of_cancel(job: Standing) -> OperationOutcome:
    """A cancel is done when nothing is in escrow that nobody earned."""
    match job.state:
        case JobState.REFUNDED:
            return DONE
        case JobState.FAILED if not job.had_money:
            return DONE
        case JobState.FAILED | JobState.FINISHED:
            return OperationOutcome("pending", waits_for="close")
        case JobState.CLOSED:
            ends = None if job.refundable_at is None else UnixMillis(job.refundable_at * 1000)
            return OperationOutcome("pending", waits_for="refund_delay", until=ends)
    return OperationOutcome("pending", waits_for="coordinator" if job.is_hosted else "host")
