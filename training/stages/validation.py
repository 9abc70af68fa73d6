"""Which validation rows a job is measured with, in groups as large as its units. Torch-free.

Invariant: groups are of equal size, so the mean of their losses is the mean over all rows, and
whoever drives the stages needs to know `rows_per_unit` alone. With 128 rows or more in the corpus,
and units that divide 128, each row is used once; else some are used twice.
"""

from collections.abc import Sequence
from typing import TypeVar

Row = TypeVar("Row")

VALIDATION_ROWS = 128


def num_groups(rows_per_unit: int) -> int:
    """How many groups there are: enough for `VALIDATION_ROWS` rows."""
    return -(-VALIDATION_ROWS // rows_per_unit)


def group_rows(rows: Sequence[Row], group: int, rows_per_unit: int) -> tuple[Row, ...]:
    """The rows of one group, evenly spaced over all of `rows`; group < `num_groups`."""
    total, first = num_groups(rows_per_unit) * rows_per_unit, group * rows_per_unit
    return tuple(rows[at * len(rows) // total] for at in range(first, first + rows_per_unit))
