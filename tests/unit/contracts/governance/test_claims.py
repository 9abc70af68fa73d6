"""Leaves and subtrees of a pay tree, and their paths to the root."""

import pytest

from contracts.governance.claims import (
    SUBTREE,
    PayTree,
    SealedPay,
    decode_sealed_pay,
)
from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Malformed, NotFound
from contracts.terms.ids import ZERO_DIGEST, Address
from tests.support.history import JobMaker


def tree_of(size: int) -> PayTree:
    return PayTree(
        tuple(
            PayLeaf(Address(n.to_bytes(20, "big")), BaseUnits(2 * n + 2), BaseUnits(n))
            for n in range(size)
        )
    )


def test_subtrees__of_some_accounts__are_those_that_hold_them() -> None:
    tree = tree_of(3 * SUBTREE)

    found = tree.subtrees([tree.leaves[1].account, tree.leaves[-1].account])

    assert [each.leaves[0] for each in found] == [tree.leaves[0], tree.leaves[2 * SUBTREE]]


def test_tree__nobody_earned__has_the_zero_root() -> None:
    assert (tree_of(0).root, tree_of(0).subtrees()) == (ZERO_DIGEST, [])
    with pytest.raises(NotFound):
        tree_of(3).prove(Address(b"\xff" * 20))


@pytest.mark.parametrize(
    "leaves",
    [[(5, 1, 0), (3, 1, 0)], [(5, 1, 0), (5, 1, 0)], [(5, 1, 2)], [(5, 0, 0)]],
    ids=["unsorted", "twice", "vests more than earned", "empty leaf"],
)
def test_tree__leaves_that_break_a_rule__are_refused(leaves: list[tuple[int, int, int]]) -> None:
    made = [
        PayLeaf(Address(account.to_bytes(20, "big")), BaseUnits(earned), BaseUnits(vested))
        for account, earned, vested in leaves
    ]

    with pytest.raises(Malformed):
        PayTree(tuple(made))


def test_sealed_pay__encoded__comes_back_or_is_refused_where_the_seal_signs_other_leaves() -> None:
    maker = JobMaker()
    maker.seal_step()
    newest = maker.history.newest
    assert newest is not None
    paid = SealedPay(newest.seal, newest.pay, {newest.pay[0].account: BaseUnits(2**70)}, 3)

    assert decode_sealed_pay(paid.encoded()) == paid
    for wrong in (b"", b"\x80", SealedPay(newest.seal, newest.pay[1:]).encoded()):
        with pytest.raises(Malformed):
            decode_sealed_pay(wrong)
