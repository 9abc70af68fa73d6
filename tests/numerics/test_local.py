"""Local steps against a plain loop, and their exchange against torch's own outer optimiser."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from contracts.terms.errors import NotFinite
from contracts.terms.items import ItemNumber
from contracts.terms.messages import LOSS_SCALE, ShardCodecName
from tests.numerics.diloco import classic_diloco
from tests.numerics.loop import items_of, new_stage, rows_of, synthetic_corpus
from tests.numerics.plain import greatest_difference, plain_losses
from training.config import TrainConfig, whole_model
from training.data.loading import UnitRows
from training.models.initial import initial_weights
from training.recipes import micro
from training.stages.exact import Moments, weighted_mean
from training.stages.stage import UnitInputs, rows_tensor
from training.strategies.local.exchange import LocalCodec
from training.strategies.local.inner import Replica
from training.strategies.local.outer import apply_outer, apply_root

CORPUS = synthetic_corpus()
SEED = bytes(range(32))


def inputs(rows: UnitRows, items: Sequence[ItemNumber]) -> dict[ItemNumber, UnitInputs]:
    return {item: UnitInputs(rows_RT=rows_tensor(rows.load(item))) for item in items}


def loss_of(replica: Replica, items: dict[ItemNumber, UnitInputs]) -> float:
    return replica.step(items).loss / LOSS_SCALE


def local_losses(
    config: TrainConfig, *, replicas: int, inner_steps: int, codec: ShardCodecName = "none"
) -> list[float]:
    """Mean loss of the replicas at each inner step; moments restart."""
    stage, rows, losses = new_stage(config), rows_of(config, CORPUS), []
    momentum, replica = torch.zeros(stage.num_parameters), Replica(stage)
    for first in range(0, config.num_steps, inner_steps):
        base, shards, round_losses = stage.flat_weights.clone(), [], []
        for k in range(replicas):
            stage.flat_weights.copy_(base)
            replica.start(first)
            steps = range(first, first + inner_steps)
            items = [[ItemNumber(step * replicas + k)] for step in steps]
            round_losses.append([loss_of(replica, inputs(rows, each)) for each in items])
            shard = LocalCodec(codec).shard(replica.difference(), SEED)
            shards.append(LocalCodec(codec).read_shard(shard, len(base)))
        apply_outer(base, momentum, weighted_mean(shards, [1] * replicas), rate=1.0, mu=0.0)
        stage.flat_weights.copy_(base)
        losses += [sum(each) / replicas for each in zip(*round_losses, strict=True)]
    return losses


def test_replica__one_that_goes_on_from_its_moments__has_the_losses_of_the_plain_loop() -> None:
    config, num_steps = micro(), 5
    stage, rows = new_stage(config), rows_of(config, CORPUS)
    replica, losses = Replica(stage), []
    momentum, exp_avg, exp_avg_sq = torch.zeros(3, stage.num_parameters)
    sealed = Moments(exp_avg, exp_avg_sq)

    for first in range(0, config.num_steps, num_steps):
        base = stage.flat_weights.clone()
        replica.start(first, sealed)
        for step in range(first, first + num_steps):
            losses.append(loss_of(replica, inputs(rows, items_of(config, step + 1))))
        difference, mean, root = replica.difference().split(stage.num_parameters)
        apply_outer(base, momentum, difference, rate=1.0, mu=0.0)
        exp_avg.copy_(mean)
        apply_root(exp_avg, exp_avg_sq, root, config.optimizer)
        stage.flat_weights.copy_(base)

    assert greatest_difference(losses, plain_losses(config, rows)) <= 1e-5


def test_classic_diloco__one_replica_without_momentum__is_the_plain_loop() -> None:
    config = micro()
    rows = rows_of(config, CORPUS)
    weights = initial_weights(config.model, whole_model(config.model))
    one_item = replace(config, data=replace(config.data, units_per_step=1))

    plain_losses(one_item, rows, weights=weights)
    found = classic_diloco(
        config, rows, replicas=1, inner_steps=4, outer_rate=1.0, outer_momentum=0.0
    )

    for name, weight in weights.items():
        assert torch.allclose(found[name], weight.detach(), atol=1e-6)


def test_local__any_codec__learns_as_with_fp32() -> None:
    config = micro(num_steps=40)
    exact = local_losses(config, replicas=2, inner_steps=10)

    assert exact[-1] < 0.75 * exact[0]
    for codec in ("bfloat16", "seeded8", "seeded4"):
        losses = local_losses(config, replicas=2, inner_steps=10, codec=codec)
        assert losses != exact
        assert abs(losses[-1] / exact[-1] - 1) < 0.02


def test_replica__started_twice_from_the_same_state__makes_the_same_bytes() -> None:
    config = micro()
    stage, rows, found = new_stage(config), rows_of(config, CORPUS), []
    base = stage.flat_weights.clone()

    for _ in range(2):
        stage.flat_weights.copy_(base)
        replica = Replica(stage)
        replica.start(3)
        steps = [replica.step(inputs(rows, items_of(config, step)), SEED) for step in (4, 5, 6)]
        found.append((steps, LocalCodec("seeded4").shard(replica.difference(), SEED)))

    assert found[0] == found[1]


def test_step__weights_that_overflow__refused_and_nothing_moves() -> None:
    config = micro()
    stage, rows = new_stage(config), rows_of(config, CORPUS)
    replica = Replica(stage)
    stage.flat_weights.mul_(1e30)
    replica.start(0)

    with pytest.raises(NotFinite):
        replica.step(inputs(rows, [ItemNumber(0)]))

    assert not replica.difference().any()


@pytest.mark.parametrize(("rate", "mu"), [(1.0, 0.0), (0.7, 0.9)])
def test_apply_outer__three_rounds__is_nesterov_sgd(rate: float, mu: float) -> None:
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(1000, generator=generator)
    means = [torch.randn(1000, generator=generator) for _ in range(3)]
    reference = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([reference], rate, momentum=mu, nesterov=mu > 0)
    weights, momentum = start.clone(), torch.zeros(1000)

    for mean in means:
        reference.grad = mean.clone()
        optimizer.step()
        apply_outer(weights, momentum, mean, rate=rate, mu=mu)

    assert torch.allclose(weights, reference.detach(), atol=1e-5)
