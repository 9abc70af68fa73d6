"""What a holder takes of a shard: of jobs of local steps no codes and no numbers that nobody makes.

A shard that is refused is not delivered, so its claim is not merged (`test_local_attacks`).
"""

import math

import numpy as np
import pytest

from contracts.terms.errors import Malformed, NotFinite, WrongBytes
from contracts.terms.ids import ChunkIndex
from contracts.terms.messages import JobSpec
from tests.support.history import make_spec
from tests.support.local_jobs import of_local_steps
from training.averaging.forms import Forms
from training.averaging.norms import norm_squared
from training.strategies.limits import numbers_of
from training.strategies.local.movement import longest_step

SIZE = 64  # one block of seeded codes
FIRST = ChunkIndex(0)
ZERO_BLOCK, ONE = b"\x80", b"\x00"  # exponents


def spec_of(codec: str, **changed: object) -> JobSpec:
    """A job of rounds of two local steps."""
    return make_spec(**{**of_local_steps(), "gradient_codec": codec, **changed})


def largest(spec: JobSpec) -> float:
    """What an element of a shard may be at most."""
    _, (_, most) = numbers_of(spec)("work", FIRST)
    return most


def fp32(*numbers: float) -> bytes:
    """A shard that is zero but for its first numbers."""
    return np.array([*numbers, *[0.0] * (SIZE - len(numbers))], "<f4").tobytes()


def seeded4(scale: bytes, first: int) -> bytes:
    """A shard of one block, zero but for its first two codes."""
    return scale + bytes([first]) + bytes(SIZE // 2 - 1)


def test_need_part__shards_of_moments__are_as_their_means_and_roots_not_below_zero() -> None:
    spec = spec_of("seeded4", local=of_local_steps(moments="mean")["local"])
    forms, chunks = Forms(spec), spec.batch.chunks
    below = bytes([0x80, 0xBF]) + bytes(2 * SIZE - 2)  # -1.0 in bfloat16, then zeros

    forms.need_part("work", ChunkIndex(chunks), below, SIZE, 10**12)
    for what in ("work", "bucket"):
        with pytest.raises(WrongBytes, match="steps come to"):
            forms.need_part(what, ChunkIndex(2 * chunks), below, SIZE, 10**12)


@pytest.mark.parametrize(
    "shard",
    [
        seeded4(ONE, 0x08),  # code -8
        seeded4(ONE, 0x80),
        seeded4(ZERO_BLOCK, 0x01),  # a number in a block that has none
        seeded4(ONE, 0)[:-1],
        seeded4(ONE, 0) + b"\0",
    ],
)
def test_need_part__codes_that_nobody_makes__refused(shard: bytes) -> None:
    with pytest.raises((Malformed, WrongBytes)):
        Forms(spec_of("seeded4")).need_part("work", FIRST, shard, SIZE, 0)


def test_need_part__not_finite_or_of_another_norm__refused() -> None:
    forms = Forms(spec_of("none"))

    with pytest.raises(NotFinite):
        forms.need_part("work", FIRST, fp32(math.nan), SIZE, 0)
    with pytest.raises(WrongBytes):
        forms.need_part("work", FIRST, fp32(1e-6), SIZE, 10**12)


def test_need_part__weight_that_moves_farther_than_the_steps_can__refused() -> None:
    spec = spec_of("none")
    forms, most = Forms(spec), largest(spec)
    near, far = fp32(-0.99 * most), fp32(1.01 * most)

    forms.need_part("work", FIRST, near, SIZE, norm_squared(near))
    with pytest.raises(WrongBytes, match="steps come to"):
        forms.need_part("work", FIRST, far, SIZE, norm_squared(far))


def test_need_part__same_far_weight_in_four_bits_or_in_a_mean__refused() -> None:
    spec = spec_of("seeded4")
    exponent = math.ceil(math.log2(largest(spec)))
    far = seeded4(exponent.to_bytes(1, "big", signed=True), 2)
    mean = bytes([0, 0, 0x80, 0x3F]) + bytes(2 * SIZE - 4)  # 1.0 in bfloat16

    with pytest.raises(WrongBytes, match="steps come to"):
        Forms(spec).need_part("work", FIRST, far, SIZE, 4 * 4**exponent * 10**12)
    with pytest.raises(WrongBytes, match="steps come to"):
        Forms(spec).need_part("bucket", FIRST, mean, SIZE, norm_squared(mean, "bfloat16"))


@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.95), (0.9, 0.999)])
@pytest.mark.parametrize("steps", [1, 5, 100])
def test_longest_step__gradients_that_move_a_weight_most__not_farther(
    beta1: float, beta2: float, steps: int
) -> None:
    gradients = [(beta1 / beta2) ** age for age in reversed(range(steps))]
    m = v = 0.0
    for number, gradient in enumerate(gradients, 1):
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
        moved = m / math.sqrt(v / (1 - beta2**number))

    assert moved <= longest_step(beta1, beta2, steps) * (1 + 1e-9)
    if (steps, beta2) == (100, 0.95):
        assert moved == pytest.approx(longest_step(beta1, beta2, steps), rel=1e-3)


def test_numbers_of__betas_with_which_one_old_gradient_outweighs_all__no_bound() -> None:
    optimizer = make_spec().optimizer.model_copy(update={"beta1": 990_000, "beta2": 900_000})

    assert largest(spec_of("none", optimizer=optimizer)) == math.inf
    assert largest(make_spec()) == math.inf  # every step: gradients have no such bound
