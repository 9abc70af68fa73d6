"""The fake strategy: `every_step` with a model of a few numbers that learns in microseconds.

No torch, but where a claim is audited. A gradient depends on the weights, the item and what the
neighbouring stages sent, so an item counted twice, left out, computed on an old state or from
another tensor shows in the bytes; sums over items are exact (multiples of 1/64 in fp32 as long as
weights are), so they do not depend on who computed what.
Boundary tensors are whole numbers in fp32: a tag of stage, item and kind, so that no two tensors of
a job are equal, and `WIDTH` small ones. Rows are whatever their source gives: only digests of them
are used (`counting_rows`).
"""

import json
import math
import os
import struct
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import Buffer

from contracts.terms.digest import digest, formed_tensor
from contracts.terms.errors import Malformed, NotFinite, NotFound, Refused, Unavailable, WrongBytes
from contracts.terms.ids import MAX_STAGES, Digest, StageIndex
from contracts.terms.items import ItemNumber
from contracts.terms.messages import NORM_SQUARED_SCALE, JobSpec, Seal
from contracts.terms.work import Leaf, LeafNames, Output, WorkClaim, leaf_names
from tests.support.fakes.memory_source import at_once
from training.averaging.slices import slice_digest
from training.stages.torch_free import StateRoots
from training.strategies.every_step.projections import Projector
from training.strategies.every_step.rules import EveryStep
from training.strategies.port import (
    Bucket,
    Comparison,
    Compute,
    Direction,
    Draft,
    Group,
    Item,
    Items,
    Piece,
    Replayed,
    RoundNumber,
    Shard,
    Source,
    State,
    Weights,
    validation_name,
)

if TYPE_CHECKING:
    from training.strategies.every_step.replay import Gradient, Passed

NUM_WEIGHTS = 12
WIDTH = 4
_SHAPE = (1, 1, 1 + WIDTH)
_FORM = formed_tensor("float32", _SHAPE, b"")
_RANGE = 64  # elements of boundary tensors are below
_GRAIN = 64  # weights and gradients are whole multiples of 1 / _GRAIN after rounding

_NO_MOMENTS = digest("test moments", b"")

_Tensor = tuple[float, ...]
_NO_TENSOR: _Tensor = (0.0,) * WIDTH


def counting_rows(name: str) -> bytes:
    """Rows for a source."""
    return name.encode()


class CountingState:
    """Satisfies `port.State` with `NUM_WEIGHTS` numbers."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.weights = [float(i + group) for i in range(NUM_WEIGHTS)]
        self.counter = 0

    def roots(self) -> StateRoots:
        """See `State.roots`."""
        return StateRoots(_weights_root(self.weights), _NO_MOMENTS, self.counter)

    def measure(self, seed: int) -> None:
        """See `State.measure`."""
        _gradient_of(self.weights, seed, _NO_TENSOR, _NO_TENSOR)

    def save(self, folder: Path, round: RoundNumber) -> None:
        """See `State.save`."""
        state = {"weights": self.weights, "counter": self.counter}
        _write(_path(folder, round), json.dumps(state))
        for old in sorted(folder.glob("*.json"))[:-2]:
            old.unlink()

    def restore(self, folder: Path) -> RoundNumber:
        """See `State.restore`."""
        kept = sorted(folder.glob("*.json"))
        if not kept:
            return RoundNumber(0)
        self._load(kept[-1])
        return RoundNumber(int(kept[-1].stem))

    def _load(self, file: Path) -> None:
        state = json.loads(file.read_text())
        self.weights, self.counter = state["weights"], state["counter"]

    def checkpoint(self, folder: Path, round: RoundNumber) -> Path:
        """See `State.checkpoint`."""
        if not _path(folder, round).exists():
            raise NotFound(f"no checkpoint of round {round}")
        return _path(folder, round)

    def adopt(self, folder: Path, round: RoundNumber, file: Path, root: Digest | None) -> None:
        """See `State.adopt`."""
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
            os.replace(file, _path(folder, round))
        except OSError as error:
            raise Unavailable(f"cannot keep a checkpoint: {error}") from error

    def oldest_kept(self, folder: Path) -> RoundNumber:
        """See `State.oldest_kept`."""
        kept = sorted(folder.glob("*.json"))
        return RoundNumber(int(kept[0].stem) if kept else 0)

    def save_weights(self, file: Path, roots: StateRoots) -> None:
        """See `State.save_weights`."""
        about = {
            "weights": self.weights,
            "weights_root": roots.weights.hex(),
            "moments_root": roots.moments.hex(),
            "counter": roots.counter,
        }
        _write(file, json.dumps(about))

    def roots_of_weights(self, file: Path) -> StateRoots:
        """See `State.roots_of_weights`."""
        return _read_weights(file)[0]


class CountingStage:
    """One stage at some weights, and the gradient of the items so far."""

    def __init__(self, group: Group, num_stages: int, weights: Sequence[float]) -> None:
        self.group, self.num_stages, self.weights = group, num_stages, weights
        self.items: list[ItemNumber] = []
        self.sum = [0.0] * NUM_WEIGHTS

    def names(self, item: ItemNumber) -> LeafNames:
        """What leaves call the tensors of an item."""
        return leaf_names(self.group, self.num_stages, item)

    def output(self, item: int, x: _Tensor) -> bytes:
        """The y of an item."""
        values = [3 * value + w + item + 1 for value, w in zip(x, self._whole(), strict=True)]
        return _sent(1 + item * MAX_STAGES + self.group, values)

    def add(self, item: ItemNumber, x: _Tensor, dy: _Tensor) -> bytes:
        """Count an item; its dx."""
        gradient = _gradient_of(self.weights, item, x, dy)
        self.sum = [a + b for a, b in zip(self.sum, gradient, strict=True)]
        self.items.append(item)
        columns = zip(x, dy, self._whole(), strict=True)
        values = [5 * given + value + w + 7 * item for value, given, w in columns]
        return _sent(-1 - item * MAX_STAGES - self.group, values)

    def _whole(self) -> list[int]:
        return [round(weight) for weight in self.weights[:WIDTH]]

    def loss(self, offset: float, x: _Tensor) -> int:
        """A loss, 1e-6."""
        return round(1e6 * (offset + sum(self.weights) / 100 + sum(x) / 1e4))

    def buckets(self, num_buckets: int) -> Iterator[bytes]:
        """The mean gradient, cut."""
        size = NUM_WEIGHTS // num_buckets
        for at in range(0, NUM_WEIGHTS, size):
            yield _bytes([value / len(self.items) for value in self.sum[at : at + size]])


class CountingStrategy(EveryStep):
    """Satisfies `port.Strategy`; of a job without a tied head, and without codecs."""

    def __init__(self, spec: JobSpec, compute: Compute = at_once) -> None:
        self.spec, self.compute = spec, compute
        self.round = RoundNumber(0)

    def first_state(self, group: Group) -> CountingState:
        """See `Strategy.first_state`."""
        return CountingState(group)

    def start(self, state: State, round: RoundNumber) -> None:
        """See `Strategy.start`."""
        assert isinstance(state, CountingState)
        self.state, self.round = state, round
        self.stage = CountingStage(state.group, self.spec.batch.stages, state.weights)
        self.forwards: dict[ItemNumber, tuple[_Tensor, dict[str, Digest]]] = {}
        self.leaves: dict[ItemNumber, Leaf] = {}

    async def run(self, item: Item, direction: Direction, source: Source) -> Leaf | None:
        """See `Strategy.run`."""
        names, is_evaluation = self.stage.names(item), direction == "evaluate"
        if not is_evaluation and (direction == "whole") != (not names.dy):
            raise Refused(f"this stage has no {direction} pass of an item")
        if item in self.leaves and not is_evaluation:
            raise Refused(f"item {item} is in the gradient already", unit=item)
        is_kept = direction == "backward" and self._keeps(item, names, source)
        rows = x = dy = None
        if names.rows and not is_kept:
            rows = await source.get(validation_name(item) if is_evaluation else names.rows)
        if names.x and not is_kept:
            x = await source.get(names.x)
        if direction == "backward":
            dy = await source.get(names.dy)
        if is_evaluation:
            return await self.compute(lambda: self._evaluated(item, names, x, source))

        def work() -> Leaf | None:
            if not is_kept:
                self._forward(item, names, rows, x, source)
            return None if direction == "forward" else self._backward(item, names, dy, source)

        return await self.compute(work)

    def _keeps(self, item: Item, names: LeafNames, source: Source) -> bool:
        if item not in self.forwards:
            return False
        return not names.x or self.forwards[item][1][names.x] == source.digest(names.x)

    def _forward(
        self, item: Item, names: LeafNames, rows: bytes | None, x: bytes | None, source: Source
    ) -> None:
        taken, made = _taken(names.x, x, source), dict[str, Digest]()
        if rows is not None:
            made[names.rows] = digest("test rows", rows)
        if x is not None:
            made[names.x] = source.digest(names.x)
        if names.y:
            made[names.y] = source.put(names.y, self.stage.output(item, taken))
        self.forwards[item] = taken, made

    def _backward(self, item: Item, names: LeafNames, dy: bytes | None, source: Source) -> Leaf:
        given = _taken(names.dy, dy, source)
        taken, made = self.forwards.pop(item)
        if dy is not None:
            made[names.dy] = source.digest(names.dy)
        dx = self.stage.add(item, taken, given)
        if names.dx:
            made[names.dx] = source.put(names.dx, dx)
        loss = () if names.y else (self.stage.loss(10 + item / 1000, taken),)
        self.leaves[item] = self._leaf(item, made, loss)
        return self.leaves[item]

    def _evaluated(
        self, item: Item, names: LeafNames, x: bytes | None, source: Source
    ) -> Leaf | None:
        taken = _taken(names.x, x, source)
        if not names.y:
            return self._leaf(item, {}, (self.stage.loss(20, taken),))
        source.put(names.y, self.stage.output(item, taken))
        return None

    def _leaf(self, item: Item, made: dict[str, Digest], numbers: tuple[int, ...]) -> Leaf:
        tensors = tuple(sorted(made.items()))
        return Leaf(item=item, base_round=self.round, given=False, tensors=tensors, numbers=numbers)

    def commit(self, items: Items) -> Draft:
        """See `Strategy.commit`."""
        if not items or items != set(self.leaves):
            raise Refused("the gradient is not of these items", items=sorted(self.leaves))
        own = self.spec.chunking.of_stage(self.state.group)
        shards = zip(own, self.stage.buckets(len(own)), strict=True)
        leaves = tuple(self.leaves[item] for item in sorted(items))
        return Draft(leaves, (_piece(bucket, data) for bucket, data in shards))

    def reduce(self, bucket: Bucket, shards: Iterator[Shard], weights: Weights) -> Piece:
        """See `Strategy.reduce`."""
        given = [(shard.claim, _numbers(shard.data)) for shard in shards]
        if [claim for claim, _ in given] != list(weights):
            raise Refused("not the shards of these claims")
        if len({len(vector) for _, vector in given}) != 1:
            raise Malformed("shards of one bucket differ in length")
        if not all(math.isfinite(value) for _, vector in given for value in vector):
            raise NotFinite("a shard of a bucket is not finite")
        counts = [weight for _, weight in weights.values()]
        columns = zip(*(vector for _, vector in given), strict=True)
        sums = (sum(x * w for x, w in zip(column, counts, strict=True)) for column in columns)
        return _piece(bucket, _bytes([value / sum(counts) for value in sums]))

    def apply(self, state: State, buckets: Iterator[Buffer], seal: Seal) -> CountingState:
        """See `Strategy.apply`."""
        assert isinstance(state, CountingState)
        average = [value for bucket in buckets for value in _numbers(bucket)]
        if len(average) != NUM_WEIGHTS or seal.gradient_norm <= 0:
            raise Malformed(f"an average of {len(average)} numbers")
        # Rounding to the grain hides the last bits of a mean, which differ with its order; the
        # offset keeps means of a few items, which are simple fractions, away from its edges.
        steps = (math.floor(value * _GRAIN + 0.413) / _GRAIN for value in average)
        state.weights = [w - s for w, s in zip(state.weights, steps, strict=True)]
        state.counter += 1
        return state

    async def replay(
        self,
        claim: WorkClaim,
        leaves: Sequence[Leaf],
        source: Source,
        seed: bytes,
        comparison: Comparison,
    ) -> Replayed:
        """See `Strategy.replay`."""
        from training.strategies.every_step.replay import replay_claim  # torch: who audits has it

        def begin(weights: Path) -> CountingAgain:
            return CountingAgain(self.spec, claim, seed, weights)

        return await replay_claim(begin, self.compute, claim, leaves, source, comparison)


class CountingAgain:
    """Satisfies `replay.StageAgain`."""

    def __init__(self, spec: JobSpec, claim: WorkClaim, seed: bytes, weights: Path) -> None:
        roots, numbers = _read_weights(weights)
        if roots.state != claim.base or roots.weights != _weights_root(numbers):
            raise WrongBytes("weights of another state", expected=claim.base.hex())
        self._stage = CountingStage(StageIndex(claim.group), spec.batch.stages, numbers)
        self._projector = Projector(seed, NUM_WEIGHTS)

    def names(self, item: ItemNumber) -> LeafNames:
        """See `StageAgain.names`."""
        return self._stage.names(item)

    def item(self, leaf: Leaf, rows: bytes | None, x: bytes | None, dy: bytes | None) -> "Passed":
        """See `StageAgain.item`."""
        from training.strategies.every_step.replay import Passed

        stage, names = self._stage, self.names(leaf.item)
        try:
            taken = _NO_TENSOR if x is None else _tensor(x)
            dx = stage.add(leaf.item, taken, _NO_TENSOR if dy is None else _tensor(dy))
        except (Malformed, NotFinite):
            return Passed(is_computable=False)
        return Passed(
            y=self.read(stage.output(leaf.item, taken)) if names.y else None,
            dx=self.read(dx) if names.dx else None,
            loss=None if names.y else stage.loss(10 + leaf.item / 1000, taken),
            projection=self._projector.of(np.array(stage.sum, np.float32)),
        )

    def read(self, data: bytes | None) -> Any:
        """See `StageAgain.read`."""
        import torch

        try:
            return torch.tensor(_tensor(data or b""))
        except (Malformed, NotFinite):
            return torch.full((WIDTH,), torch.nan)

    def gradients(self, claim: WorkClaim, shards: Sequence[bytes]) -> tuple["Gradient", "Gradient"]:
        """See `StageAgain.gradients`."""
        import torch

        claimed = [number for shard in shards for number in _numbers(shard)]
        said = [output.norm_squared for output in claim.outputs]
        is_readable = len(claimed) == NUM_WEIGHTS and all(map(math.isfinite, claimed))
        if not is_readable or said != [_norm_squared(shard) for shard in shards]:
            claimed = [math.nan] * NUM_WEIGHTS
        own = [number for data in self._stage.buckets(1) for number in _numbers(data)]
        return {"weights": torch.tensor(claimed)}, {"weights": torch.tensor(own)}


def _gradient_of(weights: Sequence[float], item: int, x: _Tensor, dy: _Tensor) -> list[float]:
    weighed = (i * a + 7 * i * b for i, (a, b) in enumerate(zip(x, dy, strict=True), start=1))
    beside = sum(weighed) % 61 / _GRAIN
    return [
        ((item * 31 + i * 17) % 13 - 6) / 8 + round(weight) / _GRAIN + beside
        for i, weight in enumerate(weights)
    ]


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


def _path(folder: Path, round: RoundNumber) -> Path:
    return folder / f"{round:08d}.json"


def _sent(tag: int, values: Sequence[float]) -> bytes:
    return _FORM + _bytes([float(tag), *(float(value % _RANGE) for value in values)])


def _taken(name: str, data: bytes | None, source: Source) -> _Tensor:
    """The numbers of a tensor that came in; what is wrong with it names its digest."""
    try:
        return _NO_TENSOR if data is None else _tensor(data)
    except (Malformed, NotFinite) as error:
        error.data.setdefault("digest", source.digest(name).hex())
        raise


def _tensor(data: bytes) -> _Tensor:
    if len(data) != len(_FORM) + 4 * (1 + WIDTH) or not data.startswith(_FORM):
        raise Malformed(f"a tensor of {len(data)} bytes")
    numbers = _numbers(data[len(_FORM) :])
    if not all(map(math.isfinite, numbers)):
        raise NotFinite("a tensor is not finite")
    return numbers[1:]


def _bytes(numbers: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def _numbers(data: Buffer) -> tuple[float, ...]:
    view = memoryview(data).cast("B")
    return struct.unpack(f"<{len(view) // 4}f", view)


def _norm_squared(data: bytes) -> int:
    return round(sum(Fraction(value) ** 2 for value in _numbers(data)) * NORM_SQUARED_SCALE)


def _piece(bucket: Bucket, data: bytes) -> Piece:
    norm = _norm_squared(data)
    return Output(bucket=bucket[1], digest=slice_digest(data), norm_squared=norm), data
