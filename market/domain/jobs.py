"""What happens to a job next, what became of it, and of what its poster asked of it? Pure.

A job's life is a function from (state, event) to (state, effects): draft -> funded -> matched ->
running -> finished -> closed; failed from the first four, closed from any but draft. Beside its
state a job has what its poster wants of it: running, paused, or cancelled for good. A job that is
cancelled before its coordinator opened it has failed; one that runs goes the usual way to its end,
only shorter: its coordinator gives the `last` seal as soon as it can. Invariants: a state is never
left backwards, but matched -> funded when a lease ended before anybody worked; an event that does
not fit the state changes nothing, so every event may be told twice; what is cancelled stays so.

The state says where a job is in its life. Its money goes ways of its own: seals pay whatever the
state is, and what is free is the poster's to take back (`market.service.money`). People ask another
question, whether the model is there; pages and command line show an outcome, which follows from the
state, the poster's wish and the sealed steps.

Nothing is remembered of an operation but what was asked, and whether a later wish came before the
job was as this one wanted it. Whoever asks how it is gets it from the job's own rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from contracts.terms.errors import Conflict
from contracts.terms.items import count
from contracts.terms.messages import BatchSpec, Seal
from market.bodies.jobs import JobAction, JobOutcome, OperationError, OperationState, OperationWait

# ---------------------------------------------------------------------------------------- its life


class JobState(StrEnum):
    """Where a job is in its life."""

    DRAFT = "draft"  # signed and admitted; its budget is not in escrow yet
    FUNDED = "funded"  # in escrow, waiting for leases
    MATCHED = "matched"  # every stage has its leases
    RUNNING = "running"  # its coordinator opened it
    FINISHED = "finished"  # the last seal is here
    CLOSED = "closed"  # its poster ended all work in the escrow
    FAILED = "failed"  # it will not train


class Wanted(StrEnum):
    """What its poster wants of a job."""

    RUNNING = "running"
    PAUSED = "paused"  # no step is begun; members stay
    CANCELLED = "cancelled"  # what was done is paid, nothing more is


@dataclass(frozen=True)
class FundingRefused:
    """The chain will never take the permit."""

    reason: str


@dataclass(frozen=True)
class CorpusRefused:
    """The bytes of its data are not what it names."""

    reason: str


Event: TypeAlias = (
    Literal[
        "funded",  # the escrow holds the budget
        "leased",  # all leases are reserved
        "lease_lapsed",  # one ended before anybody worked, and the job is short without it
        "opened",  # the coordinator posted its JobOpening
        "last_sealed",  # a seal with `last` is stored
        "deadline_passed",  # that of the spec
        "cancelled",  # its poster wants no more of it
        "closed",  # its poster closed it in the escrow
    ]
    | FundingRefused
    | CorpusRefused
)


@dataclass(frozen=True)
class NoteFailure:
    """Tell the poster why."""

    reason: str


Effect: TypeAlias = Literal["ask_for_host", "end_leases"] | NoteFailure

_NEVER_TRAINED = "the deadline passed before the job was done"
_DROPPED = "cancelled by its poster"


def advance(state: JobState, event: Event) -> tuple[JobState, tuple[Effect, ...]]:
    """Apply one event; an event that does not fit the state changes nothing."""
    match state, event:
        case JobState.DRAFT, "funded":
            return JobState.FUNDED, ()
        case JobState.DRAFT, FundingRefused(reason):
            return JobState.FAILED, (NoteFailure(reason),)
        case JobState.DRAFT, "deadline_passed":
            return JobState.FAILED, (NoteFailure(_NEVER_TRAINED),)
        case JobState.DRAFT, "cancelled":
            return JobState.FAILED, (NoteFailure(_DROPPED),)
        case ((JobState.FUNDED | JobState.MATCHED), "cancelled"):
            return JobState.FAILED, (NoteFailure(_DROPPED), "end_leases")
        case JobState.FUNDED, CorpusRefused(reason):
            return JobState.FAILED, (NoteFailure(reason), "end_leases")
        case JobState.FUNDED, "leased":
            return JobState.MATCHED, ("ask_for_host",)
        case JobState.MATCHED, "lease_lapsed":
            return JobState.FUNDED, ()
        case JobState.MATCHED, "opened":
            return JobState.RUNNING, ()
        case JobState.RUNNING, "last_sealed":
            return JobState.FINISHED, ("end_leases",)
        case ((JobState.FUNDED | JobState.MATCHED | JobState.RUNNING), "deadline_passed"):
            return JobState.FAILED, (NoteFailure(_NEVER_TRAINED), "end_leases")
        case ((JobState.DRAFT | JobState.CLOSED), _):
            return state, ()
        case _, "closed":
            return JobState.CLOSED, ("end_leases",)
    return state, ()


def takes_messages(state: JobState, *, is_open: bool) -> bool:
    """Whether the stream of kept items may grow; repeats are answered in every state.

    Work that was sealed while the market was away still counts, and seals pay after a close too.

    Args:
        state: Where the job is.
        is_open: Whether its coordinator has opened it.
    """
    if is_open:
        return state not in (JobState.DRAFT, JobState.FUNDED)
    return state == JobState.MATCHED


def is_hosted(state: JobState, wanted: Wanted, *, may_vest: bool = False) -> bool:
    """Whether a host may run a job's coordinator. A paused one that is not open is not opened.

    Args:
        state: Where the job is.
        wanted: What its poster wants of it.
        may_vest: Whether its coordinator has opened it, and its last seal is not here: what was
            earned until a close vests by seals to come.
    """
    if state == JobState.MATCHED:
        return wanted == Wanted.RUNNING
    if state == JobState.CLOSED:
        return may_vest
    return state in (JobState.RUNNING, JobState.FINISHED)


HAS_ENDED = frozenset({JobState.FINISHED, JobState.CLOSED, JobState.FAILED})
"""States in which nobody works for a job any more."""

_LEADS_TO: Mapping[JobAction, Wanted] = {
    "pause": Wanted.PAUSED,
    "resume": Wanted.RUNNING,
    "cancel": Wanted.CANCELLED,
}


def wanted_after(state: JobState, wanted: Wanted, action: JobAction) -> Wanted:
    """What a poster wants who asked for `action`; asking twice changes nothing.

    Raises:
        Conflict: the job is over, or was cancelled.
    """
    if state in HAS_ENDED:
        raise Conflict(f"a job that is {state.value} cannot be changed", state=state.value)
    if wanted == Wanted.CANCELLED and action != "cancel":
        raise Conflict("the job was cancelled, and that is for good", wanted=wanted.value)
    return _LEADS_TO[action]


# ------------------------------------------------ what became of it, in the words that people read


SENTENCES: Mapping[JobOutcome, str] = {
    "unfunded": "waits for its budget to reach escrow",
    "waiting": "waits for machines",
    "starting": "has its machines; training begins",
    "training": "is being trained",
    "paused": "was paused by its poster",
    "cancelling": "was cancelled; what was done is being settled",
    "settling": "is trained; the last audits are being settled",
    "finished": "is trained",
    "stopped": "ended before its last step; what was done is paid",
    "failed": "failed: nothing was trained, or not to the end",
}
"""What an outcome says of `the job`."""

_ENDED = (JobState.FINISHED, JobState.CLOSED)
_BEFORE_WORK: Mapping[JobState, JobOutcome] = {
    JobState.DRAFT: "unfunded",
    JobState.FUNDED: "waiting",
    JobState.MATCHED: "starting",
}


def outcome(state: JobState, wanted: Wanted, *, trained: int, steps: int) -> JobOutcome:
    """How a job stands.

    Args:
        state: Where it is in its life.
        wanted: What its poster wants of it.
        trained: Steps of the order whose work is sealed; seals beyond them settle audits.
        steps: Steps that were ordered.
    """
    if state == JobState.FAILED:
        return "failed"
    if state in _ENDED:
        if trained >= steps:
            return "finished"
        return "stopped" if trained else "failed"
    if trained >= steps:
        return "settling"
    if wanted == Wanted.CANCELLED:
        return "cancelling"
    if wanted == Wanted.PAUSED:
        return "paused"
    return _BEFORE_WORK.get(state, "training")


def trained_steps(seal: Seal, batch: BatchSpec) -> int:
    """Steps of the order whose items are sealed: fewer than seals, as a round may lack peers."""
    return min(batch.steps, (seal.next - count(seal.unsealed)) // batch.units_per_step)


# ------------------------------------------------------------------- what became of what was asked


@dataclass(frozen=True)
class Standing:
    """How a job stands, as far as operations on it go."""

    state: JobState
    wish: int  # number of the newest wish
    heeded: int  # of the newest one that the job is as wanted by
    is_hosted: bool  # a host runs its coordinator


@dataclass(frozen=True)
class OperationOutcome:
    """How far an operation is."""

    state: OperationState
    waits_for: OperationWait | None = None
    error: OperationError | None = None


DONE = OperationOutcome("done")


def operation_outcome(
    action: str, wish: int, job: Standing, *, superseded: bool
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
    if action == "cancel":
        return _of_cancel(job)
    if job.heeded >= wish or wish < job.wish:
        return DONE
    match job.state:
        case JobState.DRAFT | JobState.FUNDED:
            return DONE  # no round sees it any more, or again
        case JobState.MATCHED if action == "resume" or not job.is_hosted:
            return DONE
        case JobState.MATCHED:
            return OperationOutcome("pending", waits_for="host")
        case JobState.RUNNING:
            return OperationOutcome("pending", waits_for="coordinator" if job.is_hosted else "host")
    return OperationOutcome("failed", error="ended")


def _of_cancel(job: Standing) -> OperationOutcome:
    """A cancel is done when nobody works for the job any more."""
    if job.state in HAS_ENDED:
        return DONE
    return OperationOutcome("pending", waits_for="coordinator" if job.is_hosted else "host")
