"""The outer step: sealed weights and outer momentum after a round, byte for byte alike everywhere.

SGD with Nesterov momentum on the mean difference G (arXiv 2311.08105, algorithm 1, line 14):

    M = mu M + G            W = W - rate x (G + mu M)

Each operation is rounded once; both scalars are fp32 numbers. With rate 1 and mu 0 the weights are
the mean of the replicas' (federated averaging).
"""

from torch import Tensor

from training.stages.torch_free import fp32


def apply_outer(weights: Tensor, momentum: Tensor, mean: Tensor, *, rate: float, mu: float) -> None:
    """Update `weights` and `momentum`, fp32 (P,) each, in place; `mean` is not changed."""
    momentum.mul_(fp32(mu)).add_(mean)
    weights.sub_(momentum.mul(fp32(mu)).add_(mean).mul_(fp32(rate)))
