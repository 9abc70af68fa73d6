"""Who has earned how much in a job, and the root that a seal signs for it. Pure.

Invariants: an account appears once, in ascending order; what has vested never exceeds what was
earned; both totals are the root's own sums, so a seal cannot state other ones.
Units: base units (1e-6 token). Source: docs/protocol.md 2 (message 9) and 6.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.terms import merkle
from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.errors import Malformed, NotFound
from contracts.terms.ids import Address
from contracts.terms.merkle import EMPTY_PAY, PayNode, Proof, pay_leaf, pay_node

_NO_STAKE = BaseUnits(0)


@dataclass(frozen=True)
class Lease:
    """What pay and checking need to know of a LeaseAccept: whose work, at what price and risk."""

    account: Address
    price: PricePerPflop
    stake: BaseUnits = _NO_STAKE  # reserved for the job
    device_class: str = ""


@dataclass(frozen=True)
class PayLeaf:
    """What one account earned in a job so far, and what of it has vested."""

    account: Address
    earned: BaseUnits
    vested: BaseUnits

    def node(self) -> PayNode:
        """The leaf as a node of the pay tree."""
        return pay_leaf(self.account, self.earned, self.vested)


def pay_root(leaves: Sequence[PayLeaf]) -> PayNode:
    """Root of the pay tree over `leaves`.

    Raises:
        Malformed: not sorted strictly by account, a leaf that is empty, or one that vests more
            than it earned.
    """
    check_leaves(leaves)
    return merkle.root([leaf.node() for leaf in leaves], pay_node, EMPTY_PAY)


def prove_pay(leaves: Sequence[PayLeaf], account: Address) -> tuple[PayLeaf, Proof[PayNode]]:
    """The leaf of `account` and its path to `pay_root(leaves)`.

    Raises:
        NotFound: the account earned nothing.
    """
    for index, leaf in enumerate(leaves):
        if leaf.account == account:
            return leaf, merkle.prove([each.node() for each in leaves], index, pay_node)
    raise NotFound(f"0x{account.hex()} earned nothing in this job")


def check_leaves(leaves: Sequence[PayLeaf]) -> None:
    """Refuse leaves that no pay tree has.

    Raises:
        Malformed: see `pay_root`.
    """
    previous = b""
    for leaf in leaves:
        if leaf.account <= previous:
            raise Malformed("pay leaves must be sorted by account, each once")
        if not 0 <= leaf.vested <= leaf.earned or leaf.earned == 0:
            raise Malformed(f"0x{leaf.account.hex()}: vests {leaf.vested} of {leaf.earned}")
        previous = leaf.account
