"""Pay leaves and their root."""

import pytest

from contracts.governance.pay import PayLeaf, pay_root, prove_pay
from contracts.terms import merkle
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Malformed, NotFound
from contracts.terms.ids import Address


def leaf(number: int, earned: int, vested: int = 0) -> PayLeaf:
    return PayLeaf(Address(number.to_bytes(20, "big")), BaseUnits(earned), BaseUnits(vested))


LEAVES = (leaf(3, 30, 10), leaf(5, 50, 50), leaf(9, 90, 0))


def test_pay_root__no_leaves__is_empty() -> None:
    assert pay_root(()) == merkle.EMPTY_PAY


def test_pay_root__three_leaves__sums_both_columns() -> None:
    root = pay_root(LEAVES)

    assert (root.earned, root.vested) == (170, 60)


def test_prove_pay__every_leaf__folds_to_the_root() -> None:
    for each in LEAVES:
        found, proof = prove_pay(LEAVES, each.account)

        assert found == each
        assert merkle.fold(found.node(), proof, merkle.pay_node) == pay_root(LEAVES)


def test_prove_pay__unknown_account__is_not_found() -> None:
    with pytest.raises(NotFound):
        prove_pay(LEAVES, Address(bytes(20)))


@pytest.mark.parametrize(
    "leaves",
    [
        (leaf(5, 1), leaf(3, 1)),
        (leaf(5, 1), leaf(5, 1)),
        (leaf(5, 1, 2),),
        (leaf(5, 0),),
    ],
    ids=["unsorted", "twice", "vests more than earned", "empty leaf"],
)
def test_pay_root__leaves_that_break_a_rule__are_refused(leaves: tuple[PayLeaf, ...]) -> None:
    with pytest.raises(Malformed):
        pay_root(leaves)
