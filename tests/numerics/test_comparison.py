"""Does each measure see what it is for, and does none see what is not there?"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from contracts.terms.errors import Refused
from contracts.terms.messages import DISTANCE_SCALE
from verification.distances.comparison import (
    FLOOR_SHARE,
    LARGEST_PART,
    Comparison,
    Distances,
    Measured,
    distances_between,
)
from verification.distances.thresholds import MEASURES, SATURATED, Recipe

NUM = 64 * LARGEST_PART
SATURATED_ALL = (SATURATED,) * len(MEASURES)


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


REPLAY = drawn(NUM)


def tensor_distances(claimed: Tensor, replayed: Tensor, *, floor: float = 0.0) -> Distances:
    return distances_between(claimed, Measured.of(replayed), floor)


def measured(claimed: Tensor, replayed: Tensor = REPLAY, *, floor: float = 0.0) -> dict[str, float]:
    distances = tensor_distances(claimed, replayed, floor=floor)
    named = zip(MEASURES, distances, strict=True)
    return {name: distance / DISTANCE_SCALE for name, distance in named}


def largest_only() -> Tensor:
    border = REPLAY.abs().sort(descending=True).values[NUM // LARGEST_PART - 1]
    return torch.where(REPLAY.abs() >= border, REPLAY, torch.zeros_like(REPLAY))


def test_tensor_distances__equal_tensors__are_zero() -> None:
    assert tensor_distances(REPLAY.clone(), REPLAY) == (0, 0, 0, 0)


@pytest.mark.parametrize("factor", [1.01, 0.99, 1.001])
def test_tensor_distances__scaled_claim__is_off_by_the_factor(factor: float) -> None:
    found = measured(REPLAY * factor)

    wanted = abs(factor - 1)
    assert found["signs"] == 0
    for measure in ("relative_l2", "norm_ratio", "largest"):
        assert found[measure] == pytest.approx(wanted, rel=1e-3)


def test_tensor_distances__noise__is_seen_by_l2_and_hardly_by_the_norm() -> None:
    noise = drawn(NUM, seed=3)

    found = measured(REPLAY + 0.01 * noise * (REPLAY.norm() / noise.norm()))

    assert found["relative_l2"] == pytest.approx(0.01, rel=1e-3)
    assert found["norm_ratio"] < 0.001


def test_tensor_distances__all_signs_flipped__are_all_of_the_magnitude() -> None:
    found = measured(-REPLAY)

    assert found["signs"] == pytest.approx(1, abs=1e-8)
    assert found["relative_l2"] == pytest.approx(2, abs=1e-8)
    assert found["norm_ratio"] == 0


def test_tensor_distances__one_large_entry_flipped__is_above_one_in_its_number() -> None:
    claim = REPLAY.clone()
    claim[claim.abs().argmax()] *= -1

    assert measured(claim)["signs"] > LARGEST_PART / NUM


def test_tensor_distances__small_entry_flipped__is_no_large_sign() -> None:
    claim = REPLAY.clone()
    claim[claim.abs().argmin()] *= -1

    assert measured(claim)["signs"] == 0


def test_tensor_distances__only_the_largest_kept__is_seen_beyond_them() -> None:
    found = measured(largest_only())

    assert (found["signs"], found["largest"]) == (0, 0)
    assert found["relative_l2"] > 0.5
    assert found["norm_ratio"] > 0.3


def unsampled(values: Tensor) -> Tensor:
    """The same entries, the largest of them where no sample of every 64th looks."""
    ascending = values[values.abs().argsort()]
    rows = ascending.reshape(LARGEST_PART, -1)  # the last row has the largest
    return rows.T.flatten()


@pytest.mark.parametrize(
    "arranged",
    [
        pytest.param(lambda values: values, id="as drawn"),
        pytest.param(lambda values: values[values.abs().argsort()], id="ascending"),
        pytest.param(lambda values: values[values.abs().argsort(descending=True)], id="descending"),
        pytest.param(unsampled, id="where no sample looks"),
        pytest.param(lambda values: unsampled(values).flip(0), id="where every sample looks"),
    ],
)
def test_tensor_distances__wherever_the_largest_entries_lie__they_are_found(
    arranged: Callable[[Tensor], Tensor],
) -> None:
    replay = arranged(drawn(NUM * LARGEST_PART))
    border = replay.abs().sort(descending=True).values[len(replay) // LARGEST_PART - 1]
    is_largest = replay.abs() >= border

    assert measured(torch.where(is_largest, 0.0, replay), replay)["largest"] == pytest.approx(1)
    assert measured(torch.where(is_largest, replay, 0.0), replay)["largest"] == 0


def test_tensor_distances__zero_claim__misses_everything() -> None:
    found = measured(torch.zeros_like(REPLAY))

    assert found == pytest.approx(dict.fromkeys(MEASURES, 1.0), abs=1e-8)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["claimed", "replayed"])
def test_tensor_distances__not_finite__is_farther_than_anything(value: float, side: str) -> None:
    broken = REPLAY.clone()
    broken[7] = value
    sides = {"claimed": REPLAY, "replayed": REPLAY, side: broken}

    assert tensor_distances(sides["claimed"], sides["replayed"]) == SATURATED_ALL


def test_tensor_distances__difference_beyond_fp32__is_saturated_not_missed() -> None:
    huge = torch.full((32,), 3e38)

    assert tensor_distances(-huge, huge)[0] == SATURATED


def test_tensor_distances__other_shape__is_refused() -> None:
    with pytest.raises(Refused, match="shape"):
        tensor_distances(REPLAY.view(2, -1), REPLAY)


def test_tensor_distances__smallest_difference__is_not_rounded_to_zero() -> None:
    claim = torch.ones(10**6)
    claim[0] = torch.nextafter(claim[0], torch.tensor(2.0))

    assert tensor_distances(claim, torch.ones(10**6))[0] == 1


def test_tensor_distances__bf16_inputs__are_compared_in_fp32() -> None:
    claim, replay = REPLAY.bfloat16(), (REPLAY * 1.01).bfloat16()

    assert tensor_distances(claim, replay) == tensor_distances(claim.float(), replay.float())


@pytest.mark.parametrize("change", [lambda t: t * 0, lambda t: -t])
def test_tensor_distances__below_the_floor__counts_against_the_floor(
    change: Callable[[Tensor], Tensor],
) -> None:
    noise = REPLAY * 1e-9

    found = measured(change(noise), noise, floor=1e-3)

    assert max(found.values()) < 1e-5
    assert measured(change(noise), noise)["relative_l2"] >= 1 - 1e-6


def gradient(small: float = 1.0) -> dict[str, Tensor]:
    return {
        "model.layers.0.self_attn.q_proj.weight": drawn(64, 64, seed=4),
        "model.layers.1.self_attn.q_proj.weight": drawn(64, 64, seed=5),
        "model.norm.weight": drawn(64, seed=6) * small,
    }


def test_comparison__two_layers__state_the_farther_of_a_role() -> None:
    replay, found = gradient(), Comparison(Recipe())
    claim = dict(replay)
    claim["model.layers.0.self_attn.q_proj.weight"] = claim[
        "model.layers.0.self_attn.q_proj.weight"
    ] * torch.tensor(1.02)
    claim["model.layers.1.self_attn.q_proj.weight"] = claim[
        "model.layers.1.self_attn.q_proj.weight"
    ] * torch.tensor(1.01)

    found.add_gradient(claim, replay)

    stated = dict(found.distances())
    assert stated["gradient.q_proj/relative_l2"] == pytest.approx(0.02 * DISTANCE_SCALE, rel=1e-3)
    assert stated["gradient.norm/relative_l2"] == 0
    assert found.num_tensors == 3


def test_comparison__units__state_the_farthest_of_each_measure() -> None:
    found = Comparison(Recipe())

    found.add("y", REPLAY * 1.01, REPLAY)
    found.add("y", -REPLAY, REPLAY)
    found.add("y", REPLAY, REPLAY)

    stated = dict(found.distances())
    assert stated["y/signs"] == pytest.approx(DISTANCE_SCALE, rel=1e-8)
    assert stated["y/norm_ratio"] == pytest.approx(0.01 * DISTANCE_SCALE, rel=1e-3)
    assert [name for name, _ in found.distances()] == sorted(stated)


def test_comparison__noise_where_the_gradient_vanishes__is_floored_by_the_whole() -> None:
    """q and k of one token have no gradient but rounding noise: nobody is blamed for its sign."""
    replay = gradient(small=1e-8)
    claim = replay | {"model.norm.weight": -replay["model.norm.weight"]}
    found = Comparison(Recipe())

    found.add_gradient(claim, replay)

    noise = 2e-8 / FLOOR_SHARE
    assert dict(found.distances())["gradient.norm/relative_l2"] < 2 * noise * DISTANCE_SCALE


def test_comparison__lie_in_a_tensor_of_a_tenth_of_the_rest__is_not_floored() -> None:
    replay = gradient(small=1e-1)
    claim = replay | {"model.norm.weight": replay["model.norm.weight"] * 1.01}
    found = Comparison(Recipe())

    found.add_gradient(claim, replay)

    far = dict(found.distances())["gradient.norm/norm_ratio"]
    assert far == pytest.approx(0.01 * DISTANCE_SCALE, rel=1e-3)


def test_comparison__float16_below_its_normal_numbers__measures_against_them() -> None:
    replay = {"lm_head.weight": torch.full((64, 64), 6e-8)}
    claim = {"lm_head.weight": torch.full((64, 64), 1.2e-7)}  # the next one up
    coded, plain = Comparison(Recipe(gradient_codec="float16")), Comparison(Recipe())

    coded.add_gradient(claim, replay)
    plain.add_gradient(claim, replay)

    assert dict(coded.distances())["gradient.lm_head/relative_l2"] < 0.001 * DISTANCE_SCALE
    assert dict(plain.distances())["gradient.lm_head/relative_l2"] > 0.9 * DISTANCE_SCALE


def test_comparison__gradient_of_other_parameters__is_refused() -> None:
    claim = gradient()
    del claim["model.norm.weight"]

    with pytest.raises(Refused, match="other parameters"):
        Comparison(Recipe()).add_gradient(claim, gradient())


def test_comparison__gradient_that_is_not_finite__saturates_its_role_alone() -> None:
    claim = gradient()
    claim["model.norm.weight"][3] = math.nan
    found = Comparison(Recipe())

    found.add_gradient(claim, gradient())

    assert found.farthest()["gradient.norm"] == SATURATED_ALL
    assert found.farthest()["gradient.q_proj"] == (0, 0, 0, 0)
