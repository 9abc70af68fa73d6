"""What an item of a job weighs in a mean: its targets, the tokens that the loss counts. Pure.

In pretraining every token of a row is a target, all rows are alike, and an item weighs its rows. In
fine-tuning on chats only the tokens of the assistant's turns are targets. Their number in each row
stands in a blob that the JobSpec names and the job's history holds, so coordinator, members, market
and audits derive equal weights, and nobody declares any. Each row has at least one target.
"""

import sys
from array import array
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, Self

from annotated_types import Len
from pydantic import model_validator

from contracts.terms.errors import Conflict
from contracts.terms.ids import ZERO_DIGEST, Digest
from contracts.terms.items import ItemNumber, Ranges, count
from contracts.terms.messages import BlobRecord, JobSpec
from contracts.terms.row_order import rows_at

MAX_TARGET_ROWS = 2**20
"""Rows to train on, and to validate on, whose targets are counted one by one."""
_Counts = Annotated[bytes, Len(2, 2 * MAX_TARGET_ROWS)]


class TargetCounts(BlobRecord):
    """Targets of each row, to train on and to validate on: 2 bytes each, little-endian."""

    max_bytes = 2**22

    kind: Literal["target_counts.v1"] = "target_counts.v1"
    train: _Counts
    validation: _Counts

    @model_validator(mode="after")
    def _some_in_each(self) -> Self:
        for counts in (self.train, self.validation):
            if len(counts) % 2 or 0 in _numbers(counts):
                raise ValueError("counts are 2 bytes each, and no row is without a target")
        if len(self.train) + len(self.validation) > 2 * MAX_TARGET_ROWS:
            raise ValueError(f"at most {MAX_TARGET_ROWS} rows")
        return self

    @cached_property
    def of_train(self) -> "array[int]":
        """Targets of each row that is trained on."""
        return _numbers(self.train)

    @cached_property
    def of_validation(self) -> "array[int]":
        """Targets of each row that is validated on."""
        return _numbers(self.validation)


def target_counts(train: "array[int]", validation: "array[int]") -> TargetCounts:
    """The record of these counts, arrays of type H.

    Raises:
        pydantic.ValidationError: too many rows, or one without a target.
    """
    spelled = []
    for counts in (train, validation):
        little = array("H", counts)
        if sys.byteorder == "big":
            little.byteswap()
        spelled.append(little.tobytes())
    return TargetCounts(train=spelled[0], validation=spelled[1])


def _numbers(counts: bytes) -> "array[int]":
    values = array("H")
    values.frombytes(counts)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def rounded_mean(values: Iterable[int], weights: Collection[int]) -> int:
    """Mean of whole numbers by weights whose sum is positive, rounded with halves up."""
    total = sum(weights)
    of_all = sum(value * weight for value, weight in zip(values, weights, strict=True))
    return (2 * of_all + total) // (2 * total)


@dataclass(frozen=True)
class ItemWeights:
    """Weights of a job's items, by what its poster signed. Made by `item_weights`."""

    rows_per_item: int
    manifest: Digest
    seed: int
    targets: TargetCounts | None = None  # None: each row weighs 1

    def of(self, items: Ranges) -> int:
        """Weight of these items together."""
        if self.targets is None:
            return count(items) * self.rows_per_item
        counts, size = self.targets.of_train, self.rows_per_item
        return sum(
            counts[row]
            for first, end in items
            for row in rows_at(
                range(first * size, end * size), len(counts), self.manifest, self.seed
            )
        )

    def mean(self, values: Mapping[ItemNumber, int]) -> int | None:
        """Weighted mean of a whole number for each item, halves up; None: of no item."""
        weights = [self.of_item(item) for item in values]
        return rounded_mean(values.values(), weights) if values else None

    def of_item(self, item: ItemNumber) -> int:
        """Weight of one item."""
        return self.of(((item, ItemNumber(item + 1)),))


def item_weights(spec: JobSpec, targets: TargetCounts | None) -> ItemWeights:
    """What the items of a job weigh.

    Raises:
        Conflict: `targets` are not those that the spec names.
    """
    named = ZERO_DIGEST if targets is None else targets.digest()
    if named != spec.data.targets:
        raise Conflict("the counts of targets are not those that the JobSpec names")
    return ItemWeights(spec.batch.rows_per_unit, spec.data.manifest, spec.data.seed, targets)
