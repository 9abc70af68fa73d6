"""Which leaves a pay tree may have."""

import pytest

from contracts.governance.pay import PayLeaf, check_leaves
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Malformed
from contracts.terms.ids import Address


def leaf(number: int, earned: int, vested: int = 0) -> PayLeaf:
    return PayLeaf(Address(number.to_bytes(20, "big")), BaseUnits(earned), BaseUnits(vested))


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
def test_check_leaves__leaves_that_break_a_rule__are_refused(leaves: tuple[PayLeaf, ...]) -> None:
    check_leaves((leaf(3, 30, 10), leaf(5, 50, 50), leaf(9, 90, 0)))

    with pytest.raises(Malformed):
        check_leaves(leaves)
