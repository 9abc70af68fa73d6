"""What a poster asks of its job while it lasts, and what became of that."""

from typing import Annotated, Literal

from annotated_types import Len

from contracts.terms.ids import DigestField, Hex, JobIdField
from contracts.terms.moments import UnixMillisField
from market.bodies.base import Body, Money
from market.bodies.jobs import JobState, JobWanted

JobAction = Literal["pause", "resume", "cancel"]
OperationState = Literal["pending", "done", "failed"]
OperationWait = Literal["host", "coordinator", "close", "refund_delay"]
"""What a pending operation waits for: a host that lets go of the job, or claims it; the job's
coordinator (a pause: the end of the step in work; a cancel: the last seal); the close on chain; the
end of the response window and of the refund delay."""
OperationError = Literal["superseded", "ended"]
"""Another wish came first; or the job ended first."""


class AskJob(Body):
    """`signature` by the poster's wallet over `wish_digest`; `at` grows from wish to wish.

    Without one the whole request is signed by the poster's wallet (`requests`).
    """

    at: UnixMillisField
    signature: Annotated[bytes, Len(65, 65), Hex()] | None = None


class OperationResult(Body):
    """How the job stood when the operation was looked at."""

    job_state: JobState
    wanted: JobWanted
    refunded: Money


class OperationView(Body):
    """What was asked of a job, and how far it is."""

    operation: DigestField
    job: JobIdField
    action: JobAction
    asked_at: UnixMillisField
    state: OperationState
    waits_for: OperationWait | None  # while it is pending
    until: UnixMillisField | None  # when that ends at the earliest, where it is known
    result: OperationResult | None  # once it is done
    error: OperationError | None  # once it has failed
