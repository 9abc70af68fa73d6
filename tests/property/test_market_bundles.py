"""Bundles and deals, for any book; each property with lines that break it.

* all or nothing: a bundle has all its slots or no winner; no owner is in it twice
* ask <= price <= ceiling for every winner, spares and late ones too
* asking for spares never lets a winner set its own price
* an ask that stands: who lost to the slots, so perhaps set the price, is no spare later, and no lie
  earns more over both rounds than asking one's cost
* stages differ by one peer, and by the speed of one offer, at most
"""

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.terms.amounts import PricePerPflop
from contracts.terms.errors import NoMatch
from contracts.terms.ids import Address, Digest
from market.domain import auction, bundles
from tests.support.mutation import mutant

PRICES = st.integers(1, 30)
BOOKS = st.lists(st.tuples(st.integers(0, 8), PRICES), max_size=12)


def asks_of(book: list[tuple[int, int]]) -> list[Any]:
    return [
        auction.Ask(Address(bytes([who + 1]) * 20), Digest(bytes([place]) * 32), PricePerPflop(ask))
        for place, (who, ask) in enumerate(book)
    ]


def seats_of(module: ModuleType, prices: list[int]) -> list[Any]:
    return [module.Seat(0, 1, PricePerPflop(price)) for price in prices]


def check_bundles(module: ModuleType) -> None:
    """What is bought, before and after the job runs, beside any leases that it holds."""

    @settings(max_examples=400, deadline=None, derandomize=True, report_multiple_bugs=False)
    @given(
        BOOKS,
        st.integers(1, 4),
        st.integers(0, 3),
        st.lists(PRICES, max_size=5),
        PRICES,
        st.booleans(),
    )
    def check(
        book: list[tuple[int, int]],
        slots: int,
        spares: int,
        held: list[int],
        reserve: int,
        first: bool,
    ) -> None:
        held = [min(price, reserve) for price in held]
        asks, bundle = asks_of(book), module.Bundle(slots, spares)
        able = {ask.seller for ask in asks if ask.price <= reserve}
        missing = max(0, slots - len(held))
        try:
            bought = module.buy(
                asks,
                bundle,
                seats_of(module, held),
                reserve=PricePerPflop(reserve),
                all_or_nothing=first,
            )
        except NoMatch:
            assert len(able) < (missing if first else 1), "enough sellers, and nothing bought"
            return
        winners = bought.winners
        assert len({ask.seller for ask in winners}) == len(winners)
        assert all(ask.price <= bought.price <= reserve for ask in winners)
        assert len(held) + len(winners) <= max(slots + spares, len(held))
        assert len(winners) >= min(missing, len(able))
        if first:
            assert len(winners) >= missing, "a part of a bundle"
        if missing and len(able) > missing:
            losers = {ask.seller for ask in asks if ask.price <= reserve} - {
                ask.seller for ask in winners
            }
            assert losers, "nobody lost, so the price is the reserve or a winner's own ask"

    check()


def profit_of_both_rounds(
    module: ModuleType, asks: list[Any], who: Address, cost: int, slots: int, spares: int
) -> int:
    """What one seller earns a PFLOP when spares that are missing are bought a round later."""
    try:
        first = module.clear(asks, slots=slots, spares=spares, reserve=PricePerPflop(30))
    except NoMatch:
        return 0
    taken = {ask.seller for ask in first.winners}
    left = [ask for ask in asks if ask.seller not in taken]
    missing = slots + spares - len(first.winners)
    later = module.sell_at(left, slots=missing, price=first.price)
    assert not later.winners, "a loser of the first round"
    return int(first.price) - cost if who in taken else 0


def check_truth(module: ModuleType) -> None:
    """With one cost a seller, no other asks earn more than asking that cost, spares included."""

    @settings(max_examples=400, deadline=None, derandomize=True, report_multiple_bugs=False)
    @given(
        st.lists(PRICES, min_size=1, max_size=6),
        st.lists(PRICES, min_size=1, max_size=3),
        st.integers(1, 3),
        st.integers(0, 3),
    )
    def check(costs: list[int], lies: list[int], slots: int, spares: int) -> None:
        others = list(enumerate(costs[1:], 1))
        honest, lying = asks_of([(0, costs[0]), *others]), asks_of([(0, lie) for lie in lies])
        lying += asks_of(others)
        who = honest[0].seller
        truth = profit_of_both_rounds(module, honest, who, costs[0], slots, spares)
        assert truth >= profit_of_both_rounds(module, lying, who, costs[0], slots, spares)

    check()


def check_deals(module: ModuleType) -> None:
    """Any speeds and stages: a permutation within the bounds, whatever the order."""

    @settings(max_examples=400, deadline=None, derandomize=True, report_multiple_bugs=False)
    @given(st.lists(st.integers(0, 100), min_size=1, max_size=24), st.integers(1, 6))
    def check(speeds: list[int], num_stages: int) -> None:
        stages = module.deal(speeds, (), num_stages=num_stages)
        sums, peers = [0] * num_stages, [0] * num_stages
        for stage, speed in zip(stages, speeds, strict=True):
            sums[stage] += speed
            peers[stage] += 1
        assert max(peers) - min(peers) <= 1
        assert max(sums) - min(sums) <= max(speeds), "one offer more than balanced"
        if len(speeds) % num_stages == 0:
            assert max(sums) - min(sums) <= max(speeds) - min(speeds)

    check()


def check_replacements(module: ModuleType) -> None:
    """Whoever left, the newcomers fill the gaps first."""

    @settings(max_examples=200, deadline=None, derandomize=True, report_multiple_bugs=False)
    @given(
        st.integers(1, 4),
        st.integers(1, 3),
        st.lists(st.integers(1, 9), min_size=12, max_size=12),
        st.sets(st.integers(0, 11)),
    )
    def check(num_stages: int, per_stage: int, speeds: list[int], gone: set[int]) -> None:
        num_slots = num_stages * per_stage
        stages = module.deal(speeds[:num_slots], (), num_stages=num_stages)
        seats = [
            module.Seat(stage, speeds[place], PricePerPflop(1))
            for place, stage in enumerate(stages)
            if place not in gone
        ]
        missing = num_slots - len(seats)
        filled = [seat.stage for seat in seats]
        filled += module.deal([5] * missing, seats, num_stages=num_stages)
        assert sorted(filled) == sorted(list(range(num_stages)) * per_stage)

    check()


def test_buy__any_book__all_or_nothing_within_the_ceiling_and_no_owner_twice() -> None:
    check_bundles(bundles)


def test_clear__spares_a_round_later__no_loser_is_bought_and_truth_pays() -> None:
    check_truth(auction)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if ask.price < price", "if ask.price <= price"),
        ("losers[0].price if losers else reserve", "winners[-1].price"),
    ],
)
def test_mutated_auction__price_setter_bought__truth_pays_no_more(old: str, new: str) -> None:
    with pytest.raises(AssertionError):
        check_truth(mutant(auction, old, new))


def test_deal__any_speeds__stages_are_balanced_within_one_offer() -> None:
    check_deals(bundles)


def test_deal__anybody_left__gaps_are_filled_first() -> None:
    check_replacements(bundles)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if not all_or_nothing:", "if True:"),
        ("min((seat.price for seat in held), default=reserve)", "reserve + 1"),
        ("short = max(0, self.slots - num_held)", "short = self.slots"),
        ("slots, spares = min(slots, max(1, len(sellers))), 0", "pass"),
    ],
)
def test_mutated_bundles__parts_or_prices__break_the_bundles(old: str, new: str) -> None:
    with pytest.raises(AssertionError):
        check_bundles(mutant(bundles, old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(-speeds[place], place)", "place"),
        ("(peers[stage], sums[stage], stage)", "(sums[stage], stage)"),
    ],
)
def test_mutated_deal__other_order__breaks_the_balance(old: str, new: str) -> None:
    with pytest.raises(AssertionError):
        check_deals(mutant(bundles, old, new))


def test_mutated_deal__held_seats_ignored__leaves_gaps() -> None:
    ignored = mutant(bundles, "sum(seat.stage == stage for seat in held)", "0")

    with pytest.raises(AssertionError):
        check_replacements(ignored)
