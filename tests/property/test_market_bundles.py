"""Bundles and deals, for any book.

* all or nothing: a bundle has all its slots or no winner; no owner is in it twice
* ask <= price <= ceiling for every winner, spares and late ones too
* asking for spares never lets a winner set its own price
* an ask that stands: who lost to the slots, so perhaps set the price, is no spare later, and no lie
  earns more over both rounds than asking one's cost
* stages differ by one peer, and by the speed of one offer, at most
"""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contracts.terms.amounts import PricePerPflop
from contracts.terms.errors import NoMatch
from contracts.terms.ids import Address, Digest
from market.domain import matching

PRICES = st.integers(1, 30)
BOOKS = st.lists(st.tuples(st.integers(0, 8), PRICES), max_size=12)


def asks_of(book: list[tuple[int, int]]) -> list[Any]:
    return [
        matching.Ask(
            Address(bytes([who + 1]) * 20), Digest(bytes([place]) * 32), PricePerPflop(ask)
        )
        for place, (who, ask) in enumerate(book)
    ]


def seats_of(prices: list[int]) -> list[Any]:
    return [matching.Seat(0, 1, PricePerPflop(price)) for price in prices]


@given(
    BOOKS,
    st.integers(1, 4),
    st.integers(0, 3),
    st.lists(PRICES, max_size=5),
    PRICES,
    st.booleans(),
)
def test_buy__any_book__all_or_nothing_within_the_ceiling_and_no_owner_twice(
    book: list[tuple[int, int]],
    slots: int,
    spares: int,
    held: list[int],
    reserve: int,
    first: bool,
) -> None:
    """What is bought, before and after the job runs, beside any leases that it holds."""
    held = [min(price, reserve) for price in held]
    asks, bundle = asks_of(book), matching.Bundle(slots, spares)
    able = {ask.seller for ask in asks if ask.price <= reserve}
    missing = max(0, slots - len(held))
    try:
        bought = matching.buy(
            asks,
            bundle,
            seats_of(held),
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


def profit_of_both_rounds(asks: list[Any], who: Address, cost: int, slots: int, spares: int) -> int:
    """What one seller earns a PFLOP when spares that are missing are bought a round later."""
    try:
        first = matching.clear(asks, slots=slots, spares=spares, reserve=PricePerPflop(30))
    except NoMatch:
        return 0
    taken = {ask.seller for ask in first.winners}
    left = [ask for ask in asks if ask.seller not in taken]
    missing = slots + spares - len(first.winners)
    later = matching.sell_at(left, slots=missing, price=first.price)
    assert not later.winners, "a loser of the first round"
    return int(first.price) - cost if who in taken else 0


@given(
    st.lists(PRICES, min_size=1, max_size=6),
    st.lists(PRICES, min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_clear__spares_a_round_later__no_loser_is_bought_and_truth_pays(
    costs: list[int], lies: list[int], slots: int, spares: int
) -> None:
    """With one cost a seller, no other asks earn more than asking that cost, spares included."""
    others = list(enumerate(costs[1:], 1))
    honest, lying = asks_of([(0, costs[0]), *others]), asks_of([(0, lie) for lie in lies])
    lying += asks_of(others)
    who = honest[0].seller
    truth = profit_of_both_rounds(honest, who, costs[0], slots, spares)
    assert truth >= profit_of_both_rounds(lying, who, costs[0], slots, spares)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=24), st.integers(1, 6))
def test_deal__any_speeds__stages_are_balanced_within_one_offer(
    speeds: list[int], num_stages: int
) -> None:
    """Any speeds and stages: a permutation within the bounds, whatever the order."""
    stages = matching.deal(speeds, (), num_stages=num_stages)
    sums, peers = [0] * num_stages, [0] * num_stages
    for stage, speed in zip(stages, speeds, strict=True):
        sums[stage] += speed
        peers[stage] += 1
    assert max(peers) - min(peers) <= 1
    assert max(sums) - min(sums) <= max(speeds), "one offer more than balanced"
    if len(speeds) % num_stages == 0:
        assert max(sums) - min(sums) <= max(speeds) - min(speeds)


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.lists(st.integers(1, 9), min_size=12, max_size=12),
    st.sets(st.integers(0, 11)),
)
def test_deal__anybody_left__gaps_are_filled_first(
    num_stages: int, per_stage: int, speeds: list[int], gone: set[int]
) -> None:
    """Whoever left, the newcomers fill the gaps first."""
    num_slots = num_stages * per_stage
    stages = matching.deal(speeds[:num_slots], (), num_stages=num_stages)
    seats = [
        matching.Seat(stage, speeds[place], PricePerPflop(1))
        for place, stage in enumerate(stages)
        if place not in gone
    ]
    missing = num_slots - len(seats)
    filled = [seat.stage for seat in seats]
    filled += matching.deal([5] * missing, seats, num_stages=num_stages)
    assert sorted(filled) == sorted(list(range(num_stages)) * per_stage)
