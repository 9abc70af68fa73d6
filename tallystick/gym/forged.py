"""Peers whose gradient, mean or tensors are not what they say.

The first compute everything and show honest boundary tensors: the lie is in the gradient that is
committed to, exchanged and summed. All but `scaled` are as long as the truth, so no norm shows
them. Summing peers bind themselves to a mean that is none, never longer than the norms allow.

Malformed is what no tensor may be: not finite, or longer than its form says. Digests, forms and
signatures are in order, so the bytes are bound to whom they come from.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from contracts.terms.items import ItemNumber
from contracts.terms.messages import GradientCodecName, ShardCodecName
from contracts.terms.work import Leaf
from tallystick.gym.around import Liar, Numbers, Putting, reformed, remade
from training.averaging.slices import slice_digest
from training.strategies.port import (
    Bucket,
    Direction,
    Draft,
    Items,
    Piece,
    Shard,
    Source,
    Weights,
)

# --------------------------------------------------------------------------------------- gradients

FLIPPED = Fraction(1, 100)

Forge: TypeAlias = Callable[[Piece, GradientCodecName], Piece]
"""An honest shard and its codec -> the shard that is sent."""


class Forged(Liar):
    """Honest, but for the shards of the gradient, which a `Forge` makes."""

    _what: Forge

    def commit(self, items: Items) -> Draft:
        """See `Strategy.commit`."""
        honest = self._inner.commit(items)
        if not self._plan.lies_in(self._round):
            return honest
        return replace(honest, shards=(self._what(each, self._codec) for each in honest.shards))


def flipped(piece: Piece, codec: GradientCodecName) -> Piece:
    """One sign in a hundred is turned, at least one."""

    def change(numbers: Numbers) -> Numbers:
        chance = np.random.default_rng([*piece[0].digest])
        places = chance.choice(len(numbers), math.ceil(len(numbers) * FLIPPED), replace=False)
        numbers = numbers.copy()
        numbers[places] *= -1
        return numbers

    return remade(piece, codec, change)


def turned(piece: Piece, codec: GradientCodecName) -> Piece:
    """The gradient turned around: everything that the others learn is unlearnt."""
    return remade(piece, codec, lambda numbers: -numbers)


def scaled(times: Fraction, piece: Piece, codec: GradientCodecName) -> Piece:
    """The gradient multiplied."""
    return remade(piece, codec, lambda numbers: numbers * np.float32(times))


# ------------------------------------------------------------------------------------------- means


class WrongSum(Liar):
    """The mean turned around."""

    _what: ShardCodecName  # by which buckets are digested

    def reduce(self, bucket: Bucket, shards: Iterator[Shard], weights: Weights) -> Piece:
        """See `Strategy.reduce`."""
        honest = self._inner.reduce(bucket, shards, weights)
        if not self._plan.lies_in(self._round):
            return honest
        output, data = turned(honest, self._codec)
        digest = slice_digest(data, self._what)
        return output.model_copy(update={"digest": digest}), data


class LeftOut(Liar):
    """The first shard is not added; the others keep their weights, so the rest is not scaled up."""

    def reduce(self, bucket: Bucket, shards: Iterator[Shard], weights: Weights) -> Piece:
        """See `Strategy.reduce`."""
        if not self._plan.lies_in(self._round) or len(weights) == 1:
            return self._inner.reduce(bucket, shards, weights)
        return self._inner.reduce(bucket, _without_first(shards), weights)


def _without_first(shards: Iterator[Shard]) -> Iterator[Shard]:
    first = next(shards)
    yield replace(first, data=bytes(memoryview(first.data).nbytes))
    yield from shards


# ------------------------------------------------------------------------------- malformed tensors

Spoil: TypeAlias = Callable[[bytes], bytes]
_ONES = b"\xff"  # all bits set: nan in every float format, and as the scale of a block


def not_finite(data: bytes) -> bytes:
    """As many bytes, of which none is a number."""
    return _ONES * len(data)


def oversized(data: bytes) -> bytes:
    """The bytes twice."""
    return data + data


class Spoilt(Liar):
    """Honest passes whose boundary tensors a `Spoil` has made unusable."""

    _what: Spoil

    async def run(self, item: ItemNumber, direction: Direction, source: Source) -> Leaf | None:
        """See `Strategy.run`."""
        if direction != "evaluate" and self._plan.lies_about(self._round, item):
            source = Putting(source, lambda name, data: reformed(data, self._what))
        return await self._inner.run(item, direction, source)


def spoilt(spoil: Spoil, piece: Piece, codec: GradientCodecName) -> Piece:
    """A shard that nobody can add up, as long as the true one by its own word."""
    data = spoil(piece[1])
    return piece[0].model_copy(update={"digest": slice_digest(data, codec)}), data
