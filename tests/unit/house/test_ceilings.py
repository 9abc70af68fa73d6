"""Are seconds added up by folder as a clock on the wall would?"""

from types import SimpleNamespace
from typing import cast

import pytest

from tests.ceilings import CEILINGS, Ceilings, covered_seconds, folder_of


@pytest.mark.parametrize(
    ("intervals", "seconds"),
    [
        ([], 0.0),
        ([(1.0, 3.0)], 2.0),
        ([(5.0, 6.0), (1.0, 3.0)], 3.0),
        ([(1.0, 4.0), (2.0, 3.0)], 3.0),
        ([(1.0, 3.0), (2.0, 5.0)], 4.0),
    ],
)
def test_covered_seconds__intervals__count_each_moment_once(
    intervals: list[tuple[float, float]], seconds: float
) -> None:
    assert covered_seconds(intervals) == seconds


@pytest.mark.parametrize(
    ("nodeid", "folder"),
    [
        ("tests/unit/contracts/test_ids.py::test_a", "unit"),
        ("tests/e2e/test_demo.py::test_b[1]", "e2e"),
        ("tests/test_loose.py::test_c", ""),
        ("elsewhere/unit/test_d.py::test_d", ""),
    ],
)
def test_folder_of__nodeid__is_the_folder_below_tests(nodeid: str, folder: str) -> None:
    assert folder_of(nodeid) == folder


def took(mode: str, **seconds: float) -> Ceilings:
    ceilings = Ceilings(mode)
    for folder, taken in seconds.items():
        ceilings.intervals[folder] = [(0.0, taken)]
    return ceilings


def test_above__folder_above_its_ceiling__is_named_unless_it_is_off() -> None:
    limit = CEILINGS["unit"]
    seconds = {"unit": limit + 1.0, "e2e": CEILINGS["e2e"] - 1.0}

    assert took("report", **seconds).above() == [
        f"tests/unit took {limit + 1} s, its ceiling is {limit} s"
    ]
    assert took("off", **seconds).above() == []


@pytest.mark.parametrize(
    ("mode", "taken", "status"),
    [
        ("report", 2.0, pytest.ExitCode.OK),
        ("enforce", 2.0, pytest.ExitCode.TESTS_FAILED),
        ("enforce", 0.5, pytest.ExitCode.OK),
    ],
)
def test_sessionfinish__folder_above_its_ceiling__fails_the_run_only_if_asked(
    mode: str, taken: float, status: pytest.ExitCode
) -> None:
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)

    took(mode, unit=taken * CEILINGS["unit"]).pytest_sessionfinish(cast(pytest.Session, session))

    assert session.exitstatus == status
