"""Leaves and subtrees of a pay tree, and their paths to the root."""

import pytest

from contracts.governance.claims import (
    SUBTREE,
    Path,
    PayTree,
    SealedPay,
    Subtree,
    decode_sealed_pay,
)
from contracts.governance.pay import PayLeaf
from contracts.terms import merkle
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import keccak
from contracts.terms.errors import Malformed, NotFound
from contracts.terms.ids import ZERO_DIGEST, Address, Digest
from tests.support.history import JobMaker


def tree_of(size: int) -> PayTree:
    return PayTree(
        tuple(
            PayLeaf(Address(n.to_bytes(20, "big")), BaseUnits(2 * n + 2), BaseUnits(n))
            for n in range(size)
        )
    )


def up(node: Digest, path: Path) -> Digest:
    """The root, as `PayTree.fold` of the contract computes it."""
    for place, sibling in enumerate(path.siblings):
        pair = (sibling, node) if path.sides >> place & 1 else (node, sibling)
        node = merkle.plain_node(*pair)
    return node


def above(subtree: Subtree) -> Digest:
    """The node above packed leaves, as `PayTree.subtree` of the contract computes it."""
    packed = subtree.packed()
    nodes = [
        Digest(keccak(b"\x08" + packed[start : start + 40])) for start in range(0, len(packed), 40)
    ]
    while len(nodes) > 1:
        pairs = [merkle.plain_node(*nodes[i : i + 2]) for i in range(0, len(nodes) - 1, 2)]
        nodes = pairs + nodes[len(nodes) & ~1 :]
    return nodes[0]


@pytest.mark.parametrize("size", [1, 2, 3, 255, 256, 257, 258, 511, 513, 1000])
def test_tree__any_size__leaves_and_subtrees_lead_to_the_root(size: int) -> None:
    tree = tree_of(size)

    assert [leaf for each in tree.subtrees() for leaf in each.leaves] == list(tree.leaves)
    for subtree in tree.subtrees():
        assert up(above(subtree), subtree.path) == tree.root
    for leaf in tree.leaves[:: 1 + size // 50]:
        found, path = tree.prove(leaf.account)
        assert found == leaf
        node = merkle.earned_leaf(leaf.account, leaf.earned, leaf.vested)
        assert up(node, path) == tree.root


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
