"""Projections of a trace: what they estimate, and that nobody guesses them."""

import numpy as np
import pytest

from training.strategies.local.trace import NUM_PROJECTIONS, projections, residual


def vector(seed: int, size: int = 20_000) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    found = np.random.Generator(np.random.Philox(seed)).standard_normal(size)
    return found.astype(np.float32)


def seed(number: int) -> bytes:
    return number.to_bytes(32, "little")


@pytest.mark.parametrize("distance", [1e-3, 0.1, 1.0])
def test_residual__gradients_at_a_distance__estimates_it(distance: float) -> None:
    one, other = vector(1), vector(2)
    near = one + np.float32(distance) * other

    found = [residual(projections(one, seed(n)), projections(near, seed(n))) for n in range(40)]

    # At a large distance the longer vector is also divided by its larger norm.
    actual = np.linalg.norm(one / np.linalg.norm(one) - near / np.linalg.norm(near))
    assert np.sqrt(np.mean(np.square(found))) == pytest.approx(actual, rel=0.15)


def test_projections__part_of_the_gradient_left_out__is_seen() -> None:
    whole = vector(1)
    partly = whole.copy()
    partly[5000:6000] = 0

    assert residual(projections(whole, seed(3)), projections(partly, seed(3))) > 0.1


def test_projections__scaled_gradient__are_the_same() -> None:
    one = vector(1)

    assert residual(projections(one, seed(1)), projections(3 * one, seed(1))) < 2e-6


def test_projections__known_seed__are_signs_of_the_bits_of_the_stream() -> None:
    one = np.zeros(100, np.float32)
    one[17] = -2.0
    word = int(np.random.Philox(key=1, counter=0).random_raw(3)[17 // 8])
    byte = word >> 8 * (17 % 8) & 255

    signs = [-1 if byte >> k & 1 else 1 for k in range(NUM_PROJECTIONS)]

    assert projections(one, seed(1)) == tuple(-(10**6) * sign for sign in signs)


def test_projections__vector_of_zeros__zero() -> None:
    assert projections(np.zeros(10, np.float32), seed(1)) == (0,) * NUM_PROJECTIONS


def test_residual__projections_missing__infinite() -> None:
    assert residual((), (1,) * NUM_PROJECTIONS) == float("inf")
