"""A round's book finds what judging every offer finds, for any offers and jobs.

Jobs buy one after the other, so that every purchase is in the book of the next.
"""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.errors import NoMatch
from contracts.terms.ids import Address, Digest
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.domain import matching
from market.domain.matching import Ask, Need, asks_of, clear, judge
from market.domain.offers import Candidate
from market.domain.reputation import Reputation

NOW = UnixMillis(1_000_000)
HUGE = 2**90  # base units do not fit into 64 bits

offers = st.builds(
    Candidate,
    offer=st.integers(0, 2**64).map(lambda number: Digest(number.to_bytes(32, "big"))),
    account=st.integers(0, 5).map(lambda number: Address(bytes([number]) * 20)),
    price=st.sampled_from([1, 2, 3, HUGE]).map(PricePerPflop),
    memory_bytes=st.integers(1, 4),
    flops_per_second=st.just(1),
    available_from=st.sampled_from([*[0] * 8, 1000, 1001]).map(UnixSeconds),
    expires_at=st.sampled_from([1005, *[1008] * 3]).map(UnixSeconds),
    heard_at=st.sampled_from([None, 984_999, 985_000, *[NOW] * 7]),
    leased=st.sampled_from([*[False] * 6, True]),
    free_stake=st.sampled_from([0, 1, HUGE, HUGE]).map(BaseUnits),
    device_class=st.sampled_from(["cpu/a", "cpu/a+cpu", "cpu/b", "cpu/c"]),
    reputation=st.sampled_from(
        [*[Reputation(matches=n) for n in range(4)], Reputation(mismatches=1)]
    ),
)
needs = st.builds(
    Need,
    price_ceiling=st.sampled_from([1, 2, *[HUGE] * 4]).map(PricePerPflop),
    memory_bytes=st.sampled_from([0, 0, 1, 2, 4, 5]),
    min_stake=st.sampled_from([0, 0, 1, HUGE, HUGE + 1]).map(BaseUnits),
    deadline=st.sampled_from([*[1004] * 4, 1005, 1008, 1009]).map(UnixSeconds),
    now=st.just(NOW),
    devices=st.none()
    | st.none()
    | st.none()
    | st.frozensets(st.sampled_from(["cpu/a", "cpu/b", "cpu/x"])),
)
jobs = st.tuples(
    needs, st.integers(1, 3), st.integers(0, 2), st.frozensets(st.integers(0, 5), max_size=2)
)


def outcome(asks: list[Any], need: Need, slots: int, spares: int) -> Any:
    try:
        return clear(asks, slots=slots, spares=spares, reserve=need.price_ceiling)
    except NoMatch as refusal:
        return refusal.message


def best(asks: list[Ask], num_sellers: int) -> list[Ask]:
    found: dict[Address, Ask] = {}
    for ask in sorted(asks, key=lambda each: (each.price, -each.standing, each.offer)):
        found.setdefault(ask.seller, ask)
    return list(found.values())[:num_sellers]


def less(free: BaseUnits, promised: int) -> BaseUnits:
    return BaseUnits(max(0, free - promised))


@given(st.lists(offers, max_size=12, unique_by=lambda each: each.offer), st.lists(jobs, max_size=4))
def test_book__any_offers_and_round__clears_as_the_plain_definition(
    all_offers: list[Candidate], round_of: list[Any]
) -> None:
    standing, found = all_offers, matching.Book(all_offers, NOW)
    for need, slots, spares, numbers in round_of:
        without = frozenset(Address(bytes([number]) * 20) for number in numbers)
        left = [each for each in standing if each.account not in without]
        asks = asks_of(judge(need, left))
        fitting = found.fitting(need, without)
        assert fitting.bit_count() == len(asks)
        cheapest = found.cheapest(fitting, slots + spares + 1)
        assert cheapest == best(asks, slots + spares + 1)
        cleared = outcome(asks, need, slots, spares)
        assert outcome(cheapest, need, slots, spares) == cleared
        assert found.num_offers(without) == len(left)
        assert sorted(found.offers(without), key=str) == sorted(left, key=str)
        won = () if isinstance(cleared, str) else cleared.winners
        taken = {ask.offer for ask in won}
        for offer in taken:
            found.take(offer, stake=need.min_stake)
            assert not found.is_free(offer)
        sellers = {each.account for each in standing if each.offer in taken}
        standing = [
            replace(
                o,
                leased=o.leased or o.offer in taken,
                free_stake=less(o.free_stake, need.min_stake * (o.account in sellers)),
            )
            for o in standing
        ]
