"""Clearing: which sellers run a job's slots, and at what price. Pure.

Uniform-price procurement for one job: every winner is paid the lowest losing ask, capped by the
buyer's reserve. A seller is an account and sells one slot of a job: only its cheapest ask is in
the book, so its other offers cannot raise its own price. Then asking one's true cost is dominant
(Vickrey 1961, J. Finance 16(1)); one person with several wallets can still gain, as in every
uniform-price auction.

Invariant: ask <= price <= reserve for every winner. Spares are bought with the slots, but one
seller stays a loser where there is one to spare: else the last winner's own ask would be the price,
or asking for spares would lift the price of all to the reserve. Spares that come later are bought
at the price that stands, from who asks less: so with an ask that stands, truth stays dominant over
both rounds, and no loser of the first wins in the second. Who comes first among equal asks has no
part in the price, so a good name wins ties and moves nothing else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from contracts.terms.amounts import PricePerPflop
from contracts.terms.errors import NoMatch
from contracts.terms.ids import Address, Digest


@dataclass(frozen=True)
class Ask:
    """An offer's price, base units for 1e15 FLOPs; of equal ones the higher standing is first."""

    seller: Address
    offer: Digest
    price: PricePerPflop
    standing: int = 0


@dataclass(frozen=True)
class Clearing:
    """Winners in order of their asks, and what each is paid."""

    winners: tuple[Ask, ...]
    price: PricePerPflop


def clear(asks: Sequence[Ask], *, slots: int, reserve: PricePerPflop, spares: int = 0) -> Clearing:
    """Buy `slots` slots, and up to `spares` more, at the lowest losing ask, never above `reserve`.

    Raises:
        NoMatch: fewer than `slots` sellers ask at most `reserve`.
    """
    book = _best_of_each_seller(ask for ask in asks if ask.price <= reserve)
    if len(book) < slots:
        raise NoMatch(
            f"the job needs {slots} owners at {reserve} or less, {len(book)} fit",
            wanted=slots,
            offered=len(book),
        )
    bought = max(slots, min(slots + spares, len(book) - 1))
    winners, losers = book[:bought], book[bought:]
    return Clearing(tuple(winners), losers[0].price if losers else reserve)


def sell_at(asks: Sequence[Ask], *, slots: int, price: PricePerPflop) -> Clearing:
    """Buy up to `slots` slots at a price that stands, from the cheapest that ask less.

    Who asks just that price may have set it as the lowest loser, and is not bought: else the last
    loser would earn more by asking more.
    """
    book = _best_of_each_seller(ask for ask in asks if ask.price < price)
    return Clearing(tuple(book[:slots]), price)


def _best_of_each_seller(asks: Iterable[Ask]) -> list[Ask]:
    # Ties break by id in the end, so that everybody clears the same book the same way.
    best: dict[Address, Ask] = {}
    for ask in sorted(asks, key=lambda ask: (ask.price, -ask.standing, ask.offer)):
        best.setdefault(ask.seller, ask)
    return list(best.values())
