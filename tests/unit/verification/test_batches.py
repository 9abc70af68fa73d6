"""What a batch holds of a job, proved by neighbours."""

from dataclasses import replace

import pytest

from contracts.governance.lane import AnchoredBatch
from contracts.terms.encoding import decode, encode
from contracts.terms.errors import AuditMismatch
from contracts.terms.ids import Digest, JobId
from contracts.terms.merkle import batch_root
from verification.batches import (
    Entry,
    ShownBatch,
    batch_value,
    check_batch,
    read_batch,
    show_batch,
)
from verification.reading import Field


def job(number: int) -> JobId:
    return JobId(bytes([number]) * 32)


def entries(*jobs: int) -> tuple[Entry, ...]:
    """One leaf a number; the same number again is the job's next step."""
    return tuple(
        (job(each), jobs[:place].count(each) + 1, Digest(bytes([place]) * 32))
        for place, each in enumerate(jobs)
    )


def shown(batch: tuple[Entry, ...], number: int) -> ShownBatch:
    root = AnchoredBatch(batch_root(batch), 5, Digest(b"c" * 32))
    return ShownBatch(root, show_batch(batch, job(number)))


BATCHES = [
    (5,),
    (5, 5, 5),
    (1, 5, 9),
    (1, 2, 3, 5, 5, 7, 8, 9),
    (5, 7, 8),
    (1, 2, 3, 5),
    (1, 2, 3, 7, 9),
    (1, 2, 3),
    (7, 8, 9, 10, 11),
]


@pytest.mark.parametrize("numbers", BATCHES)
def test_check_batch__shown_honestly__finds_all_of_the_job(numbers: tuple[int, ...]) -> None:
    batch = entries(*numbers)

    found = check_batch(shown(batch, 5), job(5), "lane/0")

    assert [(leaf.job, leaf.step, leaf.seal) for leaf in found] == [
        each for each in batch if each[0] == job(5)
    ]


@pytest.mark.parametrize("numbers", BATCHES)
def test_check_batch__any_leaf_left_out__is_refused(numbers: tuple[int, ...]) -> None:
    whole = shown(entries(*numbers), 5)

    for index in range(len(whole.leaves)):
        less = replace(whole, leaves=whole.leaves[:index] + whole.leaves[index + 1 :])
        with pytest.raises(AuditMismatch):
            check_batch(less, job(5), "lane/0")


def test_check_batch__neighbours_of_another_place__are_refused() -> None:
    batch = entries(1, 2, 5, 7, 9)
    outer = tuple(
        leaf for number in (1, 9) for leaf in shown(batch, number).leaves if leaf.job == job(number)
    )

    with pytest.raises(AuditMismatch):
        check_batch(replace(shown(batch, 5), leaves=outer), job(5), "lane/0")


def test_check_batch__leaf_of_another_seal__is_refused() -> None:
    whole = shown(entries(1, 5, 9), 5)
    forged = replace(whole.leaves[1], seal=Digest(bytes(32)))

    with pytest.raises(AuditMismatch) as caught:
        leaves = (whole.leaves[0], forged, whole.leaves[2])
        check_batch(replace(whole, leaves=leaves), job(5), "lane/0")

    assert caught.value.data["path"] == "lane/0/leaves/1"


def test_check_batch__more_neighbours_than_needed__are_refused() -> None:
    batch = entries(1, 2, 5, 9)
    more = (*shown(batch, 1).leaves[:1], *shown(batch, 5).leaves)

    with pytest.raises(AuditMismatch):
        check_batch(replace(shown(batch, 5), leaves=more), job(5), "lane/0")


def test_read_batch__value__comes_back() -> None:
    whole = shown(entries(1, 5, 9), 5)
    value = decode(encode(batch_value(whole)))  # type: ignore[arg-type]  # nested dicts of Value

    assert read_batch(Field(value)) == whole
