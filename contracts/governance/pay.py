"""Who has earned how much in a job. Pure.

Units: base units (1e-6 token). Source: docs/protocol.md 6; `claims` has the tree.
"""

from dataclasses import dataclass

from contracts.terms.amounts import NOTHING, BaseUnits, PricePerPflop
from contracts.terms.ids import Address


@dataclass(frozen=True)
class Lease:
    """What pay and checking need to know of a LeaseAccept: whose work, at what price and risk."""

    account: Address
    price: PricePerPflop
    stake: BaseUnits = NOTHING  # that its account bonds
    device_class: str = ""


@dataclass(frozen=True)
class PayLeaf:
    """What one account earned in a job so far, and what of it has vested."""

    account: Address
    earned: BaseUnits
    vested: BaseUnits
