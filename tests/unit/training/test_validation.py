"""Which validation rows are in which group?"""

from array import array
from collections.abc import Sequence

import pytest

from contracts.terms.targets import target_counts
from training.stages.torch_free import (
    VALIDATION_ROWS,
    group_rows,
    num_groups,
    validation_weights,
)


def all_groups(rows: Sequence[int], groups: int, rows_per_unit: int) -> list[tuple[int, ...]]:
    """The rows of each group."""
    return [group_rows(rows, group, groups, rows_per_unit) for group in range(groups)]


@pytest.mark.parametrize("rows_per_unit", [1, 2, 4, 16, 128])
def test_group_rows__units_divide_the_rows__each_row_once(rows_per_unit: int) -> None:
    rows = range(VALIDATION_ROWS)

    groups = all_groups(rows, num_groups(rows_per_unit), rows_per_unit)

    assert [row for group in groups for row in group] == list(rows)


@pytest.mark.parametrize(("num_rows", "rows_per_unit"), [(128, 3), (128, 200), (50, 4), (1, 7)])
def test_group_rows__they_do_not__every_group_is_full_and_no_row_is_left_out(
    num_rows: int, rows_per_unit: int
) -> None:
    rows = range(num_rows)

    groups = all_groups(rows, num_groups(rows_per_unit), rows_per_unit)

    assert {len(group) for group in groups} == {rows_per_unit}
    assert {row for group in groups for row in group} == set(rows)


@pytest.mark.parametrize(("num_rows", "rows_per_unit", "groups"), [(24, 2, 12), (25, 2, 13)])
def test_validation_weights__the_job_says_how_many_rows_there_are__no_group_for_more(
    num_rows: int, rows_per_unit: int, groups: int
) -> None:
    targets = target_counts(array("H", [1]), array("H", [10] * num_rows))

    assert num_groups(rows_per_unit, targets) == groups
    assert validation_weights(rows_per_unit, targets) == (20,) * groups
    found = all_groups(range(num_rows), groups, rows_per_unit)
    assert {row for group in found for row in group} == set(range(num_rows))
