"""Who has earned how much in a job. Pure.

Invariants: an account appears once, in ascending order; what has vested never exceeds what was
earned. Units: base units (1e-6 token). Source: docs/protocol.md 6; `claims` has the tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.errors import Malformed
from contracts.terms.ids import Address

_NO_STAKE = BaseUnits(0)


@dataclass(frozen=True)
class Lease:
    """What pay and checking need to know of a LeaseAccept: whose work, at what price and risk."""

    account: Address
    price: PricePerPflop
    stake: BaseUnits = _NO_STAKE  # that its account bonds
    device_class: str = ""


@dataclass(frozen=True)
class PayLeaf:
    """What one account earned in a job so far, and what of it has vested."""

    account: Address
    earned: BaseUnits
    vested: BaseUnits


def check_leaves(leaves: Sequence[PayLeaf]) -> None:
    """Refuse leaves that no pay tree has.

    Raises:
        Malformed: not sorted strictly by account, a leaf that is empty, or one that vests more
            than it earned.
    """
    previous = b""
    for leaf in leaves:
        if leaf.account <= previous:
            raise Malformed("pay leaves must be sorted by account, each once")
        if not 0 <= leaf.vested <= leaf.earned or leaf.earned == 0:
            raise Malformed(f"0x{leaf.account.hex()}: vests {leaf.vested} of {leaf.earned}")
        previous = leaf.account
