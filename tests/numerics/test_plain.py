"""Does the staged machinery compute what a plain program computes, and would we notice if not?"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.ids import ZERO_ADDRESS, ZERO_DIGEST, UnitId
from contracts.terms.messages import BatchSpec, DataSpec, JobSpec, RulesSpec
from contracts.terms.moments import UnixSeconds
from tests.numerics.loop import Tamper, new_stage, rows_of, synthetic_corpus, train
from tests.numerics.plain import greatest_difference, main, plain_losses
from training.config import Schedule, TrainConfig, model_spec, optimizer_spec, whole_model
from training.flops import unit_flops
from training.memory import stage_memory
from training.recipes import micro
from training.stages.stage import Stage

ALLOWED = 1e-5  # relative, at every step
CORPUS = synthetic_corpus()


@pytest.fixture(scope="module")
def plain() -> list[float]:
    config = micro()
    return plain_losses(config, rows_of(config, CORPUS))


def staged(config: TrainConfig, tamper: Tamper | None = None) -> list[float]:
    stage = new_stage(config)
    steps = range(1, config.num_steps + 1)
    return train(stage, config, rows_of(config, CORPUS), steps, tamper=tamper).losses


def test_stage__twenty_steps__equals_the_plain_run_at_every_step(plain: list[float]) -> None:
    losses = staged(micro())

    assert greatest_difference(losses, plain) <= ALLOWED
    assert plain[-1] < 0.75 * plain[0]  # and it learns


@pytest.mark.parametrize(("tied_head", "schedule"), [(False, "constant"), (True, "cosine")])
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
def test_stage__one_unit_counted_twice__is_far_from_the_plain_run(plain: list[float]) -> None:
    def count_unit_0_twice(stage: Stage) -> None:
        inputs = stage.inputs_of(UnitId(0))
        stage.forward(UnitId(99), inputs)
        stage.backward(UnitId(99))

    losses = staged(micro(), tamper=count_unit_0_twice)

    assert greatest_difference(losses, plain) > 10 * ALLOWED


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


def test_stage__unit_counted_twice_and_subtracted__equals_the_plain_run(
    plain: list[float],
) -> None:
    def count_and_subtract(stage: Stage) -> None:
        stage.forward(UnitId(99), stage.inputs_of(UnitId(0)))
        stage.backward(UnitId(99))
        stage.subtract(UnitId(99))

    losses = staged(micro(), tamper=count_and_subtract)

    assert greatest_difference(losses, plain) <= ALLOWED


def test_main__a_signed_job_and_its_blobs__writes_the_same_losses(
    tmp_path: Path, plain: list[float]
) -> None:
    CORPUS.write(tmp_path)
    (tmp_path / "job").write_bytes(job_of(micro()).encoded())

    main(["--job", f"{tmp_path}/job", "--blobs", str(tmp_path), "--out", f"{tmp_path}/out"])

    assert json.loads((tmp_path / "out").read_text()) == {"losses": plain}


def job_of(config: TrainConfig) -> JobSpec:
    whole = whole_model(config.model)
    return JobSpec(
        poster=ZERO_ADDRESS,
        coordinator=ZERO_ADDRESS,
        nonce=0,
        name="micro",
        budget=BaseUnits(1),
        epoch_cap=BaseUnits(1),
        price_ceiling=PricePerPflop(1),
        deadline=UnixSeconds(0),
        min_stake=BaseUnits(0),
        memory_bytes=stage_memory(config.model, whole, config.data.rows_per_unit).total(),
        unit_flops=(unit_flops(config.model, whole, config.data.rows_per_unit),),
        model=model_spec(config.model),
        optimizer=optimizer_spec(config.optimizer),
        data=DataSpec(
            manifest=CORPUS.manifest.digest(), seed=config.data.seed, tokenizer=ZERO_DIGEST
        ),
        batch=BatchSpec(
            steps=config.num_steps,
            units_per_step=config.data.units_per_step,
            rows_per_unit=config.data.rows_per_unit,
            stages=1,
            layer_ends=(config.model.num_layers,),
            peers_per_stage=1,
            spares=0,
            chunks=3,
            checkpoint_every=10,
            validate_every=20,
        ),
        rules=RulesSpec(
            audit=None,
            boundary_codec="none",
            gradient_codec="none",
            vesting_window=5,
            commit_timeout=1000,
            exchange_timeout=1000,
            redo_after=1000,
            lease_grace=1000,
        ),
    )
