"""Which numbers a part may have: no step of AdamW moves a weight farther. Pure.

In a step with rate r a weight w moves by r m / sqrt(v) + r decay w at most. Both moments begin at
zero and only the second is corrected, so by Cauchy and Schwarz, for n steps and any gradients,

    |m| / sqrt(v) <= (1 - b1) sqrt((1 - b2^n) / ((1 - b2) (1 - b1^2 / b2)))

which is 1.2 for betas of 0.9 and 0.95. Who checks a shard does not hold the weights: none is taken
to be larger than `LARGEST_WEIGHT`. Where b1^2 >= b2 one step may be as long as it likes. With
`moments: mean` n has no end, and both are corrected, by as few steps as one: then it is
sqrt(1 - b2) / (1 - b1) times as much, if that is more.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

from contracts.terms.ids import ChunkIndex
from contracts.terms.messages import MILLION, JobSpec, LocalSpec, ShardCodecName
from contracts.terms.work import WhatField

Numbers: TypeAlias = tuple[ShardCodecName, tuple[float, float]]
"""The codec of a part, and the least and the largest that an element may be."""
LARGEST_WEIGHT = 64
ROOTS = 2  # of second moments, among the vectors of a claim
ROUNDED = 1.25  # four bits make the largest element of a block at most that much longer
_RATE_SCALE = 10**9


def numbers_of_parts(spec: JobSpec, local: LocalSpec) -> Callable[[WhatField, ChunkIndex], Numbers]:
    """See `training.strategies.limits.numbers_of`."""
    batch, most = spec.batch, most_moved(spec, local)
    of_shard, of_bucket = spec.rules.part_codecs

    def numbers(what: WhatField, bucket: ChunkIndex) -> Numbers:
        if vector := batch.vector_of(bucket):
            return of_bucket, (0.0 if vector == ROOTS else -math.inf, math.inf)
        if what == "bucket":  # no farther than its shards, but for the rounding of its own codec
            return of_bucket, (-ROUNDED * most, ROUNDED * most)
        return of_shard, (-most, most)

    return numbers


def most_moved(spec: JobSpec, local: LocalSpec) -> float:
    """The largest element that a difference of weights may have; infinity without a bound."""
    optimizer = spec.optimizer
    steps, rate = local.inner_steps * local.segments, optimizer.learning_rate / _RATE_SCALE
    beta1, beta2 = optimizer.beta1 / MILLION, optimizer.beta2 / MILLION
    if beta1**2 >= beta2:
        return math.inf
    longest = longest_step(beta1, beta2, steps)
    if local.moments == "mean":
        corrected = max(1.0, math.sqrt(1 - beta2) / (1 - beta1))
        longest = corrected * longest_step(beta1, beta2, math.inf)
    decay = optimizer.weight_decay / MILLION * LARGEST_WEIGHT
    return ROUNDED * steps * rate * (longest + decay)


def longest_step(beta1: float, beta2: float, steps: float) -> float:
    """The most that |m| / sqrt(v) can be in any of so many steps, for beta1^2 < beta2 < 1."""
    share = (1 - beta2**steps) / ((1 - beta2) * (1 - beta1 * beta1 / beta2))
    return (1 - beta1) * math.sqrt(share)
