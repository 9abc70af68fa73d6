"""Projections of a trace: what they estimate, and that nobody guesses them."""

import numpy as np
import pytest
import torch
from torch import Tensor

from training.strategies.local.trace import NUM_PROJECTIONS, projections, residual


def vector(seed: int, size: int = 20_000) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def seed(number: int) -> bytes:
    return number.to_bytes(32, "little")


@pytest.mark.parametrize("distance", [1e-3, 0.1, 1.0])
def test_residual__gradients_at_a_distance__estimates_it(distance: float) -> None:
    one, other = vector(1), vector(2)
    near = one + distance * other

    found = [residual(projections(one, seed(n)), projections(near, seed(n))) for n in range(40)]

    # At a large distance the longer vector is also divided by its larger norm.
    actual = float((one / one.norm() - near / near.norm()).norm())
    assert np.sqrt(np.mean(np.square(found))) == pytest.approx(actual, rel=0.15)


def test_projections__part_of_the_gradient_left_out__is_seen() -> None:
    whole = vector(1)
    partly = whole.clone()
    partly[5000:6000] = 0

    assert residual(projections(whole, seed(3)), projections(partly, seed(3))) > 0.1


def test_projections__scaled_gradient__are_the_same() -> None:
    one = vector(1)

    assert residual(projections(one, seed(1)), projections(3 * one, seed(1))) < 2e-6


@pytest.mark.parametrize("element", [17, 4096 + 17, 2 * 4096 + 17])
def test_projections__known_seed__are_signs_of_the_bits_of_the_stream(element: int) -> None:
    one = torch.zeros(2 * 4096 + 100)
    one[element] = -2.0
    row, column = divmod(element, 4096)
    words = np.random.Philox(key=1, counter=0).random_raw(600)
    bytes_ = [int(words[at // 8]) >> 8 * (at % 8) & 255 for at in (column, 4096 + row)]

    signs = [(-1) ** (sum(each >> k & 1 for each in bytes_)) for k in range(NUM_PROJECTIONS)]

    assert projections(one, seed(1)) == tuple(-(10**6) * sign for sign in signs)


def test_projections__vector_of_zeros__zero() -> None:
    assert projections(torch.zeros(10), seed(1)) == (0,) * NUM_PROJECTIONS


def test_residual__projections_missing__infinite() -> None:
    assert residual((), (1,) * NUM_PROJECTIONS) == float("inf")
