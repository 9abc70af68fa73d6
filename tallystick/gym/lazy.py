"""Peers that are paid for units that they did not compute, or only in part.

All of them count units that are not in their gradient, show plausible tensors for them, and commit
to them like anybody else. They compute the first unit of a step, to have something to show, and
whatever their plan leaves honest. Leaves link: x is named as it came, tensors differ by unit.

| name | y of such a unit | dx | gradient of the peer-step |
|---|---|---|---|
| `copied` | the step's first one | the step's first one | mean of the units that were computed |
| `stale` | last step's first one | last step's first one | mixed with last step's, by units |
| `skipped` | x passed on | dy passed on | such units count as zero |
| `half` | computed | dy passed on | mean of the rest: half the tokens, scaled up |
| `junk` | any one | any one | an old one with signs at random |

On the last stage dx and loss are the first unit's; `junk` also answers at once when it is measured.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import Buffer

from contracts.terms.ids import StepNumber
from contracts.terms.items import ItemNumber
from tallystick.gym.around import Around, marked, shuffled
from tallystick.gym.plan import Plan
from training.averaging.slices import Slice
from training.worker.ports import Compute, Passed, Sent


@dataclass
class Samples:
    """The first honest results of a step."""

    y: Sent | None = None
    dx: Sent | None = None
    loss: int | None = None

    def note(self, passed: Passed) -> None:
        """Keep what is the first of its kind."""
        self.y = self.y or passed.y
        self.dx = self.dx or passed.dx
        self.loss = passed.loss if self.loss is None else self.loss


class Lazy(Around):
    """Counts what it did not compute; subclasses say what it shows of it."""

    def __init__(self, inner: Compute, plan: Plan, element_bytes: int) -> None:
        super().__init__(inner)
        self._plan, self._element_bytes = plan, element_bytes
        self._step = StepNumber(0)
        self._now, self._last = Samples(), Samples()
        self._gradient_before: tuple[Slice, ...] = ()
        self._forget_units()

    def _forget_units(self) -> None:
        self._counted: list[ItemNumber] = []
        self._shown: dict[ItemNumber, Passed] = {}  # forward passes whose backward is to come
        self._invented: set[ItemNumber] = set()  # counted, and not in the gradient

    # ------------------------------------------------------------------------ what others ask for

    def begin_step(self) -> None:
        """See `Compute.begin_step`."""
        self._forget_units()
        self._inner.begin_step()

    @property
    def units(self) -> tuple[ItemNumber, ...]:
        """See `Compute.units`: also those that are not in."""
        return tuple(self._counted)

    def forward(self, step: StepNumber, unit: ItemNumber, x: Buffer | None) -> Passed:
        """See `Compute.forward`."""
        if self._inner.is_last:
            return self.backward(step, unit, x, None)
        self._turn_to(step)
        if not self._lies(step, unit):
            return self._noted(self._inner.forward(step, unit, x))
        shown = Passed(self._inner.input_name(step, unit, x), y=self._output(step, unit, x))
        self._shown[unit] = shown
        return shown

    def keeps(self, unit: ItemNumber) -> bool:
        """See `Compute.keeps`."""
        return unit in self._shown or self._inner.keeps(unit)

    def forget(self, unit: ItemNumber) -> None:
        """See `Compute.forget`."""
        self._shown.pop(unit, None)
        self._inner.forget(unit)

    def backward(
        self, step: StepNumber, unit: ItemNumber, x: Buffer | None, dy: Buffer | None
    ) -> Passed:
        """See `Compute.backward`."""
        self._turn_to(step)
        shown = self._shown.pop(unit, None)
        if shown is None and (self._inner.keeps(unit) or not self._lies(step, unit)):
            passed = self._noted(self._inner.backward(step, unit, x, dy))
        else:
            passed = self._invent(step, unit, x, dy, shown)
            self._invented.add(unit)
        self._counted.append(unit)
        return passed

    def subtract(
        self, step: StepNumber, unit: ItemNumber, x: Buffer | None, dy: Buffer | None
    ) -> None:
        """See `Compute.subtract`."""
        if unit not in self._invented:
            self._inner.subtract(step, unit, x, dy)
        self._invented.discard(unit)
        self._counted.remove(unit)

    def gradient(self) -> tuple[Slice, ...]:
        """See `Compute.gradient`."""
        num_computed = len(self._counted) - len(self._invented)
        is_empty = not num_computed and bool(self._gradient_before)
        now = self._gradient_before if is_empty else self._inner.gradient()
        shown = self._mixed(now, num_computed, len(self._invented)) if self._invented else now
        self._gradient_before = now
        return shown

    # ------------------------------------------------------------------------ what is made of it

    def _turn_to(self, step: StepNumber) -> None:
        if step != self._step:
            self._last = self._now if self._has(self._now) else self._last
            self._step, self._now = step, Samples()

    def _noted(self, passed: Passed) -> Passed:
        self._now.note(passed)
        return passed

    def _lies(self, step: StepNumber, unit: ItemNumber) -> bool:
        return self._plan.lies_about(step, unit) and self._can_lie()

    def _can_lie(self) -> bool:
        """Whether there is something to show."""
        return self._has(self._samples())

    def _has(self, samples: Samples) -> bool:
        return (samples.loss if self._inner.is_last else samples.y) is not None

    def _samples(self) -> Samples:
        """What is shown."""
        return self._now

    def _invent(
        self,
        step: StepNumber,
        unit: ItemNumber,
        x: Buffer | None,
        dy: Buffer | None,
        shown: Passed | None,
    ) -> Passed:
        name = shown.x if shown else self._inner.input_name(step, unit, x)
        if self._inner.is_last:
            return Passed(name, dx=self._copy(self._samples().dx, unit), loss=self._samples().loss)
        return Passed(
            name,
            y=None if shown else self._output(step, unit, x),
            dx=None if self._inner.is_first else self._input_gradient(unit, dy),
        )

    def _output(self, step: StepNumber, unit: ItemNumber, x: Buffer | None) -> Sent | None:
        return self._copy(self._samples().y, unit)

    def _input_gradient(self, unit: ItemNumber, dy: Buffer | None) -> Sent | None:
        return self._copy(self._samples().dx, unit) or self._passed_on(dy, unit)

    @staticmethod
    def _copy(sample: Sent | None, unit: ItemNumber) -> Sent | None:
        return None if sample is None else marked(sample, sample.data, unit)

    def _passed_on(self, data: Buffer | None, unit: ItemNumber) -> Sent | None:
        """What came from the one side, for the other: boundary tensors have one form."""
        sample = self._now.y or self._last.y
        return None if data is None or sample is None else marked(sample, bytes(data), unit)

    def _mixed(
        self, now: Sequence[Slice], num_computed: int, num_invented: int
    ) -> tuple[Slice, ...]:
        """The gradient that is shown, of the mean of what was computed."""
        return tuple(now)

    def _blend(
        self, now: Sequence[Slice], other: Sequence[bytes], weights: tuple[int, int]
    ) -> tuple[Slice, ...]:
        if not weights[0]:
            return tuple(self._inner.mean([data], [1]) for data in other)
        pairs = zip(now, other, strict=True)
        return tuple(self._inner.mean([piece.data, data], weights) for piece, data in pairs)


class Copied(Lazy):
    """One unit of a step is computed, and shown again as the others."""


class Stale(Lazy):
    """Last step's results again."""

    def _can_lie(self) -> bool:
        return bool(self._gradient_before) and super()._can_lie()

    def _samples(self) -> Samples:
        return self._last

    def _mixed(
        self, now: Sequence[Slice], num_computed: int, num_invented: int
    ) -> tuple[Slice, ...]:
        before = [piece.data for piece in self._gradient_before]
        return self._blend(now, before, (num_computed, num_invented))


class Skipped(Lazy):
    """Nothing is done: what came in goes on, and counts as zero."""

    def _output(self, step: StepNumber, unit: ItemNumber, x: Buffer | None) -> Sent | None:
        return self._passed_on(x, unit) or super()._output(step, unit, x)

    def _input_gradient(self, unit: ItemNumber, dy: Buffer | None) -> Sent | None:
        return self._passed_on(dy, unit)

    def _mixed(
        self, now: Sequence[Slice], num_computed: int, num_invented: int
    ) -> tuple[Slice, ...]:
        nothing = [bytes(len(piece.data)) for piece in now]
        return self._blend(now, nothing, (num_computed, num_invented))


class Half(Lazy):
    """Forward passes are honest, backward passes are not done: what was done counts for both."""

    def _output(self, step: StepNumber, unit: ItemNumber, x: Buffer | None) -> Sent | None:
        passed = self._inner.forward(step, unit, x)
        self._inner.forget(unit)
        return passed.y

    def _input_gradient(self, unit: ItemNumber, dy: Buffer | None) -> Sent | None:
        return self._passed_on(dy, unit)


class Junk(Lazy):
    """After its first unit it computes nothing any more, and is the quickest of all."""

    def measure(self, seed: int) -> None:
        """See `Compute.measure`: nothing, as if it were infinitely fast."""

    def _can_lie(self) -> bool:
        if not self._gradient_before and self._inner.units:
            self._gradient_before = self._inner.gradient()
        return bool(self._gradient_before) and super()._can_lie()

    def _turn_to(self, step: StepNumber) -> None:
        self._step = step  # what was computed once is shown for ever

    def _mixed(
        self, now: Sequence[Slice], num_computed: int, num_invented: int
    ) -> tuple[Slice, ...]:
        chance = random.Random(f"{self._plan.seed} {self._step}")
        noise = [
            shuffled(piece.data, self._element_bytes, chance) for piece in self._gradient_before
        ]
        return self._blend(now, noise, (num_computed, num_invented))
