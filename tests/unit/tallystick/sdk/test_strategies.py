"""What would a job send with each strategy, how fast would it be, and which is better?"""

from typing import Any

import pytest

from contracts.terms.messages import JobSpec
from tallystick.sdk.job_file import JobFile
from tallystick.sdk.strategies import (
    Machine,
    StrategyPlan,
    other_strategy,
    recommended,
    strategy_plan,
)
from tests.unit.tallystick.sdk.test_job_file import job, spec_of
from training.config import slices_of, whole_model
from training.memory import num_parameters

SLOW, FAST = Machine(10**9, 10**5), Machine(3 * 10**9, 10**6)


def planned(made: JobFile, machines: list[Machine]) -> StrategyPlan:
    spec = spec_of(made)
    return strategy_plan(spec, made.train_config().model, machines, spec.price_ceiling)


def tokens(spec: JobSpec) -> int:
    return spec.batch.steps * spec.batch.units_per_step * spec.batch.rows_per_unit


def test_strategy_plan__every_step__sends_gradients_means_and_boundaries() -> None:
    made = job(
        recipe="tiny_llama", stages=3, peers_per_stage=2, units_per_step=8, rows_per_unit=4,
        boundary_codec="bfloat16", gradient_codec="bfloat16",
    )  # fmt: skip
    model, spec = made.train_config().model, spec_of(made)

    found = planned(made, [SLOW, FAST] * 3)

    boundary = 2 * 4 * model.sequence_length * model.width
    stages = slices_of(model, spec.batch.layer_ends)
    assert found.bytes_a_round == max(
        2 * num_parameters(model, stage) + 4 * neighbours * boundary  # half of two 16-bit vectors
        for stage, neighbours in zip(stages, (1, 2, 1), strict=True)
    )
    of_a_stage = SLOW.flops_per_second + FAST.flops_per_second
    seconds = 8 * max(spec.item_flops) / of_a_stage
    assert found.tokens_a_second_computing == int(32 * model.sequence_length / seconds)
    lines = found.tokens_a_round * SLOW.bandwidth // found.bytes_a_round
    assert found.tokens_a_second == found.tokens_a_second_lines == lines
    assert found.bytes_a_second in (SLOW.bandwidth - 1, SLOW.bandwidth)


@pytest.mark.parametrize(("moments", "vectors"), [("restart", 1), ("mean", 3)])
def test_strategy_plan__local_steps__send_one_exchange_and_wait_for_the_slowest(
    moments: str, vectors: int
) -> None:
    rounds = {"inner_steps": 20, "segments": 2, "moments": moments}
    made = job(strategy="local", peers_per_stage=4, local=rounds)
    model = made.train_config().model
    spec, parameters = spec_of(made), num_parameters(model, whole_model(model))

    found = planned(made, [SLOW, FAST, FAST, FAST])

    four_bits = -(-parameters // 64) + parameters // 2  # with a byte of scale for 64 elements
    others = (vectors - 1) * 2 * 2 * parameters  # bfloat16 there and back
    assert found.bytes_a_round == 3 * (four_bits + 2 * parameters + others) // 4
    seconds = 2 * spec.item_flops[0] / SLOW.flops_per_second
    assert found.tokens_a_second_computing == int(found.tokens_a_round / seconds)


@pytest.mark.parametrize("overlap", [False, True])
def test_strategy_plan__local_steps__compute_and_send_in_turn_or_at_once(overlap: bool) -> None:
    rounds = {"inner_steps": 20, "segments": 2, "overlap": overlap}
    made = job(strategy="local", peers_per_stage=4, local=rounds)

    found = planned(made, [SLOW, FAST, FAST, FAST])

    both = found.tokens_a_second_computing, found.tokens_a_second_lines
    computing, lines = (each or 0 for each in both)
    wanted = min(computing, lines) if overlap else computing * lines / (computing + lines)
    assert found.tokens_a_second == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize("machines", [[], [FAST]])
def test_strategy_plan__too_few_offers__only_says_what_is_sent(machines: list[Machine]) -> None:
    found = planned(job(peers_per_stage=2), machines)

    assert found.bytes_a_round > 0 and found.tokens_a_second is None
    assert "too few offers" in recommended([found, found])


def test_strategy_plan__one_peer__sends_nothing_and_lines_are_no_limit() -> None:
    found = planned(job(), [FAST])

    assert (found.bytes_a_round, found.bytes_a_second, found.tokens_a_second_lines) == (0, 0, None)
    assert found.tokens_a_second == found.tokens_a_second_computing


@pytest.mark.parametrize(
    "changed",
    [
        {"recipe": "tiny_llama", "stages": 3, "peers_per_stage": 2, "steps": 300},
        {"strategy": "local", "peers_per_stage": 3, "gradient_codec": "seeded8", "steps": 4},
        {"checking": "on", "peers_per_stage": 4, "steps": 200, "units_per_step": 4},
    ],
    ids=["stages", "local", "checked"],
)
def test_other_strategy__of_a_job__has_its_tokens_and_peers(changed: dict[str, Any]) -> None:
    made = job(**changed)
    own = spec_of(made)

    other = other_strategy(made, own)

    spec = spec_of(other)
    assert {own.strategy, spec.strategy} == {"every_step", "local"}
    assert spec.batch.peers_per_stage == own.batch.stages * own.batch.peers_per_stage
    assert spec.batch.rows_at_once == own.batch.rows_at_once
    assert tokens(own) <= tokens(spec)  # the last round is a whole one
    assert (tokens(spec) - tokens(own)) * spec.batch.steps < tokens(spec)


def test_recommended__slow_lines_or_fast_ones__says_which_and_why() -> None:
    made = job(recipe="tiny_llama", peers_per_stage=4, steps=100, units_per_step=8)
    other = other_strategy(made, spec_of(made))
    fast = SLOW._replace(bandwidth=10**12)

    assert "take local" in recommended([planned(each, [SLOW] * 4) for each in (made, other)])
    assert "take every_step" in recommended([planned(each, [fast] * 4) for each in (other, made)])
