"""Prices of a clearing, for any book, job and lie.

* ask <= price <= ceiling for every winner
* a job's units at the clearing price never cost more than its ceiling, its budget, or one another
* who asks another price than its cost never earns more
* an offer is in the book exactly when no constraint excludes it
* standings decide between equal asks, and between no others; they move no price
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
        unit_flops=(Flops(flops),),
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
