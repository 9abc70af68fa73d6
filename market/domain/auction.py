"""Clearing: which sellers run a job's slots, and at what price. Pure.

Uniform-price procurement for one job: every winner is paid the lowest losing ask, capped by the
buyer's reserve. A seller is an account and sells one slot of a job: only its cheapest ask is in
the book, so its other offers cannot raise its own price. Then asking one's true cost is dominant
(Vickrey 1961, J. Finance 16(1)); one person with several wallets can still gain, as in every
uniform-price auction.

Invariant: ask <= price <= reserve for every winner.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from contracts.terms.amounts import PricePerPflop
from contracts.terms.errors import NoMatch
from contracts.terms.ids import Address, Digest


@dataclass(frozen=True)
class Ask:
    """An offer's price, base units for 1e15 FLOPs."""

    seller: Address
    offer: Digest
    price: PricePerPflop


@dataclass(frozen=True)
class Clearing:
    """Winners in order of their asks, and what each is paid."""

    winners: tuple[Ask, ...]
    price: PricePerPflop


def clear(asks: Sequence[Ask], *, slots: int, reserve: PricePerPflop) -> Clearing:
    """Buy `slots` slots at the lowest losing ask, never above `reserve`.

    Raises:
        NoMatch: fewer than `slots` sellers ask at most `reserve`.
    """
    book = _best_of_each_seller(ask for ask in asks if ask.price <= reserve)
    if len(book) < slots:
        raise NoMatch(
            f"{len(book)} sellers ask at most {reserve}, the job needs {slots}",
            wanted=slots,
            offered=len(book),
        )
    winners, losers = book[:slots], book[slots:]
    return Clearing(tuple(winners), losers[0].price if losers else reserve)


def _best_of_each_seller(asks: Iterable[Ask]) -> list[Ask]:
    # Ties break by id, so that everybody clears the same book the same way.
    best: dict[Address, Ask] = {}
    for ask in sorted(asks, key=lambda ask: (ask.price, ask.offer)):
        best.setdefault(ask.seller, ask)
    return list(best.values())
