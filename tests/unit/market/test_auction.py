"""Examples of a clearing; properties are in tests/property/test_market_clearing.py."""

from dataclasses import replace

from contracts.terms.amounts import PricePerPflop
from contracts.terms.ids import Address, Digest
from market.domain.matching import Ask, clear


def ask(seller: str, price: int, place: int = 0) -> Ask:
    name = Digest(seller.encode().ljust(31, b".") + bytes([place]))
    return Ask(Address(seller.encode().ljust(20, b".")), name, PricePerPflop(price))


def test_clear__more_asks_than_slots__pays_lowest_losing_ask() -> None:
    asks = [ask("w1", 3), ask("w2", 5), ask("w3", 9)]

    clearing = clear(asks, slots=2, reserve=PricePerPflop(20))

    assert clearing.winners == (asks[0], asks[1])
    assert clearing.price == 9


def test_clear__equal_asks__the_better_name_wins_at_the_same_price() -> None:
    asks = [replace(ask(name, 5), standing=known) for name, known in (("w1", 1), ("w2", 3))]

    clearing = clear([*asks, ask("w3", 4)], slots=2, reserve=PricePerPflop(20))

    assert clearing.winners == (ask("w3", 4), asks[1])
    assert clearing.price == 5
