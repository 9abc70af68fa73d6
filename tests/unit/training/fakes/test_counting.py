"""Is the fake arithmetic one that shows mistakes?"""

import pytest

from contracts.terms.errors import Malformed, Refused
from contracts.terms.ids import StepNumber, UnitId
from training.fakes.counting import CountingCompute

STEP, UNIT, OTHER = StepNumber(1), UnitId(0), UnitId(1)


def middle() -> CountingCompute:
    return CountingCompute(2, 1, 3)


def tensors() -> tuple[bytes, bytes]:
    """Some x and dy for the middle stage."""
    first, last = CountingCompute(2, 0, 3), CountingCompute(2, 2, 3)
    x = first.forward(STEP, UNIT, None).y
    assert x is not None
    y = middle().forward(STEP, UNIT, x.data).y
    assert y is not None
    dy = last.forward(STEP, UNIT, y.data).dx
    assert dy is not None
    return x.data, dy.data


def test_counting__kept_or_repeated_from_x__the_same_gradient() -> None:
    x, dy = tensors()
    sticky, again = middle(), middle()

    sticky.forward(STEP, UNIT, x)
    assert sticky.keeps(UNIT)
    kept, repeated = sticky.backward(STEP, UNIT, None, dy), again.backward(STEP, UNIT, x, dy)

    assert (kept.x, kept.dx) == (repeated.x, repeated.dx)
    assert repeated.y is not None and kept.y is None
    assert sticky.gradient() == again.gradient()


def test_counting__added_and_subtracted__as_if_it_had_never_been() -> None:
    x, dy = tensors()
    compute, alone = middle(), middle()
    alone.backward(STEP, UNIT, x, dy)

    compute.backward(STEP, UNIT, x, dy)
    compute.backward(STEP, OTHER, x, dy)
    compute.subtract(STEP, OTHER, x, dy)

    assert compute.gradient() == alone.gradient()
    with pytest.raises(Refused):
        compute.subtract(STEP, OTHER, x, dy)


def test_counting__another_x_dy_unit_or_state__another_gradient() -> None:
    x, dy = tensors()
    gradients = []
    for given in ((UNIT, x, dy), (UNIT, dy, dy), (UNIT, x, x), (OTHER, x, dy)):
        compute = middle()
        compute.backward(STEP, *given)
        gradients.append(compute.gradient())
    older = middle()
    older.weights[0] += 1
    older.backward(STEP, UNIT, x, dy)

    assert len({*gradients, older.gradient()}) == 5


def test_counting__tensor_of_another_size__malformed() -> None:
    with pytest.raises(Malformed):
        middle().forward(STEP, UNIT, b"1234")
