"""The outer step: sealed weights and outer momentum after a round, byte for byte alike everywhere.

SGD with Nesterov momentum on the mean difference G (arXiv 2311.08105, algorithm 1, line 14):

    M = mu M + G            W = W - rate x (G + mu M)

Each operation is rounded once; both scalars are fp32 numbers. With rate 1 and mu 0 the weights are
the mean of the replicas' (federated averaging).

With `moments: mean` the mean M of first moments and the mean R of roots of second ones become those
that replicas go on from: m = M within c |R|, v = R^2. Of one replica |m| <= c sqrt(v), whatever its
gradients were (`longest_step`), so of honest means too; codes and liars may make R too small.
"""

import math

import torch
from torch import Tensor

from training.config import OptimizerConfig
from training.stages.torch_free import fp32
from training.strategies.local.movement import longest_step


def apply_outer(weights: Tensor, momentum: Tensor, mean: Tensor, *, rate: float, mu: float) -> None:
    """Update `weights` and `momentum`, fp32 (P,) each, in place; `mean` is not changed."""
    momentum.mul_(fp32(mu)).add_(mean)
    weights.sub_(momentum.mul(fp32(mu)).add_(mean).mul_(fp32(rate)))


def apply_root(exp_avg: Tensor, exp_avg_sq: Tensor, root: Tensor, config: OptimizerConfig) -> None:
    """Make v of the mean of roots, and cut m, which is a mean of first moments; fp32 (P,) each."""
    most = root.abs().mul_(fp32(longest_step(config.beta1, config.beta2, math.inf)))
    # No `clamp`: which zero is left of two depends on the device.
    exp_avg.copy_(torch.where(exp_avg.abs() > most, torch.copysign(most, exp_avg), exp_avg))
    exp_avg_sq.copy_(root * root)
