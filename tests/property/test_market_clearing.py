"""Prices of a clearing, bundles and deals, for any book, job and lie.

* ask <= price <= ceiling for every winner, spares and late ones too
* a job's units at the clearing price never cost more than its ceiling, its budget, or one another
* who asks another price than its cost never earns more
* an offer is in the book exactly when no constraint excludes it
* standings decide between equal asks, and between no others; they move no price
* all or nothing: a bundle has all its slots or no winner; no owner is in it twice
* asking for spares never lets a winner set its own price
* an ask that stands: who lost to the slots, so perhaps set the price, is no spare later, and no lie
  earns more over both rounds than asking one's cost
* stages differ by one peer, and by the speed of one offer, at most
"""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop, pay_for
from contracts.terms.errors import NoMatch
from contracts.terms.ids import Address, Digest
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.domain import matching, sizes
from market.domain.offers import Candidate
from market.domain.reputation import Reputation
from tests.support.history import make_spec, make_wallet

PRICES = st.integers(1, 40)
BOOKS = st.lists(st.tuples(st.integers(0, 5), PRICES), max_size=8)
POSTER, COORDINATOR = make_wallet("poster"), make_wallet("coordinator")


def seller(number: int) -> Address:
    return Address(bytes([number + 1]) * 20)


def asks_of(book: list[tuple[int, int]]) -> list[Any]:
    return [
        matching.Ask(seller(who), Digest(bytes([place]) * 32), PricePerPflop(price), who % 3)
        for place, (who, price) in enumerate(book)
    ]


def outcome(asks: list[Any], slots: int, reserve: int) -> Any:
    try:
        return matching.clear(asks, slots=slots, reserve=PricePerPflop(reserve))
    except NoMatch:
        return None


@given(BOOKS, st.integers(1, 4), PRICES)
def test_clear__any_book__ask_at_most_price_at_most_ceiling(
    book: list[tuple[int, int]], slots: int, reserve: int
) -> None:
    """ask <= price <= ceiling; exactly as many winners as slots, each another seller."""
    asks = asks_of(book)
    cleared = outcome(asks, slots, reserve)
    able = {ask.seller for ask in asks if ask.price <= reserve}
    if cleared is None:
        assert len(able) < slots, "enough sellers, and no clearing"
        return
    assert len({ask.seller for ask in cleared.winners}) == slots
    assert all(ask.price <= cleared.price <= reserve for ask in cleared.winners)
    assert cleared == outcome(list(reversed(asks)), slots, reserve), "order decides"


def profit(cleared: Any, who: Address, cost: int) -> int:
    if cleared is None or who not in {ask.seller for ask in cleared.winners}:
        return 0
    return int(cleared.price) - cost


@given(
    st.lists(PRICES, min_size=1, max_size=6),
    st.integers(0, 5),
    st.lists(PRICES, min_size=1, max_size=3),
    st.integers(1, 3),
    PRICES,
)
def test_clear__any_lie__never_earns_more_than_the_truth(
    costs: list[int], who: int, lies: list[int], slots: int, reserve: int
) -> None:
    """With one cost a seller, no other asks earn more than asking that cost."""
    who %= len(costs)
    others = [(number, cost) for number, cost in enumerate(costs) if number != who]
    honest = asks_of([*others, (who, costs[who])])
    lying = asks_of([*others, *((who, lie) for lie in lies)])
    earned = profit(outcome(honest, slots, reserve), seller(who), costs[who])
    assert earned >= profit(outcome(lying, slots, reserve), seller(who), costs[who])


@given(BOOKS, st.lists(st.integers(0, 2), min_size=6, max_size=6), st.integers(1, 4), PRICES)
def test_clear__any_standings__decide_between_equal_asks_alone(
    book: list[tuple[int, int]], standings: list[int], slots: int, reserve: int
) -> None:
    """Other standings, same prices won at and paid; a loser is beaten by price, name or place."""
    plain = [replace(ask, standing=0) for ask in asks_of(book)]
    named = [replace(ask, standing=standings[ask.seller[0] - 1]) for ask in plain]
    before, after = (outcome(asks, slots, reserve) for asks in (plain, named))
    if before is None or after is None:
        assert before == after
        return
    assert after.price == before.price
    won, winners = ([ask.price for ask in c.winners] for c in (before, after))
    assert won == winners
    last, taken = after.winners[-1], {ask.seller for ask in after.winners}
    for loser in (ask for ask in named if ask.seller not in taken):
        assert (loser.price, -loser.standing) >= (last.price, -last.standing)


@given(
    st.integers(1, 10**14) | st.sampled_from([5 * 10**14, 10**15]),
    st.integers(1, 30),
    st.integers(1, 10**9) | st.integers(1, 9),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=5),
)
def test_job_cost__any_shares_and_prices__within_ceiling_and_budget(
    flops: int, steps: int, ceiling: int, shares: list[tuple[int, int]]
) -> None:
    """Shares of a job's units at any prices up to the ceiling never sum above what was admitted."""
    spec = make_spec(
        POSTER,
        COORDINATOR,
        item_flops=(Flops(flops),),
        steps=steps,
        price_ceiling=PricePerPflop(ceiling),
    )
    budget = sizes.job_cost(spec, spec.price_ceiling)
    left, paid = steps * spec.batch.units_per_step, 0
    for part, discount in [*shares, (100, 0)]:
        units = left * part // 100
        left -= units
        price = PricePerPflop(ceiling - (ceiling - 1) * discount // 100)
        paid += pay_for(Flops(units * flops), price)
    assert paid <= budget
    for wallet in (budget, budget - 1, budget - budget % steps + steps - 1):
        afforded = sizes.affordable_price(spec, wallet)
        assert sizes.job_cost(spec, PricePerPflop(afforded)) <= wallet
        assert sizes.job_cost(spec, PricePerPflop(afforded + 1)) > wallet
    assert sizes.affordable_steps(spec, budget) >= steps


NEED = matching.Need(
    PricePerPflop(20),
    100,
    BaseUnits(5),
    UnixSeconds(2000),
    UnixMillis(1_000_000),
    frozenset({"cpu/a"}),
)
CANDIDATES = st.builds(
    Candidate,
    offer=st.just(Digest(bytes(32))),
    account=st.just(seller(0)),
    price=PRICES.map(PricePerPflop),
    memory_bytes=st.sampled_from([99, 100, 101]),
    flops_per_second=st.just(1),
    available_from=st.sampled_from([999, 1000, 1001]).map(UnixSeconds),
    expires_at=st.sampled_from([1999, 2000, 2001]).map(UnixSeconds),
    heard_at=st.sampled_from([None, 984_999, 985_000, 1_000_000]),
    leased=st.booleans(),
    free_stake=st.sampled_from([4, 5, 6]).map(BaseUnits),
    device_class=st.sampled_from(["cpu/a", "cpu/a+cpu", "cpu/b"]),
    reputation=st.builds(Reputation, matches=st.integers(0, 2), mismatches=st.integers(0, 2)),
)


@given(st.lists(CANDIDATES, max_size=6))
def test_matching__any_offers__excluded_exactly_when_infeasible(offers: list[Candidate]) -> None:
    """Feasible and excluded are one question; each count is of offers that fail it."""
    for offer in offers:
        judged = matching.judge(NEED, [offer])
        assert bool(matching.asks_of(judged)) != bool(matching.exclusions_of(NEED, judged))
    book = matching.judge(NEED, offers)
    for found in matching.exclusions_of(NEED, book):
        alone = [bool(each.failed) for each in book]
        assert 0 < found.offers <= sum(alone)
        assert found.constraint in matching.CONSTRAINTS and found.would_fit
    for ask in matching.asks_of(book):
        assert ask.price <= NEED.price_ceiling


# ------------------------------------------------------------------------------ bundles and deals


@given(
    st.lists(st.tuples(st.integers(0, 8), PRICES), max_size=12),
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
            [matching.Seat(0, 1, PricePerPflop(price)) for price in held],
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
        first = matching.clear(asks, slots=slots, spares=spares, reserve=PricePerPflop(40))
    except NoMatch:
        return 0
    taken = {ask.seller for ask in first.winners}
    left = [ask for ask in asks if ask.seller not in taken]
    missing = slots + spares - len(first.winners)
    later = matching.sell_at(left, slots=missing, price=first.price)
    assert not later.winners, "a loser of the first round"
    return profit(first, who, cost)


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
