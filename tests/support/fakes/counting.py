"""The fake of `port.Strategy`: a model of a few numbers that learns in microseconds, without torch.

Its gradient depends on the weights, the item and what the neighbouring groups sent, so an item
counted twice, left out, computed on an old state or from another tensor shows in the bytes; sums
over items are exact (multiples of 1/64 in fp32 as long as weights are), so they do not depend on
who computed what, nor on the order. Boundary tensors are whole numbers in fp32: a tag of group,
item and kind, so that no two tensors of a round are equal, and `WIDTH` small ones. It cuts a job
as `every_step` does, into stages without a tied head.
"""

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from typing_extensions import Buffer

from contracts.terms.digest import digest, formed_digest, formed_tensor, wire_bytes
from contracts.terms.errors import Malformed, NotFinite, NotFound, Refused, Unavailable, WrongBytes
from contracts.terms.ids import MAX_STAGES, ChunkIndex, Digest
from contracts.terms.messages import JobSpec, Seal
from contracts.terms.work import Leaf, LeafNames, Output, WorkClaim, leaf_names
from training.averaging.forms import Forms
from training.averaging.norms import norm_squared
from training.averaging.slices import slice_digest
from training.stages.torch_free import StateRoots
from training.strategies.every_step.rules import EveryStep
from training.strategies.port import (
    BASE,
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
    shard_name,
    validation_name,
)
from training.strategies.projections import Projector

NUM_WEIGHTS = 12
WIDTH = 4
_SHAPE = (1, 1, 1 + WIDTH)
_RANGE = 64  # elements of boundary tensors are below
_GRAIN = 64  # weights and gradients are whole multiples of 1 / _GRAIN after rounding

_NO_MOMENTS = digest("test moments", b"")

_Tensor = tuple[float, ...]
_NO_TENSOR: _Tensor = (0.0,) * WIDTH


def rows_of(name: str, num_tokens: int = 132) -> bytes:
    """Rows of the made-up corpus, as `UnitRows.read`: as many as in an item of `make_spec`."""
    kind, *_, number = name.split("/")  # both ends of a pipeline have the same rows
    return hashlib.shake_256(f"{kind}/{number}".encode()).digest(num_tokens)


def rows_for(spec: JobSpec) -> Callable[[str], bytes]:
    """The same for a job whose items are longer."""
    return partial(rows_of, num_tokens=math.prod(Forms(spec).rows_shape))


def elements_of(spec: JobSpec) -> Mapping[Bucket, int]:
    """How many elements each bucket has."""
    return dict.fromkeys(spec.chunking.all, NUM_WEIGHTS // spec.batch.chunks)


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
        return RoundNumber(int(kept[0].stem) if len(kept) > 1 else 0)


class CountingStrategy(EveryStep):
    """Satisfies `port.Strategy`; one of a job."""

    def __init__(self, spec: JobSpec, compute: Compute) -> None:
        self._spec, self.compute, self.forms = spec, compute, Forms(spec)
        self._state, self._round = CountingState(Group(0)), RoundNumber(0)
        self._forget()

    def first_state(self, group: Group) -> CountingState:
        """See `Strategy.first_state`."""
        if group >= self._spec.batch.stages:
            raise Refused(f"there is no group {group}")
        return CountingState(group)

    def start(self, state: State, round: RoundNumber) -> None:
        """See `Strategy.start`."""
        assert isinstance(state, CountingState)
        self._state, self._round = state, round
        self._forget()

    def start_ahead(self, items: Items) -> None:
        """See `Strategy.start_ahead`."""
        raise Refused("nobody counts ahead")

    def leaves(self) -> tuple[Leaf, ...]:
        """See `Strategy.leaves`."""
        return tuple(self._leaves.values())

    def _forget(self) -> None:
        self._leaves: dict[Item, Leaf] = {}
        self._sum = [0.0] * NUM_WEIGHTS

    @property
    def items(self) -> tuple[Item, ...]:
        """Items in the gradient, as they came."""
        return tuple(self._leaves)

    def recipe(self, group: Group) -> "CountingStrategy":
        """What says how rows are digested."""
        return self

    # ------------------------------------------------------------------------------------ items

    async def run(self, item: Item, direction: Direction, source: Source) -> Leaf | None:
        """See `Strategy.run`."""
        names, weights = self._names(item), self._state.weights
        rows = validation_name(item) if direction == "evaluate" else names.rows
        made = {names.rows: self.forms.digest("rows", await source.get(rows))} if names.rows else {}
        x = await self._read(names.x, source)
        if direction == "evaluate":
            if names.y:
                source.put(names.y, _output(self._state.group, item, x, weights))
                return None
            return self._leaf(item, {}, _loss(20, x, weights))
        if (direction == "whole") != (not names.dy):
            raise Refused(f"this group has no {direction} pass of an item")
        if item in self._leaves:
            raise Refused(f"item {item} is in the gradient already")
        dy = await self._read(names.dy if direction == "backward" else "", source)

        def work() -> Leaf | None:
            if names.y:
                made[names.y] = source.put(names.y, _output(self._state.group, item, x, weights))
            if direction == "forward":
                return None
            gradient = _gradient(self._state.group, item, x, dy, weights)
            self._sum = [a + b for a, b in zip(self._sum, gradient, strict=True)]
            if names.dx:
                made[names.dx] = source.put(
                    names.dx, _input_gradient(self._state.group, item, x, dy, weights)
                )
            for name in filter(None, (names.x, names.dy)):
                made[name] = source.digest(name)
            loss = None if names.y else _loss(10 + item / 1000, x, weights)
            self._leaves[item] = self._leaf(item, made, loss)
            return self._leaves[item]

        return await self.compute(work)

    async def _read(self, name: str, source: Source) -> _Tensor:
        if not name:
            return _NO_TENSOR
        with _blaming(source.digest(name)):
            return _tensor(await source.get(name))

    def _names(self, item: Item) -> LeafNames:
        return leaf_names(self._state.group, self._spec.batch.stages, item)

    def _leaf(self, item: Item, made: Mapping[str, Digest], loss: int | None) -> Leaf:
        return Leaf(
            item=item,
            base_round=self._round,
            given=False,
            tensors=tuple(sorted(made.items())),
            numbers=() if loss is None else (loss,),
        )

    # --------------------------------------------------------------------------------- exchange

    def keep(self, file: Path) -> None:
        """See `Strategy.keep`: what items take and make is on disk by digest."""

    def resume(self, file: Path) -> tuple[Leaf, ...]:
        """See `Strategy.resume`."""
        return ()

    def commit(self, items: Items) -> Draft:
        """See `Strategy.commit`."""
        if not items or items != set(self._leaves):
            raise Refused("the gradient is not of these items", items=sorted(self._leaves))
        leaves = tuple(self._leaves[item] for item in sorted(items))
        mean = [value / len(items) for value in self._sum]
        return Draft(leaves, iter(_pieces(mean, self._spec.batch.chunks)))

    def reduce(self, bucket: Bucket, shards: Iterator[Shard], weights: Weights) -> Piece:
        """See `Strategy.reduce`; of one group, as there is no tied fake."""
        given = [(_numbers(shard.data), weights[shard.claim][1]) for shard in shards]
        vectors, total = [vector for vector, _ in given], sum(weight for _, weight in given)
        if len({len(vector) for vector in vectors}) != 1:
            raise Malformed("shards of one bucket differ in length")
        if not all(math.isfinite(value) for vector in vectors for value in vector):
            raise NotFinite("a shard of a bucket is not finite")
        columns = zip(*vectors, strict=True)
        each = [weight for _, weight in given]
        sums = (sum(x * w for x, w in zip(column, each, strict=True)) for column in columns)
        return _piece(bucket[1], [value / total for value in sums])

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
        self._forget()
        return state

    def need_weights(self, file: Path, group: Group, base: Digest) -> None:
        """See `Strategy.need_weights`."""
        roots, weights = _read_weights(file)
        if roots.state != base or roots.weights != _weights_root(weights):
            raise WrongBytes("weights of another state", expected=base.hex())

    async def replay(
        self,
        claim: WorkClaim,
        leaves: Sequence[Leaf],
        source: Source,
        seed: bytes,
        comparison: Comparison,
    ) -> Replayed:
        """See `Strategy.replay`."""
        file: Path = await source.get(BASE)
        self.need_weights(file, claim.group, claim.base)
        roots, weights = _read_weights(file)
        again = CountingStrategy(self._spec, self.compute)
        state = CountingState(claim.group)
        state.weights, state.counter = weights, roots.counter
        again.start(state, RoundNumber(claim.round))
        projector, projections, is_computable = Projector(seed, NUM_WEIGHTS), list[int](), True
        for leaf in leaves:
            own = _Beside(source)
            try:
                direction: Direction = "backward" if again._names(leaf.item).dy else "whole"
                await again.run(leaf.item, direction, own)
            except (Malformed, NotFinite):
                is_computable = False
                projections.append(0)
                continue
            for name, data in ({} if leaf.given else own.made).items():
                claimed = await source.get(name)
                comparison.add(name.partition("/")[0], _tensor(claimed), _tensor(data))
            projections.append(projector.of(np.array(again._sum, np.float32)))
        shards = [await source.get(shard_name(output.bucket)) for output in claim.outputs]
        if is_computable:
            mean = _numbers(_bytes([value / len(leaves) for value in again._sum]))
            numbers = [number for shard in shards for number in _numbers(shard)]
            comparison.add_gradient({"weights": tuple(numbers)}, {"weights": mean})
        return Replayed(tuple(projections), is_computable)


class _Beside:
    """A source that keeps what a replay makes to itself."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.made: dict[str, bytes] = {}

    def digest(self, name: str) -> Digest:
        return self._source.digest(name)

    async def get(self, name: str) -> bytes:
        data: bytes = await self._source.get(name)
        return data

    def put(self, name: str, data: bytes) -> Digest:
        self.made[name] = data
        return formed_digest(data)


@contextmanager
def _blaming(name: Digest) -> Iterator[None]:
    try:
        yield
    except (Malformed, NotFinite) as error:
        error.data.setdefault("digest", name.hex())
        raise


def _output(group: int, item: int, x: _Tensor, weights: Sequence[float]) -> bytes:
    values = [3 * value + round(w) + item + 1 for value, w in zip(x, weights, strict=False)]
    return _formed(1 + item * MAX_STAGES + group, values)


def _input_gradient(
    group: int, item: int, x: _Tensor, dy: _Tensor, weights: Sequence[float]
) -> bytes:
    columns = zip(x, dy, weights, strict=False)
    values = [5 * given + value + round(w) + 7 * item for value, given, w in columns]
    return _formed(-1 - item * MAX_STAGES - group, values)


def _loss(offset: float, x: _Tensor, weights: Sequence[float]) -> int:
    return round(1e6 * (offset + sum(weights) / 100 + sum(x) / 1e4))


def _gradient(
    group: int, item: int, x: _Tensor, dy: _Tensor, weights: Sequence[float]
) -> list[float]:
    # Squared, so that no bucket looks like another one, of other items or of another group.
    weighed = (i * a + 7 * i * b for i, (a, b) in enumerate(zip(x, dy, strict=True), start=1))
    beside = sum(weighed) % 61 / _GRAIN
    return [
        ((item * 31 + i * (i + 2 * group) * 17) % 13 - 6) / 8 + round(weight) / _GRAIN + beside
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


def _formed(tag: int, values: Sequence[float]) -> bytes:
    data = _bytes([float(tag), *(float(value % _RANGE) for value in values)])
    return formed_tensor("float32", _SHAPE, data)


def _tensor(formed: bytes) -> _Tensor:
    data = wire_bytes(formed)
    if len(data) != 4 * (1 + WIDTH) or not formed.startswith(formed_tensor("float32", _SHAPE, b"")):
        raise Malformed(f"a tensor of {len(data)} bytes, or of another form")
    numbers = _numbers(data)
    if not all(map(math.isfinite, numbers)):
        raise NotFinite("a tensor is not finite")
    return numbers[1:]


def _bytes(numbers: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def _numbers(data: Buffer) -> tuple[float, ...]:
    view = memoryview(data).cast("B")
    return struct.unpack(f"<{len(view) // 4}f", view)


def _pieces(vector: Sequence[float], num_chunks: int) -> list[Piece]:
    size = NUM_WEIGHTS // num_chunks
    return [_piece(number, vector[number * size :][:size]) for number in range(num_chunks)]


def _piece(number: int, numbers: Sequence[float]) -> Piece:
    data = _bytes(numbers)
    output = Output(
        bucket=ChunkIndex(number), digest=slice_digest(data), norm_squared=norm_squared(data)
    )
    return output, data
