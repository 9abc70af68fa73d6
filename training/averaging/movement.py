"""How far steps of AdamW can move one weight: what a shard says beyond that is no difference.

In a step with rate r a weight w moves by r m / sqrt(v) + r decay w at most. Both moments begin at
zero and only the second is corrected, so by Cauchy and Schwarz, for n steps and any gradients,

    |m| / sqrt(v) <= (1 - b1) sqrt((1 - b2^n) / ((1 - b2) (1 - b1^2 / b2)))

which is 1.2 for betas of 0.9 and 0.95. Who checks a shard does not hold the weights: none is taken
to be larger than `LARGEST_WEIGHT`. Where b1^2 >= b2 one step may be as long as it likes. With
`moments: mean` n has no end, and both are corrected, by as few steps as one: then it is
sqrt(1 - b2) / (1 - b1) times as much, if that is more.
"""

import math

from contracts.terms.messages import MILLION, JobSpec

LARGEST_WEIGHT = 64
ROUNDED = 1.25  # four bits make the largest element of a block at most that much longer
_RATE_SCALE = 10**9


def most_moved(spec: JobSpec) -> float:
    """The largest element that a difference of weights may have; infinity without a bound."""
    local, optimizer = spec.batch.local, spec.optimizer
    if local is None:
        return math.inf
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
