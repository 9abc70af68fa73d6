"""What lies are made of: a strategy that differs in part, and bytes that pass as new.

`Around` is another strategy in all but what a subclass overrides. It hands on by name, so that it
stays whole when the port grows.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from contracts.terms.digest import wire_bytes
from contracts.terms.ids import Digest
from contracts.terms.items import ItemNumber
from contracts.terms.messages import GradientCodecName
from contracts.terms.work import Output
from tallystick.gym.plan import Plan
from training.averaging.norms import norm_squared
from training.averaging.slices import slice_digest
from training.strategies.port import Compute, Group, Piece, RoundNumber, Source, State, Strategy
from training.worker.ports import Behaviour, MakeStrategy

T = TypeVar("T")
Numbers: TypeAlias = NDArray[np.float32]


class Around:
    """Satisfies `Strategy` by the strategy that it makes."""

    def __init__(self, make: MakeStrategy, compute: Compute) -> None:
        self._compute = compute
        self._round, self._group = RoundNumber(0), Group(0)
        self._inner = make(self.computed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def computed(self, function: Callable[[], T]) -> T:
        """What the strategy inside computes by; see `Compute`."""
        return await self._compute(function)

    def start(self, state: State, round: RoundNumber) -> None:
        """See `Strategy.start`."""
        self._round, self._group = round, state.group
        self._inner.start(state, round)


class Liar(Around):
    """Lies by a plan, in a job whose gradients travel under a codec."""

    def __init__(
        self,
        make: MakeStrategy,
        compute: Compute,
        plan: Plan,
        codec: GradientCodecName,
        what: Any = None,
    ) -> None:
        """`what`: the argument of a subclass (a `Forge`, a `Spoil`, a codec)."""
        super().__init__(make, compute)
        self._plan, self._codec, self._what = plan, codec, what


class Computing(Behaviour):
    """Honest in all but its arithmetic."""

    def __init__(self, around: Callable[[MakeStrategy, Compute], Around]) -> None:
        self._around = around

    def arithmetic(self, make: MakeStrategy, compute: Compute) -> Strategy:
        """See `Behaviour.arithmetic`."""
        return cast(Strategy, self._around(make, compute))


class Putting:
    """A source that keeps other bytes of the tensors that were made."""

    def __init__(self, inner: Source, change: Callable[[str, bytes], bytes]) -> None:
        self._inner, self._change = inner, change

    def digest(self, name: str) -> Digest:
        """See `Source.digest`."""
        return self._inner.digest(name)

    async def get(self, name: str) -> Any:
        """See `Source.get`."""
        return await self._inner.get(name)

    def put(self, name: str, data: bytes) -> Digest:
        """See `Source.put`."""
        return self._inner.put(name, self._change(name, data))


def reformed(formed: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """A boundary tensor of the same form, with other wire bytes."""
    data = bytes(wire_bytes(formed))
    return formed[: len(formed) - len(data)] + change(data)


def marked(formed: bytes, item: ItemNumber) -> bytes:
    """A tensor that was sent before, changed in the lowest bits of its last elements.

    Equal bytes for two items have one digest, which shows at once: a liar who wants to last makes
    each copy differ.
    """

    def mark(data: bytes) -> bytes:
        changed, number = bytearray(data), int(item) + 1
        changed[-4] ^= number & 0xFF
        changed[-8 % len(changed)] ^= number >> 8 & 0xFF
        return bytes(changed)

    return reformed(formed, mark)


def numbers_of(data: bytes, codec: GradientCodecName) -> Numbers:
    """The numbers that a shard or a bucket spells, fp32."""
    if codec == "bfloat16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, "<f2" if codec == "float16" else "<f4").astype("<f4")


def remade(piece: Piece, codec: GradientCodecName, change: Callable[[Numbers], Numbers]) -> Piece:
    """A shard or a bucket of other numbers, named as it is; raises NotFinite.

    What bfloat16 cannot hold is cut off, not rounded.
    """
    output, data = piece
    numbers = change(numbers_of(data, codec)).astype("<f4")
    if codec == "bfloat16":
        false = (numbers.view("<u4") >> 16).astype("<u2").tobytes()
    else:
        false = numbers.astype("<f2" if codec == "float16" else "<f4").tobytes()
    said = Output(
        bucket=output.bucket,
        digest=slice_digest(false, codec),
        norm_squared=norm_squared(false, codec),
    )
    return said, false
