"""Are tensors spoilt that are bound in order?"""

import math
import struct

import pytest

from contracts.terms.digest import tensor_digest
from contracts.terms.ids import StepNumber, UnitId
from tallystick.gym.malformed import Spoilt, SpoiltParts, not_finite
from tallystick.gym.plan import Plan
from training.averaging.slices import slice_digest
from training.fakes.counting import CountingCompute
from training.worker.ports import Sent

STEP, UNIT = StepNumber(1), UnitId(2)


def spoilt_y(*, is_oversized: bool, first: int = 1) -> tuple[Sent, Sent]:
    """An honest y, and the one that is sent."""
    honest = CountingCompute(2, 0, 2).forward(STEP, UNIT, None).y
    peer = Spoilt(CountingCompute(2, 0, 2), Plan(first=first), is_oversized=is_oversized)
    sent = peer.forward(STEP, UNIT, None).y
    assert honest is not None
    assert sent is not None
    return honest, sent


@pytest.mark.parametrize("is_oversized", [False, True])
def test_spoilt__tensor__has_the_digest_of_what_is_sent(is_oversized: bool) -> None:
    honest, sent = spoilt_y(is_oversized=is_oversized)

    assert sent.digest == tensor_digest(sent.dtype, sent.shape, sent.data)
    assert sent.shape == honest.shape
    assert len(sent.data) == len(honest.data) * (2 if is_oversized else 1)
    assert is_oversized or sent.data == not_finite(honest.data)


def test_spoilt__before_its_first_step__is_honest() -> None:
    honest, sent = spoilt_y(is_oversized=True, first=2)

    assert sent == honest


@pytest.mark.parametrize("kind", ["<2f", "<2e"])
def test_not_finite__numbers__are_none(kind: str) -> None:
    assert all(map(math.isnan, struct.unpack(kind, not_finite(struct.pack(kind, 1, 2)))))


def test_spoilt_parts__digest_in_order__norm_is_the_true_one() -> None:
    compute = CountingCompute(2)
    compute.forward(STEP, UNIT, None)

    parts = SpoiltParts(Plan(), "none", is_oversized=True).parts(compute, STEP)

    assert all(piece.digest == slice_digest(piece.data) for piece in parts)
    honest = compute.gradient()
    assert [piece.norm_squared for piece in parts] == [piece.norm_squared for piece in honest]
    assert [len(piece.data) for piece in parts] == [2 * len(piece.data) for piece in honest]
