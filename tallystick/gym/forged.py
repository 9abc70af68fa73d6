"""Peers whose gradient, mean or tensors are not what they say.

The first compute everything and show honest boundary tensors: the lie is in the gradient that is
committed to, exchanged and summed. All but `Huge` and `Scaled` are as long as the truth, so no norm
shows them. Summing peers bind themselves to a mean that is none, never longer than the norms allow.

Malformed is what no tensor may be: not finite, or longer than its header says. Digests, headers and
signatures are in order, so the bytes are bound to whom they come from.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from contracts.terms.items import ItemNumber
from contracts.terms.messages import GradientCodecName
from contracts.terms.work import Leaf
from tallystick.gym.around import (
    Around,
    Planned,
    Putting,
    all_turned,
    mean_of,
    multiplied,
    reformed,
    some_turned,
)
from tallystick.gym.plan import Plan
from training.averaging.slices import slice_digest
from training.strategies.port import (
    Bucket,
    Direction,
    Draft,
    Items,
    Piece,
    RoundNumber,
    Shard,
    Source,
    Strategy,
    Weights,
)

# --------------------------------------------------------------------------------------- gradients

FLIPPED = Fraction(1, 100)

Change = Callable[[Strategy, RoundNumber, Piece], Piece]
"""The strategy, the round and an honest shard -> the shard that is sent."""


class Forged(Planned):
    """Honest, but for the shards of the gradient."""

    def __init__(self, plan: Plan, change: Change) -> None:
        super().__init__(plan)
        self._change = change

    def draft(self, strategy: Strategy, round: RoundNumber, items: Items) -> Draft:
        """See `Behaviour.draft`."""
        honest = strategy.commit(items)
        if not self._plan.lies_in(round):
            return honest
        return replace(
            honest, shards=(self._change(strategy, round, piece) for piece in honest.shards)
        )


def flipped(plan: Plan, element_bytes: int) -> Forged:
    """One sign in a hundred is turned, in every shard."""

    def change(strategy: Strategy, round: RoundNumber, piece: Piece) -> Piece:
        output, data = piece
        chance = random.Random(f"{plan.seed} {round} {output.digest.hex()}")
        false = some_turned(data, element_bytes, FLIPPED, chance)
        return mean_of(strategy, output.bucket, (false, 1))

    return Forged(plan, change)


def turned(plan: Plan, element_bytes: int) -> Forged:
    """The gradient turned around: everything that the others learn is unlearnt."""

    def change(strategy: Strategy, round: RoundNumber, piece: Piece) -> Piece:
        output, data = piece
        return mean_of(strategy, output.bucket, (all_turned(data, element_bytes), 1))

    return Forged(plan, change)


def scaled(plan: Plan, times: Fraction, codec: GradientCodecName) -> Forged:
    """The gradient multiplied."""

    def change(strategy: Strategy, round: RoundNumber, piece: Piece) -> Piece:
        output, data = piece
        return mean_of(strategy, output.bucket, (multiplied(data, times, codec), 1))

    return Forged(plan, change)


# ------------------------------------------------------------------------------------------- means


class WrongSum(Planned):
    """The mean turned around."""

    def __init__(self, plan: Plan, element_bytes: int) -> None:
        super().__init__(plan)
        self._element_bytes = element_bytes

    def reduce(
        self,
        strategy: Strategy,
        round: RoundNumber,
        bucket: Bucket,
        shards: Iterator[Shard],
        weights: Weights,
    ) -> Piece:
        """See `Behaviour.reduce`."""
        honest = strategy.reduce(bucket, shards, weights)
        if not self._plan.lies_in(round):
            return honest
        return mean_of(strategy, bucket[1], (all_turned(honest[1], self._element_bytes), 1))


class LeftOut(Planned):
    """The first shard is not added; the others keep their weights, so the rest is not scaled up."""

    def reduce(
        self,
        strategy: Strategy,
        round: RoundNumber,
        bucket: Bucket,
        shards: Iterator[Shard],
        weights: Weights,
    ) -> Piece:
        """See `Behaviour.reduce`."""
        lies = self._plan.lies_in(round) and len(weights) > 1

        def kept() -> Iterator[Shard]:
            for place, shard in enumerate(shards):
                is_left_out = lies and place == 0
                nothing = bytes(memoryview(shard.data).nbytes)
                yield Shard(shard.claim, nothing) if is_left_out else shard

        return strategy.reduce(bucket, kept(), weights)


# ------------------------------------------------------------------------------- malformed tensors

Spoil = Callable[[bytes], bytes]
_ONES = b"\xff"  # all bits set: nan in every float format, and as the scale of a block


def not_finite(data: bytes) -> bytes:
    """As many bytes, of which none is a number."""
    return _ONES * len(data)


def oversized(data: bytes) -> bytes:
    """The bytes twice."""
    return data + data


class Spoilt(Around):
    """Honest passes, whose boundary tensors nobody can then compute with."""

    def __init__(self, inner: Strategy, plan: Plan, spoil: Spoil) -> None:
        super().__init__(inner)
        self._plan, self._spoil = plan, spoil

    async def run(self, item: ItemNumber, direction: Direction, source: Source) -> Leaf | None:
        """See `Strategy.run`."""
        if direction == "evaluate" or not self._plan.lies_about(self._round, item):
            return await self._inner.run(item, direction, source)
        spoiling: Any = Putting(source, lambda name, data: reformed(data, self._spoil))
        return await self._inner.run(item, direction, spoiling)


def spoilt_parts(plan: Plan, codec: GradientCodecName, spoil: Spoil) -> Forged:
    """Shards that nobody can add up, as long as the true ones by their own word."""

    def change(strategy: Strategy, round: RoundNumber, piece: Piece) -> Piece:
        output, data = piece[0], spoil(piece[1])
        return output.model_copy(update={"digest": slice_digest(data, codec)}), data

    return Forged(plan, change)
