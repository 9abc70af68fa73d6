"""Does the staged machinery compute what a plain program computes, and would we notice if not?"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.ids import ZERO_DIGEST
from contracts.terms.messages import DataSpec, JobSpec
from tests.numerics.loop import new_stage, rows_of, synthetic_corpus, train
from tests.numerics.plain import greatest_difference, main, plain_losses
from tests.support.history import make_spec
from training.config import Schedule, TrainConfig, model_spec, optimizer_spec
from training.recipes import micro

ALLOWED = 1e-5  # relative, at every step
CORPUS = synthetic_corpus()


@pytest.fixture(scope="module")
def plain() -> list[float]:
    config = micro()
    return plain_losses(config, rows_of(config, CORPUS))


def staged(config: TrainConfig) -> list[float]:
    stage = new_stage(config)
    steps = range(1, config.num_steps + 1)
    return train(stage, config, rows_of(config, CORPUS), steps).losses


def test_stage__twenty_steps__equals_the_plain_run_at_every_step(plain: list[float]) -> None:
    losses = staged(micro())

    assert greatest_difference(losses, plain) <= ALLOWED
    assert plain[-1] < 0.75 * plain[0]  # and it learns


@pytest.mark.parametrize(
    ("tied_head", "schedule"),
    [(False, "constant"), (True, "cosine"), (False, "linear"), (False, "wsd")],
)
def test_stage__tied_head_and_schedules__equal_the_plain_run(
    tied_head: bool, schedule: Schedule
) -> None:
    config = micro(num_steps=8)
    config = replace(
        config,
        model=replace(config.model, tied_head=tied_head, init_seed=11),
        optimizer=replace(config.optimizer, schedule=schedule, clip_norm=0.5),
    )

    reference = plain_losses(config, rows_of(config, CORPUS))

    assert greatest_difference(staged(config), reference) <= ALLOWED


@pytest.mark.nightly
@pytest.mark.parametrize(
    "change",
    [
        {"clip_norm": 0.0},
        {"beta2": 0.96},
        {"warmup_steps": 3},
        {"epsilon": 1e-6},
        {"weight_decay": 0.0},
    ],
)
def test_stage__another_hyperparameter__is_far_from_the_plain_run(
    plain: list[float], change: dict[str, Any]
) -> None:
    config = micro()
    config = replace(config, optimizer=replace(config.optimizer, **change))

    assert greatest_difference(staged(config), plain) > ALLOWED


def test_main__a_signed_job_and_its_blobs__writes_the_same_losses(
    tmp_path: Path, plain: list[float]
) -> None:
    CORPUS.write(tmp_path)
    (tmp_path / "job").write_bytes(job_of(micro()).encoded())

    main(["--job", f"{tmp_path}/job", "--blobs", str(tmp_path), "--out", f"{tmp_path}/out"])

    assert json.loads((tmp_path / "out").read_text()) == {"losses": plain}


def job_of(config: TrainConfig) -> JobSpec:
    data = DataSpec(manifest=CORPUS.manifest.digest(), seed=config.data.seed, tokenizer=ZERO_DIGEST)
    return make_spec(
        model=model_spec(config.model),
        optimizer=optimizer_spec(config.optimizer),
        data=data,
        steps=config.num_steps,
        units_per_step=config.data.units_per_step,
        rows_per_unit=config.data.rows_per_unit,
    )
