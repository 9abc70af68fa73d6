"""Two behaviours of one peer: cheat and withhold, junk and vanish, lie and leave."""

from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from typing_extensions import Buffer

from contracts.terms.ids import StepNumber
from contracts.terms.messages import AuditReport
from tallystick.gym.around import Around
from training.averaging.slices import Slice
from training.worker.ports import Behaviour, Compute, Departure, Moment, Wanted


class _Other(Around):
    """A compute whose gradient and means are those of another behaviour."""

    def __init__(self, inner: Compute, behaviour: Behaviour, step: StepNumber) -> None:
        super().__init__(inner)
        self._behaviour, self._step = behaviour, step

    def gradient(self) -> tuple[Slice, ...]:
        """See `Compute.gradient`."""
        return self._behaviour.parts(self._inner, self._step)

    def mean(
        self, parts: Sequence[Buffer], weights: Sequence[int], totals: Sequence[int] = ()
    ) -> Slice:
        """See `Compute.mean`."""
        return self._behaviour.mean(self._inner, self._step, parts, weights, totals)


class Together:
    """Satisfies `Behaviour`: what `first` makes of what `second` makes of the truth."""

    def __init__(self, first: Behaviour, second: Behaviour) -> None:
        self._first, self._second = first, second

    def _other(self, compute: Compute, step: StepNumber) -> Compute:
        return cast(Compute, _Other(compute, self._second, step))

    def arithmetic(self, compute: Compute) -> Compute:
        """See `Behaviour.arithmetic`."""
        return self._first.arithmetic(self._second.arithmetic(compute))

    def parts(self, compute: Compute, step: StepNumber) -> tuple[Slice, ...]:
        """See `Behaviour.parts`."""
        return self._first.parts(self._other(compute, step), step)

    def mean(
        self,
        compute: Compute,
        step: StepNumber,
        parts: Sequence[Buffer],
        weights: Sequence[int],
        totals: Sequence[int],
    ) -> Slice:
        """See `Behaviour.mean`."""
        return self._first.mean(self._other(compute, step), step, parts, weights, totals)

    async def serves(self, wanted: Wanted) -> bool:
        """See `Behaviour.serves`."""
        return await self._first.serves(wanted) and await self._second.serves(wanted)

    def departure(self, step: StepNumber, moment: Moment) -> Departure:
        """See `Behaviour.departure`: the first that goes."""
        going = self._first.departure(step, moment)
        return self._second.departure(step, moment) if going == "stay" else going

    async def report(
        self, agreeing: AuditReport, replay: Callable[[], Awaitable[AuditReport]]
    ) -> AuditReport:
        """See `Behaviour.report`."""
        return await self._first.report(agreeing, lambda: self._second.report(agreeing, replay))
