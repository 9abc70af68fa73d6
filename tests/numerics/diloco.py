"""Classic DiLoCo without any of our machinery: plain tensors, torch's AdamW and torch's SGD.

Algorithm 1 of arXiv 2311.08105: every replica keeps its AdamW moments through the whole job, and
the mean of the replicas' differences is the gradient of an outer SGD with Nesterov momentum. With
`replicas` 1 and `inner_steps` 1, outer rate 1 and no momentum it is the plain loop.
"""

from collections.abc import Callable

import torch
from torch.nn import functional

from contracts.terms.items import ItemNumber
from tests.numerics.plain import Weights, adamw, logits, rate, tokens_of
from training.config import TrainConfig, whole_model
from training.data.loading import UnitRows
from training.models.initial import initial_weights


def classic_diloco(
    config: TrainConfig,
    rows: UnitRows,
    *,
    replicas: int,
    inner_steps: int,
    outer_rate: float,
    outer_momentum: float,
    is_dropped: Callable[[int, int], bool] = lambda round, replica: False,
    device: str = "cpu",
) -> Weights:
    """The weights after `config.num_steps` inner steps of each replica.

    Args:
        config: Inner optimiser and sizes; the schedule counts inner steps.
        rows: Replica k takes item n x replicas + k in inner step n.
        replicas: How many.
        inner_steps: Between two outer steps.
        outer_rate: Of the outer SGD.
        outer_momentum: Nesterov's.
        is_dropped: Whose difference is lost in which round.
        device: Of the weights.
    """
    initial = initial_weights(config.model, whole_model(config.model))
    weights = {name: weight.to(device) for name, weight in initial.items()}
    outer_weights = [weight.clone().requires_grad_() for weight in weights.values()]
    outer = torch.optim.SGD(
        outer_weights, outer_rate, momentum=outer_momentum, nesterov=outer_momentum > 0
    )
    copies = [{name: weight.clone() for name, weight in weights.items()} for _ in range(replicas)]
    for copy in copies:
        for weight in copy.values():
            weight.requires_grad_()
    optimizers = [adamw(config.optimizer, copy) for copy in copies]
    for round in range(config.num_steps // inner_steps):
        merged = []
        for k, (copy, optimizer) in enumerate(zip(copies, optimizers, strict=True)):
            with torch.no_grad():
                for own, shared in zip(copy.values(), outer_weights, strict=True):
                    own.copy_(shared)
            for step in range(round * inner_steps, (round + 1) * inner_steps):
                item = ItemNumber(step * replicas + k)
                _inner_step(config, rows, item, copy, optimizer, step)
            if not is_dropped(round, k):
                merged.append(copy)
        if not merged:
            continue
        for place, weight in enumerate(outer_weights):
            ends = [list(copy.values())[place].detach() for copy in merged]
            weight.grad = weight.detach() - torch.stack(ends).mean(dim=0)
        outer.step()
    return {name: weight.detach() for name, weight in zip(weights, outer_weights, strict=True)}


def _inner_step(
    config: TrainConfig,
    rows: UnitRows,
    item: ItemNumber,
    weights: Weights,
    optimizer: torch.optim.Optimizer,
    step: int,
) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate(config.optimizer, step + 1)
    rows_RT = tokens_of(rows, [item]).view(-1, config.model.sequence_length + 1)
    rows_RT = rows_RT.to(next(iter(weights.values())).device)
    logits_RTV = logits(config.model, weights, rows_RT[:, :-1])
    loss = functional.cross_entropy(logits_RTV.flatten(0, 1), rows_RT[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(weights.values(), config.optimizer.clip_norm)
    optimizer.step()
