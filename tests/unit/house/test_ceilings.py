"""Are seconds added up by folder as a clock on the wall would?"""

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


def test_broken__folder_above_its_ceiling__is_named() -> None:
    ceilings = Ceilings()
    ceilings.intervals["unit"] = [(0.0, CEILINGS["unit"] + 1.0)]
    ceilings.intervals["e2e"] = [(0.0, CEILINGS["e2e"] - 1.0)]

    limit = CEILINGS["unit"]
    assert ceilings.broken() == [f"tests/unit took {limit + 1} s, its ceiling is {limit} s"]
