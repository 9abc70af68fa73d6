"""What became of a job, in the words that people read. Pure.

The state of `domain.jobs` says where a job is in its life on the chain: a job that trained all its
steps ends as `refunded`. People ask another question, whether the model is there and what was paid;
pages and command line show an outcome, which follows from the state, the poster's wish and the
sealed steps.
"""

from enum import StrEnum

from market.domain.jobs import JobState, Wanted


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
