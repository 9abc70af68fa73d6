"""The fake of `ports.Compute`: a model of a few numbers that learns in microseconds, without torch.

Its gradient depends on the weights, the step, the unit and what the neighbouring stages sent, so a
unit counted twice, left out, computed on an old state or from another tensor shows in the bytes;
sums over units are exact (multiples of 1/64 in fp32 as long as weights are), so they do not depend
on who computed what, nor on what was added and subtracted in between.
Boundary tensors are whole numbers in fp32: a tag of stage, unit and kind, so that no two tensors
of a step are equal, and `WIDTH` small ones.
"""

import json
import math
import os
import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from typing_extensions import Buffer

from contracts.terms.digest import digest, tensor_digest
from contracts.terms.errors import Malformed, NotFinite, NotFound, Refused, Unavailable, WrongBytes
from contracts.terms.ids import MAX_STAGES, ChunkIndex, Digest, StepNumber, UnitId
from contracts.terms.messages import NORM_SQUARED_SCALE
from training.averaging.slices import Slice, slice_digest
from training.stages.torch_free import StateRoots
from training.worker.ports import Numbers, Passed, ReplayedUnit, Rows, Sent
from training.worker.projections import Projector

NUM_WEIGHTS = 12
WIDTH = 4
_SHAPE = (1, 1, 1 + WIDTH)
_RANGE = 64  # elements of boundary tensors are below
_GRAIN = 64  # weights and gradients are whole multiples of 1 / _GRAIN after rounding

_NO_MOMENTS = digest("test moments", b"")

_Tensor = tuple[float, ...]
_NO_TENSOR: _Tensor = (0.0,) * WIDTH


class CountingCompute:
    """Satisfies `ports.Compute` with `NUM_WEIGHTS` numbers in `num_chunks` chunks."""

    def __init__(self, num_chunks: int, stage: int = 0, num_stages: int = 1) -> None:
        self._num_chunks = num_chunks
        self.stage, self._num_stages = stage, num_stages
        self.weights = [float(i + stage) for i in range(NUM_WEIGHTS)]
        self.counter = 0
        self.begin_step()

    @property
    def is_first(self) -> bool:
        """See `Compute.is_first`."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """See `Compute.is_last`."""
        return self.stage == self._num_stages - 1

    def num_elements(self, chunk: ChunkIndex) -> int:
        """See `Compute.num_elements`."""
        return NUM_WEIGHTS // self._num_chunks

    def begin_step(self) -> None:
        """See `Compute.begin_step`."""
        self._units: list[UnitId] = []
        self._sum = [0.0] * NUM_WEIGHTS
        self._kept: dict[UnitId, tuple[_Tensor, Digest]] = {}

    @property
    def units(self) -> tuple[UnitId, ...]:
        """See `Compute.units`."""
        return tuple(self._units)

    def forward(self, step: StepNumber, unit: UnitId, x: Buffer | None) -> Passed:
        """See `Compute.forward`."""
        if unit in self._units:
            raise Refused(f"unit {unit} is counted already")
        if self.is_last:
            return self.backward(step, unit, x, None)
        taken, name = self._input(x), self._x_digest(_rows(step, unit), x)
        self._kept[unit] = taken, name
        return Passed(name, y=self._output(unit, taken))

    def input_name(self, step: StepNumber, unit: UnitId, x: Buffer | None) -> Digest:
        """See `Compute.input_name`."""
        return self._x_digest(_rows(step, unit), x)

    def keeps(self, unit: UnitId) -> bool:
        """See `Compute.keeps`."""
        return unit in self._kept

    def forget(self, unit: UnitId) -> None:
        """See `Compute.forget`."""
        self._kept.pop(unit, None)

    def backward(
        self, step: StepNumber, unit: UnitId, x: Buffer | None, dy: Buffer | None
    ) -> Passed:
        """See `Compute.backward`."""
        if unit in self._units:
            raise Refused(f"unit {unit} is counted already")
        given, is_kept = self._output_gradient(dy), unit in self._kept
        if not is_kept:
            self._kept[unit] = self._input(x), self._x_digest(_rows(step, unit), x)
        taken, name = self._kept.pop(unit)
        self._add(self._gradient_of(step, unit, taken, given), 1)
        self._units.append(unit)
        return Passed(
            name,
            y=None if self.is_last or is_kept else self._output(unit, taken),
            dx=None if self.is_first else self._input_gradient(unit, taken, given),
            loss=self._loss(10 + unit / 1000, taken) if self.is_last else None,
        )

    def subtract(self, step: StepNumber, unit: UnitId, x: Buffer | None, dy: Buffer | None) -> None:
        """See `Compute.subtract`."""
        if unit not in self._units:
            raise Refused(f"unit {unit} is not counted")
        taken, given = self._input(x), self._output_gradient(dy)
        self._add(self._gradient_of(step, unit, taken, given), -1)
        self._units.remove(unit)

    def evaluate(self, group: UnitId, x: Buffer | None) -> Passed:
        """See `Compute.evaluate`."""
        taken, rows = self._input(x), self._x_digest(f"validation {group}".encode(), x)
        if self.is_last:
            return Passed(rows, loss=self._loss(20, taken))
        return Passed(rows, y=self._output(group, taken))

    def measure(self, seed: int) -> None:
        """See `Compute.measure`."""
        self._gradient_of(StepNumber(0), UnitId(seed), _NO_TENSOR, _NO_TENSOR)

    def _input(self, x: Buffer | None) -> _Tensor:
        if (x is None) != self.is_first:
            raise Refused("x comes with every unit but the first stage's")
        return _NO_TENSOR if x is None else _tensor(x)

    def _output_gradient(self, dy: Buffer | None) -> _Tensor:
        if (dy is None) != self.is_last:
            raise Refused("dy comes with every unit but the last stage's")
        return _NO_TENSOR if dy is None else _tensor(dy)

    def _x_digest(self, rows: bytes, x: Buffer | None) -> Digest:
        if x is None:
            return digest("test rows", rows)
        return tensor_digest("float32", _SHAPE, x)

    def _output(self, unit: UnitId, x: _Tensor) -> Sent:
        values = [3 * value + w + unit + 1 for value, w in zip(x, self._whole(), strict=True)]
        return _sent(1 + unit * MAX_STAGES + self.stage, values)

    def _input_gradient(self, unit: UnitId, x: _Tensor, dy: _Tensor) -> Sent:
        columns = zip(x, dy, self._whole(), strict=True)
        values = [5 * given + value + w + 7 * unit for value, given, w in columns]
        return _sent(-1 - unit * MAX_STAGES - self.stage, values)

    def _whole(self) -> list[int]:
        return [round(weight) for weight in self.weights[:WIDTH]]

    def _loss(self, offset: float, x: _Tensor) -> int:
        return round(1e6 * (offset + sum(self.weights) / 100 + sum(x) / 1e4))

    def _gradient_of(self, step: int, unit: int, x: _Tensor, dy: _Tensor) -> list[float]:
        weighed = (i * a + 7 * i * b for i, (a, b) in enumerate(zip(x, dy, strict=True), start=1))
        beside = sum(weighed) % 61 / _GRAIN
        return [
            ((step * 7 + unit * 31 + i * 17) % 13 - 6) / 8 + round(weight) / _GRAIN + beside
            for i, weight in enumerate(self.weights)
        ]

    @property
    def gradient_sum(self) -> tuple[float, ...]:
        """The sum over units so far."""
        return tuple(self._sum)

    def _add(self, gradient: Sequence[float], sign: int) -> None:
        self._sum = [a + sign * b for a, b in zip(self._sum, gradient, strict=True)]

    def gradient(self) -> tuple[Slice, ...]:
        """See `Compute.gradient`."""
        mean = [value / len(self._units) for value in self._sum]
        size = NUM_WEIGHTS // self._num_chunks
        return tuple(_slice(mean[at : at + size]) for at in range(0, NUM_WEIGHTS, size))

    def mean(
        self, parts: Sequence[Buffer], weights: Sequence[int], totals: Sequence[int] = ()
    ) -> Slice:
        """See `Compute.mean`; of one stage, as there is no tied fake."""
        vectors, total = [_numbers(part) for part in parts], totals[0] if totals else sum(weights)
        if len({len(vector) for vector in vectors}) != 1:
            raise Malformed("parts of one chunk differ in length")
        if not all(math.isfinite(value) for vector in vectors for value in vector):
            raise NotFinite("a part of a chunk is not finite")
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

    def roots(self) -> StateRoots:
        """See `Compute.roots`."""
        return StateRoots(_weights_root(self.weights), _NO_MOMENTS, self.counter)

    def replayer(self) -> "CountingReplayer":
        """See `Compute.replayer`."""
        return CountingReplayer(self._num_chunks, self.stage, self._num_stages)

    def save_weights(self, file: Path, roots: StateRoots) -> None:
        """See `Compute.save_weights`."""
        about = {
            "weights": self.weights,
            "weights_root": roots.weights.hex(),
            "moments_root": roots.moments.hex(),
            "counter": roots.counter,
        }
        _write(file, json.dumps(about))

    def roots_of_weights(self, file: Path) -> StateRoots:
        """See `Compute.roots_of_weights`."""
        return _read_weights(file)[0]

    def save(self, folder: Path, step: StepNumber) -> None:
        """See `Compute.save`."""
        state = {"weights": self.weights, "counter": self.counter}
        _write(_path(folder, step), json.dumps(state))
        for old in sorted(folder.glob("*.json"))[:-2]:
            old.unlink()

    def restore(self, folder: Path) -> StepNumber:
        """See `Compute.restore`."""
        kept = sorted(folder.glob("*.json"))
        if not kept:
            return StepNumber(0)
        self._load(kept[-1])
        return StepNumber(int(kept[-1].stem))

    def _load(self, file: Path) -> None:
        state = json.loads(file.read_text())
        self.weights, self.counter = state["weights"], state["counter"]
        self.begin_step()

    def checkpoint(self, folder: Path, step: StepNumber) -> Path:
        """See `Compute.checkpoint`."""
        if not _path(folder, step).exists():
            raise NotFound(f"no checkpoint of step {step}")
        return _path(folder, step)

    def adopt(self, folder: Path, step: StepNumber, file: Path, root: Digest | None) -> None:
        """See `Compute.adopt`."""
        before = (self.weights, self.counter)
        try:
            self._load(file)
        except (ValueError, KeyError) as error:
            raise Malformed(f"{file} is no checkpoint") from error
        if root is not None and self.roots().state != root:
            self.weights, self.counter = before
            raise WrongBytes("a checkpoint has another state root", expected=root.hex())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            os.replace(file, _path(folder, step))
        except OSError as error:
            raise Unavailable(f"cannot keep a checkpoint: {error}") from error

    def oldest_kept(self, folder: Path) -> StepNumber:
        """See `Compute.oldest_kept`."""
        kept = sorted(folder.glob("*.json"))
        return StepNumber(int(kept[0].stem) if len(kept) > 1 else 0)


class CountingReplayer:
    """Satisfies `ports.Replayer` for the stage that a `CountingCompute` of these numbers is."""

    def __init__(self, num_chunks: int, stage: int = 0, num_stages: int = 1) -> None:
        self._of = num_chunks, stage, num_stages

    def need_weights(self, weights: Path, state_root: Digest) -> None:
        """See `Replayer.need_weights`."""
        roots, numbers = _read_weights(weights)
        if roots.state != state_root or roots.weights != _weights_root(numbers):
            raise WrongBytes("weights of another state", expected=state_root.hex())

    def begin(
        self, step: StepNumber, weights: Path, state_root: Digest, seed: bytes
    ) -> "CountingReplay":
        """See `Replayer.begin`."""
        self.need_weights(weights, state_root)
        compute = CountingCompute(*self._of)
        compute.weights = _read_weights(weights)[1]
        return CountingReplay(compute, step, Projector(seed, NUM_WEIGHTS))


class CountingReplay:
    """Satisfies `ports.Replay`; made by `CountingReplayer.begin`."""

    def __init__(self, compute: CountingCompute, step: StepNumber, projector: Projector) -> None:
        self._compute, self._step, self._projector = compute, step, projector

    def unit(self, unit: UnitId, x: Buffer | None, dy: Buffer | None) -> ReplayedUnit:
        """See `Replay.unit`."""
        rows = self._rows(unit)
        try:
            passed = self._compute.backward(self._step, unit, x, dy)
        except (Malformed, NotFinite):
            return ReplayedUnit(unit, rows, is_finite=False)
        projection = self._projector.of(np.array(self._compute.gradient_sum, np.float32))
        return ReplayedUnit(unit, rows, passed.x, passed.y, passed.dx, passed.loss, projection)

    def _rows(self, unit: UnitId) -> Rows | None:
        if not (self._compute.is_first or self._compute.is_last):
            return None
        data = _rows(self._step, unit)
        return Rows(data, digest("test rows", data))

    def gradient(self) -> tuple[Slice, ...]:
        """See `Replay.gradient`."""
        return self._compute.gradient()

    def boundary(self, data: Buffer) -> Numbers:
        """See `Replay.boundary`."""
        _tensor(data)
        return Numbers(_SHAPE, data)

    def parameters(
        self, parts: Sequence[Buffer], norms_squared: Sequence[int] = ()
    ) -> dict[str, Numbers]:
        """See `Replay.parameters`."""
        vectors = [_numbers(part) for part in parts]
        numbers = [number for vector in vectors for number in vector]
        if len(numbers) != NUM_WEIGHTS:
            raise Malformed(f"a gradient of {len(numbers)} numbers")
        if not all(map(math.isfinite, numbers)):
            raise NotFinite("a gradient is not finite")
        if norms_squared and list(norms_squared) != [_slice(each).norm_squared for each in vectors]:
            raise WrongBytes("a part of a gradient is not as long as was said")
        return {"weights": Numbers((NUM_WEIGHTS,), _bytes(numbers))}


def _rows(step: StepNumber, unit: UnitId) -> bytes:
    return f"{step} {unit}".encode()


def _weights_root(weights: Sequence[float]) -> Digest:
    return digest("test weights", _bytes(weights))


def _read_weights(file: Path) -> tuple[StateRoots, list[float]]:
    try:
        about = json.loads(file.read_text())
        weights, moments = (
            Digest(bytes.fromhex(about[name])) for name in ("weights_root", "moments_root")
        )
        return StateRoots(weights, moments, about["counter"]), about["weights"]
    except FileNotFoundError as error:
        raise NotFound(f"no weights {file}") from error
    except (ValueError, KeyError, OSError) as error:
        raise Malformed(f"{file} holds no weights") from error


def _write(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text)
        os.replace(aside, path)
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error.strerror}") from error


def _path(folder: Path, step: StepNumber) -> Path:
    return folder / f"{step:08d}.json"


def _sent(tag: int, values: Sequence[float]) -> Sent:
    data = _bytes([float(tag), *(float(value % _RANGE) for value in values)])
    return Sent(data, tensor_digest("float32", _SHAPE, data), "float32", _SHAPE)


def _tensor(data: Buffer) -> _Tensor:
    if memoryview(data).nbytes != 4 * (1 + WIDTH):
        raise Malformed(f"a tensor of {memoryview(data).nbytes} bytes")
    numbers = _numbers(data)
    if not all(map(math.isfinite, numbers)):
        raise NotFinite("a tensor is not finite")
    return numbers[1:]


def _bytes(numbers: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def _numbers(data: Buffer) -> tuple[float, ...]:
    view = memoryview(data).cast("B")
    return struct.unpack(f"<{len(view) // 4}f", view)


def _slice(numbers: Sequence[float]) -> Slice:
    data = _bytes(numbers)
    square = sum(Fraction(value) ** 2 for value in _numbers(data))
    return Slice(data, slice_digest(data), round(square * NORM_SQUARED_SCALE))
