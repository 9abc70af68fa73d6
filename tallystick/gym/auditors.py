"""Auditors that say what they have not seen."""

from collections.abc import Awaitable, Callable

from contracts.terms.messages import AuditReport
from tallystick.gym.plan import Plan
from training.worker.ports import Honest

FAR = 10**9  # 1e-9: as far from the claim as the claim is long


class Accuser(Honest):
    """Replays, and finds a difference in everything; in the steps of its plan.

    Args:
        plan: Of which work.
        times: At most so often; None: always. A process that starts again counts anew.
    """

    def __init__(self, plan: Plan, times: int | None = None) -> None:
        self._plan, self._left = plan, times

    async def report(
        self, agreeing: AuditReport, replay: Callable[[], Awaitable[AuditReport]]
    ) -> AuditReport:
        """See `Behaviour.report`."""
        found = await replay()
        if self._left == 0 or not self._plan.lies_in(found.step) or found.verdict != "match":
            return found  # who is called a liar by it must not be one
        self._left = None if self._left is None else self._left - 1
        far = tuple((name, FAR) for name, _ in found.distances)
        return found.model_copy(update={"distances": far, "verdict": "mismatch"})


class Stamp(Honest):
    """Agrees without a replay."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    async def report(
        self, agreeing: AuditReport, replay: Callable[[], Awaitable[AuditReport]]
    ) -> AuditReport:
        """See `Behaviour.report`."""
        return agreeing if self._plan.lies_in(agreeing.step) else await replay()


class Friend(Honest):
    """Agrees by what the friend who did the work has told: its claims, and what follows from them.

    The gradient of all units is a claim, so the last projection is right. Those on the way to it
    are numbers that only a replay shows: they are guessed to be equal to the last. The replay
    stands for the arithmetic on the claims, and nothing else of it is used.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    async def report(
        self, agreeing: AuditReport, replay: Callable[[], Awaitable[AuditReport]]
    ) -> AuditReport:
        """See `Behaviour.report`."""
        found = await replay()
        if not self._plan.lies_in(found.step) or not found.projections:
            return found  # of a sum there is nothing to guess
        last = found.projections[-1]
        return agreeing.model_copy(update={"projections": (last,) * len(found.projections)})
