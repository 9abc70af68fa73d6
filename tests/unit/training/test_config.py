"""Does a configuration that was built hold what the math needs, and survive being signed?"""

from dataclasses import replace
from typing import Any

import pytest

from contracts.terms.errors import Refused
from contracts.terms.ids import ZERO_DIGEST
from contracts.terms.messages import AdapterSpec, BatchSpec, DataSpec
from tests.support.history import make_spec
from training.config import (
    StageSlice,
    TrainConfig,
    model_spec,
    optimizer_spec,
    slices_of,
    train_config,
)
from training.recipes import micro, tiny_llama


def batch_of(config: TrainConfig) -> BatchSpec:
    return make_spec(
        model=model_spec(config.model),
        steps=config.num_steps,
        units_per_step=config.data.units_per_step,
        rows_per_unit=config.data.rows_per_unit,
    ).batch


SCALED = {"rope_factor": 8.5, "rope_low_factor": 0.25, "rope_high_factor": 4.125}
FAMILIES = [
    replace(micro(), model=replace(micro().model, **each))
    for each in (
        {"qkv_bias": True, **SCALED, "rope_context": 16},
        {"qk_norm": True, "head_dim": 16, "window": 8, "full_layers": (1,)},
        {"unrotated_layers": (0, 1)},
    )
]


@pytest.mark.parametrize(
    "config",
    [tiny_llama(seed=7), micro(seed=3), *FAMILIES],
    ids=["tiny", "micro", "biased", "normed", "unrotated"],
)
def test_train_config__recipe_signed_and_read_back__same_numbers(config: TrainConfig) -> None:
    data = DataSpec(manifest=ZERO_DIGEST, seed=config.data.seed, tokenizer=ZERO_DIGEST)

    read = train_config(
        model_spec(config.model), optimizer_spec(config.optimizer), data, batch_of(config)
    )

    assert read == config


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"width": 0}, "width = 0"),
        ({"width": 33}, "multiple of num_heads"),
        ({"num_kv_heads": 3}, "multiple of"),
        ({"width": 4}, "even width per head"),
        ({"vocab_size": 2**21}, "vocab_size"),
        ({"rope_theta": 1}, "rope_theta"),
        ({"norm_eps": 0.0}, "norm_eps"),
        ({"init_seed": -1}, "init_seed"),
        ({"head_dim": 1025}, "head_dim"),
        ({"head_dim": 7}, "even width per head"),
        ({"qkv_bias": True, "qk_norm": True}, "of different families"),
        ({"qk_norm": True, "unrotated_layers": (1,)}, "of different families"),
        ({"rope_factor": 0.5}, "rope_factor"),
        ({"rope_factor": float("nan")}, "rope_factor"),
        ({"rope_low_factor": 4.0}, "rope_low_factor"),
        ({"rope_context": 0}, "rope_context"),
        ({"window": -1}, "window"),
        ({"full_layers": (0,)}, "exceptions from a window"),
        ({"window": 8, "full_layers": (0, 1)}, "not all layers"),
        ({"unrotated_layers": (2,)}, "layers, counted from 0"),
        ({"unrotated_layers": (1, 0)}, "each once and ascending"),
        ({"adapter": AdapterSpec(rank=2, alpha=129, targets=("q_proj",))}, "at most 128"),
    ],
)
def test_model_config__size_that_does_not_fit__refused(
    change: dict[str, Any], problem: str
) -> None:
    model = micro().model

    with pytest.raises(Refused, match=problem):
        replace(model, **change)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"beta1": 1.0}, "beta1"),
        ({"beta2": -0.1}, "beta2"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"warmup_steps": 21}, "warmup_steps"),
        ({"total_steps": 0}, "total_steps"),
        ({"final_ratio": 1.5}, "final_ratio"),
    ],
)
def test_optimizer_config__value_out_of_range__refused(
    change: dict[str, Any], problem: str
) -> None:
    optimizer = micro().optimizer

    with pytest.raises(Refused, match=problem):
        replace(optimizer, **change)


def test_data_config__counts_out_of_range__refused() -> None:
    data = micro().data

    for change in ({"rows_per_unit": 0}, {"units_per_step": 0}, {"seed": -1}):
        with pytest.raises(Refused):
            replace(data, **change)


def test_slices_of__five_layers_cut_after_three__ends_are_where_they_belong() -> None:
    model = replace(micro().model, num_layers=5)

    first, last = slices_of(model, (3, 5))

    assert first == StageSlice(0, 3, has_embedding=True, has_head=False)
    assert last == StageSlice(3, 5, has_embedding=False, has_head=True)


@pytest.mark.parametrize("ends", [(), (1,), (3,), (0, 2), (2, 2), (2, 1), (1, 2, 3), (-1, 2)])
def test_slices_of__ends_that_cut_no_two_layers__refused(ends: tuple[int, ...]) -> None:
    with pytest.raises(Refused, match="do not cut 2 layers"):
        slices_of(micro().model, ends)
