"""Examples of a clearing; properties are in tests/property/test_market_clearing.py."""

from dataclasses import replace

import pytest

from contracts.terms.amounts import PricePerPflop
from contracts.terms.errors import NoMatch
from contracts.terms.ids import Address, Digest
from market.domain.auction import Ask, clear


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


def test_clear__nobody_loses__pays_the_ceiling() -> None:
    clearing = clear([ask("w1", 3)], slots=1, reserve=PricePerPflop(20))

    assert clearing.price == 20


def test_clear__own_second_offer__does_not_set_the_price() -> None:
    clearing = clear([ask("w1", 3), ask("w1", 7, 1)], slots=1, reserve=PricePerPflop(20))

    assert clearing.price == 20


def test_clear__losing_ask_above_the_ceiling__is_capped() -> None:
    clearing = clear([ask("w1", 3), ask("w2", 50)], slots=1, reserve=PricePerPflop(20))

    assert clearing.price == 20


def test_clear__too_few_sellers__says_how_many_there_are() -> None:
    with pytest.raises(NoMatch) as refusal:
        clear([ask("w1", 3), ask("w1", 4, 1), ask("w2", 21)], slots=2, reserve=PricePerPflop(20))

    assert refusal.value.data == {"wanted": 2, "offered": 1}
