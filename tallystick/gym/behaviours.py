"""Peers that are silent or gone, auditors that say what they have not seen, and two in one peer.

Two are, for example: cheat and withhold, junk and vanish, lie and leave.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from contracts.terms.work import Findings, WorkClaim
from tallystick.gym.plan import Plan
from training.strategies.port import Compute, RoundNumber, Strategy
from training.worker.ports import Behaviour, Departure, MakeStrategy, Moment, Wanted


class Planned(Behaviour):
    """Honest, but where its plan says otherwise."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan


# --------------------------------------------------------------------------------- silent and gone


class Withheld(Planned):
    """Gives away nothing of sealed steps: who asks for that checks. The open step goes on.

    Two of these, one of them the neighbour that holds the same tensors, collude.
    """

    async def serves(self, wanted: Wanted) -> bool:
        """See `Behaviour.serves`."""
        return not (wanted.is_sealed and self._plan.covers(wanted.at))


class Stalling(Planned):
    """Takes every call for something of a sealed step, and never answers: who asks that waits."""

    async def serves(self, wanted: Wanted) -> bool:
        """See `Behaviour.serves`."""
        if wanted.is_sealed and self._plan.covers(wanted.at):
            await asyncio.get_running_loop().create_future()  # until the caller gives up
        return True


class Vanishing(Planned):
    """Gone when a claim is asked for in step `first`, with items done and before it claims them."""

    def departure(self, round: RoundNumber, moment: Moment) -> Departure:
        """See `Behaviour.departure`."""
        return "vanish" if moment == "closed" and self._plan.covers(round) else "stay"


class Leaving(Planned):
    """Leaves in order once step `first` is sealed: what it did is earned, and not checked yet."""

    def departure(self, round: RoundNumber, moment: Moment) -> Departure:
        """See `Behaviour.departure`."""
        return "leave" if moment == "sealed" and self._plan.covers(round) else "stay"


# ---------------------------------------------------------------------------------------- auditors

FAR = 10**9  # 1e-9: as far from the claim as the claim is long


class Accuser(Planned):
    """Replays, and finds a difference in everything; in the steps of its plan.

    Args:
        plan: Of which work.
        times: At most so often; None: always. A process that starts again counts anew.
    """

    def __init__(self, plan: Plan, times: int | None = None) -> None:
        super().__init__(plan)
        self._left = times

    async def report(
        self, about: WorkClaim, agreeing: Findings, replay: Callable[[], Awaitable[Findings]]
    ) -> Findings:
        """See `Behaviour.report`."""
        found = await replay()
        if self._left == 0 or not self._plan.lies_in(about.round) or found.verdict != "match":
            return found  # who is called a liar by it must not be one
        self._left = None if self._left is None else self._left - 1
        far = (FAR,) * len(found.distances)
        return replace(found, distances=far, verdict="mismatch")


class Stamp(Planned):
    """Agrees without a replay."""

    async def report(
        self, about: WorkClaim, agreeing: Findings, replay: Callable[[], Awaitable[Findings]]
    ) -> Findings:
        """See `Behaviour.report`."""
        return agreeing if self._plan.lies_in(about.round) else await replay()


class Friend(Planned):
    """Agrees by what the friend who did the work has told: its claims, and what follows from them.

    The gradient of all items is a claim, so the last projection is right. Those on the way to it
    are numbers that only a replay shows: they are guessed to be equal to the last. The replay
    stands for the arithmetic on the claims, and nothing else of it is used.
    """

    async def report(
        self, about: WorkClaim, agreeing: Findings, replay: Callable[[], Awaitable[Findings]]
    ) -> Findings:
        """See `Behaviour.report`."""
        found = await replay()
        if not self._plan.lies_in(about.round) or not found.projections:
            return found  # of a bucket there is nothing to guess
        last = found.projections[-1]
        return replace(agreeing, projections=(last,) * len(found.projections))


# ---------------------------------------------------------------------------------- two behaviours


class Together(Behaviour):
    """What `first` makes of what `second` makes of the truth."""

    def __init__(self, first: Behaviour, second: Behaviour) -> None:
        self._first, self._second = first, second

    def arithmetic(self, make: MakeStrategy, compute: Compute) -> Strategy:
        """See `Behaviour.arithmetic`."""
        return self._first.arithmetic(partial(self._second.arithmetic, make), compute)

    async def serves(self, wanted: Wanted) -> bool:
        """See `Behaviour.serves`."""
        return await self._first.serves(wanted) and await self._second.serves(wanted)

    def departure(self, round: RoundNumber, moment: Moment) -> Departure:
        """See `Behaviour.departure`: the first that goes."""
        going = self._first.departure(round, moment)
        return self._second.departure(round, moment) if going == "stay" else going

    async def report(
        self, about: WorkClaim, agreeing: Findings, replay: Callable[[], Awaitable[Findings]]
    ) -> Findings:
        """See `Behaviour.report`."""
        return await self._first.report(
            about, agreeing, lambda: self._second.report(about, agreeing, replay)
        )
