"""Peers that are silent when they are asked, or gone before they are."""

import asyncio

from contracts.terms.ids import StepNumber
from tallystick.gym.plan import Plan
from training.worker.ports import Departure, Honest, Moment, Wanted


class Withheld(Honest):
    """Gives away nothing of sealed steps: who asks for that checks. The open step goes on.

    Two of these, one of them the neighbour that holds the same tensors, collude.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    async def serves(self, wanted: Wanted) -> bool:
        """See `Behaviour.serves`."""
        return not (wanted.is_sealed and self._plan.covers(wanted.at))


class Stalling(Honest):
    """Takes every call for something of a sealed step, and never answers: who asks that waits."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    async def serves(self, wanted: Wanted) -> bool:
        """See `Behaviour.serves`."""
        if wanted.is_sealed and self._plan.covers(wanted.at):
            await asyncio.get_running_loop().create_future()  # until the caller gives up
        return True


class Vanishing(Honest):
    """Gone when step `first` is closed, with units done and before they are committed to."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def departure(self, step: StepNumber, moment: Moment) -> Departure:
        """See `Behaviour.departure`."""
        return "vanish" if moment == "closed" and self._plan.covers(step) else "stay"


class Leaving(Honest):
    """Leaves in order once step `first` is sealed: what it did is earned, and not checked yet."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def departure(self, step: StepNumber, moment: Moment) -> Departure:
        """See `Behaviour.departure`."""
        return "leave" if moment == "sealed" and self._plan.covers(step) else "stay"
