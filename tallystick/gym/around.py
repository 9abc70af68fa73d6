"""What lies are made of: a strategy that differs in part, bytes that pass as new, and signs.

`Around` is another strategy in all but what a subclass overrides. It hands on by name, so that it
stays whole when the port grows.

Numbers are there as wire bytes: little-endian floats of `element_bytes` each. The sign is the
highest bit of an element's last byte, under every gradient codec.
"""

import random
from collections.abc import Callable
from fractions import Fraction
from math import ceil
from typing import Any, cast

import numpy as np
from typing_extensions import Buffer

from contracts.terms.digest import digest, wire_bytes
from contracts.terms.ids import ChunkIndex, Digest, StageIndex
from contracts.terms.items import ItemNumber
from contracts.terms.messages import GradientCodecName
from tallystick.gym.plan import Plan
from training.strategies.port import Piece, RoundNumber, Shard, Source, State, Strategy
from training.worker.ports import Behaviour

_ANY = StageIndex(0)


class Around:
    """Satisfies `Strategy` by the strategy that it was made of."""

    def __init__(self, inner: Strategy) -> None:
        self._inner = inner
        self._round = RoundNumber(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def start(self, state: State, round: RoundNumber) -> None:
        """See `Strategy.start`."""
        self._round = round
        self._inner.start(state, round)


class Planned(Behaviour):
    """Honest, but where its plan says otherwise."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan


class Computing(Behaviour):
    """Honest in all but its arithmetic."""

    def __init__(self, around: Callable[[Strategy], Around]) -> None:
        self._around = around

    def arithmetic(self, strategy: Strategy) -> Strategy:
        """See `Behaviour.arithmetic`."""
        return cast(Strategy, self._around(strategy))


class Putting:
    """A source that keeps other bytes of the tensors that were made."""

    def __init__(self, inner: Source, change: Callable[[str, bytes], bytes]) -> None:
        self._inner, self._change = inner, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put(self, name: str, data: bytes) -> Digest:
        """See `Source.put`."""
        return self._inner.put(name, self._change(name, data))


def reformed(formed: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """A boundary tensor of the same form, with other wire bytes."""
    data = bytes(wire_bytes(formed))
    return formed[: len(formed) - len(data)] + change(data)


def marked(formed: bytes, item: ItemNumber) -> bytes:
    """A tensor that was sent before, changed in the lowest bits of its last two elements.

    Equal bytes for two items have one digest, which shows at once: a liar who wants to last makes
    each copy differ.
    """

    def mark(data: bytes) -> bytes:
        changed, number = bytearray(data), int(item) + 1
        changed[-4] ^= number & 0xFF
        changed[-8 % len(changed)] ^= number >> 8 & 0xFF
        return bytes(changed)

    return reformed(formed, mark)


def mean_of(strategy: Strategy, number: ChunkIndex, *parts: tuple[Buffer, int]) -> Piece:
    """The mean of gradients by their weights, as a shard or bucket with this number."""
    named = {digest("gym", bytes([place])): part for place, part in enumerate(parts)}
    shards = (Shard(name, data) for name, (data, _) in named.items())
    weights = {name: (_ANY, weight) for name, (_, weight) in named.items()}
    return strategy.reduce((_ANY, number), shards, weights)


def multiplied(data: bytes, times: Fraction, codec: GradientCodecName) -> bytes:
    """Every number multiplied."""
    factor = np.float32(times)
    if codec == "bfloat16":
        wide = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4") * factor
        return (wide.view("<u4") >> 16).astype("<u2").tobytes()
    kind = "<f2" if codec == "float16" else "<f4"
    return (np.frombuffer(data, kind) * factor).astype(kind).tobytes()


# ------------------------------------------------------------------------------------------- signs

_SIGN = 0x80
_TURNED = bytes(byte ^ _SIGN for byte in range(256))
_SIGN_ONLY = bytes(byte & _SIGN for byte in range(256))


def all_turned(data: bytes, element_bytes: int) -> bytes:
    """Every number negated: as long, and the opposite."""
    changed = bytearray(data)
    changed[element_bytes - 1 :: element_bytes] = _last(data, element_bytes).translate(_TURNED)
    return bytes(changed)


def some_turned(data: bytes, element_bytes: int, share: Fraction, chance: random.Random) -> bytes:
    """That share of the numbers negated, at least one."""
    changed, num_elements = bytearray(data), len(data) // element_bytes
    for element in chance.sample(range(num_elements), ceil(num_elements * share)):
        changed[(element + 1) * element_bytes - 1] ^= _SIGN
    return bytes(changed)


def shuffled(data: bytes, element_bytes: int, chance: random.Random) -> bytes:
    """Every sign by chance: as long, and in no direction."""
    last = _last(data, element_bytes)
    signs = chance.randbytes(len(last)).translate(_SIGN_ONLY)
    mixed = int.from_bytes(last, "big") ^ int.from_bytes(signs, "big")
    changed = bytearray(data)
    changed[element_bytes - 1 :: element_bytes] = mixed.to_bytes(len(last), "big")
    return bytes(changed)


def _last(data: bytes, element_bytes: int) -> bytes:
    return data[element_bytes - 1 :: element_bytes]
