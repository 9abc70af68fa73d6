"""Are the scalars of an update the textbook's, exact in fp32, and free of library functions?"""

import math
import struct
from dataclasses import asdict, replace

import pytest

from contracts.terms.messages import NORM_SCALE
from training.config import OptimizerConfig
from training.stages.torch_free import clip_factor, learning_rate, power, update_scalars

COSINE = OptimizerConfig(learning_rate=0.002, total_steps=60, warmup_steps=6, final_ratio=0.1)


def test_learning_rate__warm_up__climbs_evenly_to_the_peak() -> None:
    rates = [learning_rate(COSINE, update) for update in range(6)]

    assert rates == pytest.approx([0.002 * k / 6 for k in range(1, 7)], rel=1e-15)
    assert rates[-1] == 0.002


@pytest.mark.parametrize("update", [6, 7, 20, 33, 59])
def test_learning_rate__cosine__is_the_formula_to_the_last_digits(update: int) -> None:
    progress = (update - 6) / 54
    formula = 0.002 * (0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2)

    assert learning_rate(COSINE, update) == pytest.approx(formula, rel=1e-14)


def test_learning_rate__after_the_last_step__stays_at_the_final_ratio() -> None:
    assert learning_rate(COSINE, 60) == pytest.approx(0.0002, rel=1e-12)
    assert learning_rate(COSINE, 1000) == learning_rate(COSINE, 60)


def test_learning_rate__constant_schedule__is_the_peak_after_warm_up() -> None:
    constant = replace(COSINE, schedule="constant")

    assert {learning_rate(constant, update) for update in (6, 30, 59)} == {0.002}


def test_learning_rate__linear__goes_down_evenly_to_the_final_ratio() -> None:
    linear = replace(COSINE, schedule="linear")
    rates = [learning_rate(linear, update) for update in (6, 33, 60, 1000)]

    assert rates == pytest.approx([0.002, 0.0011, 0.0002, 0.0002], rel=1e-15)


def test_learning_rate__wsd__stays_at_the_peak_and_decays_in_the_last_part() -> None:
    wsd = replace(COSINE, schedule="wsd", decay_ratio=0.2)
    rates = [learning_rate(wsd, update) for update in (6, 47, 48, 54, 60, 1000)]

    assert rates == pytest.approx([0.002, 0.002, 0.002, 0.0011, 0.0002, 0.0002], rel=1e-15)


def test_learning_rate__wsd_that_warms_up_into_its_decay__decays_from_there() -> None:
    wsd = replace(COSINE, schedule="wsd", warmup_steps=20, decay_ratio=1.0)

    assert learning_rate(wsd, 40) == pytest.approx(0.0011, rel=1e-15)


@pytest.mark.parametrize("warmup_steps", [0, 60])
@pytest.mark.parametrize("decay_ratio", [1e-6, 1.0])
def test_learning_rate__wsd_at_its_bounds__is_within_final_and_peak(
    warmup_steps: int, decay_ratio: float
) -> None:
    wsd = replace(COSINE, schedule="wsd", warmup_steps=warmup_steps, decay_ratio=decay_ratio)

    for update in range(warmup_steps, 62):
        assert 0.0002 <= learning_rate(wsd, update) <= 0.002


@pytest.mark.parametrize(("norm", "factor"), [(0.5, 1.0), (1.0, 1 / 1.000001), (4.0, 0.25)])
def test_clip_factor__sealed_norm__scales_down_what_is_above(norm: float, factor: float) -> None:
    assert clip_factor(COSINE, round(norm * NORM_SCALE)) == pytest.approx(factor, rel=1e-6)


def test_clip_factor__no_clip__is_one() -> None:
    assert clip_factor(replace(COSINE, clip_norm=0.0), 10**15) == 1.0


def test_power__whole_exponents__is_close_to_pow() -> None:
    for exponent in (0, 1, 2, 3, 60, 1000, 10_000_000):
        assert power(0.999, exponent) == pytest.approx(0.999**exponent, rel=1e-12)


def test_update_scalars__first_update__corrects_the_bias_fully() -> None:
    scalars = update_scalars(COSINE, 0, NORM_SCALE // 2)

    assert scalars.clip == 1.0
    assert scalars.step_size == pytest.approx(0.002 / 6 / 0.1, rel=1e-6)
    assert scalars.inverse_root_correction2 == pytest.approx(1 / math.sqrt(0.05), rel=1e-6)
    assert scalars.decay == pytest.approx(1 - 0.002 / 6 * 0.1, rel=1e-7)


def test_update_scalars__each__is_an_fp32_number() -> None:
    for value in asdict(update_scalars(COSINE, 17, 3 * NORM_SCALE)).values():
        assert struct.unpack("<f", struct.pack("<f", value))[0] == value
