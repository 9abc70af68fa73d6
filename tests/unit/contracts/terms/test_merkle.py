"""Trees: roots, proofs, and what may not be one."""

import pytest

from contracts.terms import merkle
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Malformed
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, JobId
from contracts.terms.merkle import batch_root, fold, plain_leaf, plain_node, prove, root


@pytest.mark.parametrize("count", range(1, 18))
def test_prove__every_leaf_of_every_size__folds_to_the_root(count: int) -> None:
    nodes = [plain_leaf(bytes([n])) for n in range(count)]
    top = root(nodes)

    for index, node in enumerate(nodes):
        assert fold(node, prove(nodes, index)) == top


def test_leaf_and_node__of_different_trees__never_collide() -> None:
    hashes = {
        merkle.earned_leaf(Address(bytes(20)), BaseUnits(0), BaseUnits(0)),
        merkle.batch_leaf(JobId(bytes(32)), 0, ZERO_DIGEST),
        plain_leaf(ZERO_DIGEST),
        plain_node(ZERO_DIGEST, ZERO_DIGEST),
    }

    assert len(hashes) == 4


@pytest.mark.parametrize("steps", [(2, 1), (1, 1)])
def test_batch_root__entries_not_sorted__is_malformed(steps: tuple[int, int]) -> None:
    job = JobId(bytes(32))

    with pytest.raises(Malformed):
        batch_root([(job, step, Digest(bytes(32))) for step in steps])
