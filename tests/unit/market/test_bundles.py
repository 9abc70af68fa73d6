"""Examples of bundles and deals; properties are in tests/property/test_market_clearing.py."""

import pytest

from contracts.terms.amounts import PricePerPflop
from contracts.terms.ids import Address, Digest
from market.domain.matching import Ask, Bundle, Seat, buy, clear

CEILING = PricePerPflop(20)


def asks(*prices: int) -> list[Ask]:
    return [
        Ask(Address(bytes([place]) * 20), Digest(bytes([place]) * 32), PricePerPflop(price))
        for place, price in enumerate(prices)
    ]


def seat(price: int = 7) -> Seat:
    return Seat(0, 1, PricePerPflop(price))


@pytest.mark.parametrize(
    ("num_held", "missing"),
    [(0, Bundle(4, 2)), (3, Bundle(1, 2)), (4, Bundle(0, 2)), (5, Bundle(0, 1)), (6, Bundle(0, 0))],
)
def test_without__leases_held__slots_are_filled_before_spares(
    num_held: int, missing: Bundle
) -> None:
    assert Bundle(4, 2).without(num_held) == missing


def test_buy__sellers_for_slots_and_a_spare__one_stays_to_set_the_price() -> None:
    bought = buy(asks(3, 5, 9), Bundle(1, 4), (), reserve=CEILING, all_or_nothing=True)

    assert [ask.price for ask in bought.winners] == [3, 5]
    assert bought.price == 9


def test_buy__job_runs_and_too_few_sell__takes_them() -> None:
    bought = buy(asks(3, 5), Bundle(4, 1), [seat()], reserve=CEILING, all_or_nothing=False)

    assert [ask.price for ask in bought.winners] == [3, 5]
    assert bought.price == CEILING


def test_buy__spare_later__asks_less_and_is_paid_the_least_that_a_lease_is_paid() -> None:
    held = [seat(price=9), seat(price=7)]

    bought = buy(asks(8, 7, 6, 2), Bundle(2, 3), held, reserve=CEILING, all_or_nothing=False)

    assert [ask.price for ask in bought.winners] == [2, 6]
    assert bought.price == 7


def test_clear__more_asks_than_slots__pays_lowest_losing_ask() -> None:
    clearing = clear(asks(3, 5, 9), slots=2, reserve=CEILING)

    assert [ask.price for ask in clearing.winners] == [3, 5]
    assert clearing.price == 9
