"""Are the learning rates those of torch and transformers? Both begin a warm-up differently.

torch's first rate is a warm-up's first part, as ours; transformers' is 0, so its warm-ups lie one
update behind and are left out here.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, LinearLR, LRScheduler
from transformers import (
    get_cosine_with_min_lr_schedule_with_warmup,
    get_linear_schedule_with_warmup,
    get_wsd_schedule,
)

from training.config import OptimizerConfig, Schedule
from training.stages.torch_free import learning_rate

CONFIG = OptimizerConfig(
    learning_rate=0.003, total_steps=50, warmup_steps=7, final_ratio=0.1, decay_ratio=0.3
)
TO_ZERO = replace(CONFIG, final_ratio=0.0)


def theirs(make: Callable[[Optimizer], LRScheduler]) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=CONFIG.learning_rate)
    scheduler, rates = make(optimizer), []
    for _ in range(CONFIG.total_steps + 5):
        rates.append(float(scheduler.get_last_lr()[0]))
        optimizer.step()
        scheduler.step()
    return rates


def ours(config: OptimizerConfig) -> list[float]:
    return [learning_rate(config, update) for update in range(config.total_steps + 5)]


def test_learning_rate__warm_up_to_constant__is_that_of_torch() -> None:
    warm, total = CONFIG.warmup_steps, CONFIG.warmup_steps - 1
    expected = theirs(lambda it: LinearLR(it, start_factor=1 / warm, total_iters=total))

    assert ours(replace(CONFIG, schedule="constant")) == pytest.approx(expected, rel=1e-12)


def test_learning_rate__no_warm_up_and_constant__is_that_of_torch() -> None:
    config = replace(CONFIG, schedule="constant", warmup_steps=0)

    assert ours(config) == theirs(lambda it: ConstantLR(it, factor=1.0))


@pytest.mark.parametrize(
    ("schedule", "config", "make"),
    [
        (
            "linear",
            TO_ZERO,
            lambda it: get_linear_schedule_with_warmup(it, 7, 50),  # type: ignore[no-untyped-call]
        ),
        (
            "cosine",
            CONFIG,
            lambda it: get_cosine_with_min_lr_schedule_with_warmup(it, 7, 50, min_lr_rate=0.1),
        ),
        (
            "wsd",
            CONFIG,
            lambda it: get_wsd_schedule(
                it, 7, 15, num_training_steps=50, min_lr_ratio=0.1, decay_type="linear"
            ),
        ),
    ],
)
def test_learning_rate__after_the_warm_up__is_that_of_transformers(
    schedule: Schedule, config: OptimizerConfig, make: Callable[[Optimizer], LRScheduler]
) -> None:
    expected, found = theirs(make), ours(replace(config, schedule=schedule))

    # The cosine of transformers goes up again after its last step; a job has none.
    end = 50 if schedule == "cosine" else 55
    assert found[7:end] == pytest.approx(expected[7:end], rel=1e-12, abs=1e-18)
