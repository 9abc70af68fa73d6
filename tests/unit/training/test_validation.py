"""Which validation rows are in which group?"""

import pytest

from training.stages.torch_free import VALIDATION_ROWS, group_rows, num_groups


@pytest.mark.parametrize("rows_per_unit", [1, 2, 4, 16, 128])
def test_group_rows__units_divide_the_rows__each_row_once(rows_per_unit: int) -> None:
    rows = range(VALIDATION_ROWS)

    groups = [group_rows(rows, group, rows_per_unit) for group in range(num_groups(rows_per_unit))]

    assert [row for group in groups for row in group] == list(rows)


@pytest.mark.parametrize(("num_rows", "rows_per_unit"), [(128, 3), (128, 200), (50, 4), (1, 7)])
def test_group_rows__they_do_not__every_group_is_full_and_no_row_is_left_out(
    num_rows: int, rows_per_unit: int
) -> None:
    rows = range(num_rows)

    groups = [group_rows(rows, group, rows_per_unit) for group in range(num_groups(rows_per_unit))]

    assert {len(group) for group in groups} == {rows_per_unit}
    assert {row for group in groups for row in group} == set(rows)
