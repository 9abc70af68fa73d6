"""What does a lazy peer count, show and bind itself to, and what of it did it compute?"""

from collections.abc import Sequence
from fractions import Fraction

import pytest

from contracts.terms.ids import StepNumber, UnitId
from tallystick.gym.lazy import Copied, Half, Junk, Lazy, Skipped, Stale
from tallystick.gym.plan import Plan
from tests.support.fakes.counting import CountingCompute
from training.worker.ports import Passed

ONE, TWO = StepNumber(1), StepNumber(2)
A, B, C = UnitId(0), UnitId(1), UnitId(2)
UNITS = (A, B, C)
KINDS = [Copied, Stale, Skipped, Half, Junk]
ALL_KINDS = pytest.mark.parametrize("kind", KINDS)


class Counted(CountingCompute):
    """Notes which units were really computed."""

    def __init__(self, stage: int, num_stages: int) -> None:
        super().__init__(2, stage, num_stages)
        self.computed: list[UnitId] = []

    def _add(self, gradient: Sequence[float], sign: int) -> None:
        super()._add(gradient, sign)
        self.computed = list(self._units)


def lazy(kind: type[Lazy], *, stage: int = 0, num_stages: int = 1) -> tuple[Lazy, Counted]:
    inner = Counted(stage, num_stages)
    return kind(inner, Plan(first=1), 4), inner


def neighbours(num_stages: int, stage: int, unit: UnitId) -> tuple[bytes | None, bytes | None]:
    """x and dy of a unit, as neighbours would send them."""
    plain = CountingCompute(2, 0, 2)
    y = plain.forward(ONE, unit, None).y
    last = CountingCompute(2, 1, 2)
    assert y is not None
    dx = last.forward(ONE, unit, y.data).dx
    assert dx is not None
    return (None if stage == 0 else y.data), (None if stage == num_stages - 1 else dx.data)


def through(peer: Lazy, step: StepNumber, *, stage: int, num_stages: int) -> dict[UnitId, Passed]:
    """All units forward, then backward; what was shown of each."""
    shown = {}
    for unit in UNITS:
        x, _ = neighbours(num_stages, stage, unit)
        shown[unit] = peer.forward(step, unit, x)
    if stage < num_stages - 1:
        for unit in UNITS:
            _, dy = neighbours(num_stages, stage, unit)
            dx = peer.backward(step, unit, None, dy).dx
            shown[unit] = Passed(shown[unit].x, shown[unit].y, dx, shown[unit].loss)
    return shown


@ALL_KINDS
@pytest.mark.parametrize(("stage", "num_stages"), [(0, 1), (0, 3), (1, 3), (2, 3)])
def test_lazy__second_step__counts_what_it_did_not_compute(
    kind: type[Lazy], stage: int, num_stages: int
) -> None:
    peer, inner = lazy(kind, stage=stage, num_stages=num_stages)
    through(peer, ONE, stage=stage, num_stages=num_stages)
    peer.gradient()
    peer.begin_step()

    through(peer, TWO, stage=stage, num_stages=num_stages)

    assert peer.units == UNITS
    assert len(inner.units) < len(UNITS)
    assert peer.gradient()


@ALL_KINDS
def test_lazy__unit_is_taken_back__counts_no_more(kind: type[Lazy]) -> None:
    peer, _ = lazy(kind)
    through(peer, ONE, stage=0, num_stages=1)
    peer.gradient()
    peer.begin_step()
    through(peer, TWO, stage=0, num_stages=1)

    for unit in (C, A):
        peer.subtract(TWO, unit, None, None)

    assert peer.units == (B,)


def test_lazy__share_of_its_units__computes_the_others() -> None:
    plan = Plan(seed=1, share=Fraction(1, 2))
    inner = Counted(0, 1)
    peer = Skipped(inner, plan, 4)

    for number in range(20):
        peer.forward(ONE, UnitId(number), None)

    lied = {unit for unit in peer.units if plan.lies_about(ONE, unit)} - {peer.units[0]}
    assert set(inner.units) == set(peer.units) - lied
    assert 4 < len(lied) < 16
