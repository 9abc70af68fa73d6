"""Is a test more patient the slower the machine is, and does it end at all?"""

import os

import pytest

from tests.support.patience import GENEROUS, LONGEST, factor, factor_at, patience


@pytest.mark.parametrize(
    ("slowness", "times"),
    [(0.5, GENEROUS), (1.0, GENEROUS), (4.0, 4 * GENEROUS), (1000.0, LONGEST)],
)
def test_factor_at__slow_machine__waits_as_much_longer_but_not_for_ever(
    slowness: float, times: float
) -> None:
    assert factor_at(slowness) == times


def test_patience__this_run__is_one_factor_for_all_its_processes() -> None:
    assert patience(2.0) == 2.0 * factor() >= 2.0 * GENEROUS
    assert factor() == float(os.environ["TESTS_PATIENCE"])


def test_timeout__of_a_test__scales_as_its_waits_do(request: pytest.FixtureRequest) -> None:
    assert request.config.getoption("timeout") == pytest.approx(patience(120))


@pytest.mark.timeout(7)
def test_timeout__that_a_mark_says__scales_too(request: pytest.FixtureRequest) -> None:
    mark = request.node.get_closest_marker("timeout")

    assert mark.args == (pytest.approx(patience(7)),)
