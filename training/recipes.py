"""Complete configurations as functions: what a job file's `recipe` names. Pure.

Invariant: each is exact in the units of the JobSpec, so signing it changes no number.
"""

from collections.abc import Callable

from training.config import BYTE_VOCABULARY, DataConfig, ModelConfig, OptimizerConfig, TrainConfig


def tiny_llama(*, seed: int = 0) -> TrainConfig:
    """The demo: about 2 million parameters, 60 steps of 8 units of 4 rows of 128 tokens."""
    return TrainConfig(
        model=ModelConfig(
            vocab_size=BYTE_VOCABULARY,
            width=256,
            num_layers=3,
            num_heads=4,
            num_kv_heads=2,
            ffn_width=512,
            sequence_length=128,
            init_seed=seed,
        ),
        optimizer=OptimizerConfig(
            learning_rate=0.002,
            total_steps=60,
            warmup_steps=6,
        ),
        data=DataConfig(rows_per_unit=4, units_per_step=8, seed=seed),
        num_steps=60,
    )


def micro(*, seed: int = 0, num_steps: int = 20) -> TrainConfig:
    """For tests: a few thousand parameters, a step in milliseconds; every feature is on."""
    return TrainConfig(
        model=ModelConfig(
            vocab_size=BYTE_VOCABULARY,
            width=32,
            num_layers=2,
            num_heads=4,
            num_kv_heads=2,
            ffn_width=64,
            sequence_length=32,
            init_seed=seed,
        ),
        optimizer=OptimizerConfig(
            learning_rate=0.004,
            total_steps=num_steps,
            warmup_steps=min(4, num_steps),
        ),
        data=DataConfig(rows_per_unit=2, units_per_step=4, seed=seed),
        num_steps=num_steps,
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {"tiny_llama": tiny_llama, "micro": micro}
"""Recipes by the name that a job file uses."""
