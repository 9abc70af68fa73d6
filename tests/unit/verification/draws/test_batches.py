"""What a batch holds of a job, proved by all of its leaves."""

import itertools
from dataclasses import replace

import pytest

from contracts.governance.anchor_chain import AnchoredBatch
from contracts.terms import merkle
from contracts.terms.errors import AuditMismatch
from contracts.terms.ids import Digest, JobId
from contracts.terms.merkle import batch_leaf, batch_root
from verification.draws.anchor_chains import (
    Entry,
    ShownBatch,
    check_batch,
    is_list,
    show_batch,
)


def job(number: int) -> JobId:
    return JobId(bytes([number]) * 32)


def entries(*jobs: int) -> tuple[Entry, ...]:
    """One leaf a number; the same number again is the job's next step."""
    return tuple(
        (job(each), jobs[:place].count(each) + 1, Digest(bytes([place]) * 32))
        for place, each in enumerate(jobs)
    )


def shown(batch: tuple[Entry, ...]) -> ShownBatch:
    root = AnchoredBatch(batch_root(batch), 5, Digest(b"c" * 32))
    return ShownBatch(root, show_batch(batch))


def shuffled(batch: tuple[Entry, ...], *order: int) -> ShownBatch:
    """A batch whose anchorer did not sort its tree, shown as it is."""
    nodes = [batch_leaf(*batch[place]) for place in order]
    root = AnchoredBatch(merkle.root(nodes), 5, Digest(b"c" * 32))
    return ShownBatch(root, show_batch([batch[place] for place in order]))


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
def test_check_batch__shown_honestly__finds_all_of_the_job_and_misses_no_leaf(
    numbers: tuple[int, ...],
) -> None:
    batch = entries(*numbers)
    whole = shown(batch)

    check_batch(whole, "anchor_chain/0")

    assert [(leaf.job, leaf.step, leaf.seal) for leaf in whole.of(job(5))] == [
        each for each in batch if each[0] == job(5)
    ]
    assert is_list(whole)
    for index in range(len(whole.leaves)):
        less = replace(whole, leaves=whole.leaves[:index] + whole.leaves[index + 1 :])
        with pytest.raises(AuditMismatch):
            check_batch(less, "anchor_chain/0")
        assert not is_list(less)


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))][1:])
def test_check_batch__tree_that_is_not_sorted__is_no_list_however_it_is_shown(
    order: tuple[int, ...],
) -> None:
    moved = shuffled(entries(1, 5, 9), *order)
    in_order = tuple(sorted(moved.leaves, key=lambda leaf: leaf.key))

    for leaves in (moved.leaves, in_order, *itertools.combinations(in_order, 2)):
        assert not is_list(replace(moved, leaves=tuple(leaves)))


def test_check_batch__job_between_phantom_neighbours_in_an_unsorted_tree__is_not_absent() -> None:
    """Its leaf comes last; the two in front of it would say that there is none."""
    moved = shuffled(entries(1, 5, 9), 0, 2, 1)

    with pytest.raises(AuditMismatch, match="a leaf after it is missing"):
        check_batch(replace(moved, leaves=moved.leaves[:2]), "anchor_chain/0")
    with pytest.raises(AuditMismatch, match="not sorted"):
        check_batch(moved, "anchor_chain/0")


def test_check_batch__leaf_of_another_seal__is_refused() -> None:
    whole = shown(entries(1, 5, 9))
    forged = replace(whole.leaves[1], seal=Digest(bytes(32)))

    with pytest.raises(AuditMismatch) as caught:
        leaves = (whole.leaves[0], forged, whole.leaves[2])
        check_batch(replace(whole, leaves=leaves), "anchor_chain/0")

    assert caught.value.data["path"] == "anchor_chain/0/leaves/1"
