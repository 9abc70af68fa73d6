"""Trees: roots, sums, proofs, and what may not be one."""

import pytest

from contracts.terms import merkle
from contracts.terms.amounts import UINT96_MAX, BaseUnits
from contracts.terms.errors import Malformed
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, JobId
from contracts.terms.merkle import (
    SumNode,
    batch_root,
    fold,
    job_leaf,
    pay_leaf,
    pay_node,
    plain_leaf,
    plain_node,
    prove,
    root,
    settlement_leaf,
    sum_node,
)


def leaves(count: int) -> list[SumNode]:
    return [job_leaf(JobId(bytes([n]) * 32), BaseUnits(n + 1)) for n in range(count)]


@pytest.mark.parametrize("count", range(1, 18))
def test_prove__every_leaf_of_every_size__folds_to_the_root(count: int) -> None:
    nodes = leaves(count)
    top = root(nodes, sum_node, merkle.EMPTY_SUM)

    for index, node in enumerate(nodes):
        assert fold(node, prove(nodes, index, sum_node), sum_node) == top
    assert top.sum == count * (count + 1) // 2


def test_leaf_and_node__of_different_trees__never_collide() -> None:
    account, job, digest = Address(bytes(20)), JobId(bytes(32)), ZERO_DIGEST
    hashes = {
        settlement_leaf(account, digest, BaseUnits(0)).hash,
        job_leaf(job, BaseUnits(0)).hash,
        pay_leaf(account, BaseUnits(0), BaseUnits(0)).hash,
        merkle.batch_leaf(job, 0, digest),
        plain_leaf(digest),
        plain_node(digest, digest),
        sum_node(merkle.EMPTY_SUM, merkle.EMPTY_SUM).hash,
        pay_node(merkle.EMPTY_PAY, merkle.EMPTY_PAY).hash,
    }

    assert len(hashes) == 8


def test_sum_node__sum_above_96_bits__is_malformed() -> None:
    large = SumNode(ZERO_DIGEST, BaseUnits(UINT96_MAX))

    with pytest.raises(Malformed):
        sum_node(large, SumNode(ZERO_DIGEST, BaseUnits(1)))
    with pytest.raises(Malformed):
        job_leaf(JobId(bytes(32)), BaseUnits(-1))


@pytest.mark.parametrize("steps", [(2, 1), (1, 1)])
def test_batch_root__entries_not_sorted__is_malformed(steps: tuple[int, int]) -> None:
    job = JobId(bytes(32))

    with pytest.raises(Malformed):
        batch_root([(job, step, Digest(bytes(32))) for step in steps])
