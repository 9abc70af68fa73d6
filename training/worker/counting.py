"""The fake of `ports.Compute`: a model of a few numbers that learns in microseconds, without torch.

Its gradient depends on the weights, the step and the unit, so a unit counted twice, left out or
computed on an old state shows in the bytes; sums over units are exact (multiples of 1/64 in fp32
as long as weights are), so they do not depend on who computed what.
"""

import json
import math
import os
import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from typing_extensions import Buffer

from contracts.terms.digest import digest
from contracts.terms.errors import Malformed
from contracts.terms.ids import ZERO_DIGEST, Digest, StepNumber, UnitId
from contracts.terms.messages import NORM_SQUARED_SCALE, UnitLeaf
from training.averaging.slices import Slice, slice_digest
from training.worker.ports import Roots

NUM_WEIGHTS = 12
_GRAIN = 64  # weights and gradients are whole multiples of 1 / _GRAIN after rounding


class CountingCompute:
    """Satisfies `ports.Compute` with `NUM_WEIGHTS` numbers in `num_chunks` chunks."""

    def __init__(self, num_chunks: int) -> None:
        self._num_chunks = num_chunks
        self.weights = [float(i) for i in range(NUM_WEIGHTS)]
        self.counter = 0
        self._units: list[UnitId] = []
        self._sum = [0.0] * NUM_WEIGHTS

    def begin_step(self) -> None:
        """See `Compute.begin_step`."""
        self._units, self._sum = [], [0.0] * NUM_WEIGHTS

    @property
    def units(self) -> tuple[UnitId, ...]:
        """See `Compute.units`."""
        return tuple(self._units)

    def add_unit(self, step: StepNumber, unit: UnitId) -> UnitLeaf:
        """See `Compute.add_unit`."""
        self._units.append(unit)
        gradient = [
            ((step * 7 + unit * 31 + i * 17) % 13 - 6) / 8 + round(weight) / _GRAIN
            for i, weight in enumerate(self.weights)
        ]
        self._sum = [a + b for a, b in zip(self._sum, gradient, strict=True)]
        loss = round(1e6 * (10 + sum(self.weights) / 100 + unit / 1000))
        rows = digest("test rows", f"{step} {unit}".encode())
        return UnitLeaf(unit=unit, x=rows, y=ZERO_DIGEST, dy=ZERO_DIGEST, dx=ZERO_DIGEST, loss=loss)

    def gradient(self) -> tuple[Slice, ...]:
        """See `Compute.gradient`."""
        mean = [value / len(self._units) for value in self._sum]
        size = NUM_WEIGHTS // self._num_chunks
        return tuple(_slice(mean[at : at + size]) for at in range(0, NUM_WEIGHTS, size))

    def mean(self, parts: Sequence[Buffer], weights: Sequence[int]) -> Slice:
        """See `Compute.mean`."""
        vectors, total = [_numbers(part) for part in parts], sum(weights)
        if len({len(vector) for vector in vectors}) != 1:
            raise Malformed("parts of one chunk differ in length")
        columns = zip(*vectors, strict=True)
        sums = (sum(x * w for x, w in zip(column, weights, strict=True)) for column in columns)
        return _slice([value / total for value in sums])

    def apply(self, chunks: Sequence[Buffer], sealed_norm: int) -> None:
        """See `Compute.apply`."""
        average = [value for chunk in chunks for value in _numbers(chunk)]
        if len(average) != NUM_WEIGHTS or sealed_norm <= 0:
            raise Malformed(f"an average of {len(average)} numbers")
        # Rounding to the grain hides the last bits of a mean, which differ with its order; the
        # offset keeps means of a few units, which are simple fractions, away from its edges.
        steps = (math.floor(value * _GRAIN + 0.413) / _GRAIN for value in average)
        self.weights = [w - s for w, s in zip(self.weights, steps, strict=True)]
        self.counter += 1
        self.begin_step()

    def roots(self) -> Roots:
        """See `Compute.roots`."""
        weights = digest("test weights", _bytes(self.weights))
        return Roots(Digest(digest("test state", weights + bytes([self.counter]))), weights)

    def save(self, folder: Path, step: StepNumber) -> None:
        """See `Compute.save`."""
        folder.mkdir(parents=True, exist_ok=True)
        aside = folder / f".{step}"
        aside.write_text(json.dumps({"weights": self.weights, "counter": self.counter}))
        os.replace(aside, folder / f"{step:08d}.json")
        for old in sorted(folder.glob("*.json"))[:-2]:
            old.unlink()

    def restore(self, folder: Path) -> StepNumber:
        """See `Compute.restore`."""
        kept = sorted(folder.glob("*.json"))
        if not kept:
            return StepNumber(0)
        state = json.loads(kept[-1].read_text())
        self.weights, self.counter = state["weights"], state["counter"]
        return StepNumber(int(kept[-1].stem))

    def oldest_kept(self, folder: Path) -> StepNumber:
        """See `Compute.oldest_kept`."""
        kept = sorted(folder.glob("*.json"))
        return StepNumber(int(kept[0].stem) if kept else 0)

    def validation_loss(self) -> int:
        """See `Compute.validation_loss`."""
        return round(1e6 * (20 + sum(self.weights) / 100))


def _bytes(numbers: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def _numbers(data: Buffer) -> tuple[float, ...]:
    view = memoryview(data).cast("B")
    return struct.unpack(f"<{len(view) // 4}f", view)


def _slice(numbers: Sequence[float]) -> Slice:
    data = _bytes(numbers)
    square = sum(Fraction(value) ** 2 for value in _numbers(data))
    return Slice(data, slice_digest(data), round(square * NORM_SQUARED_SCALE))
