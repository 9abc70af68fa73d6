"""The least change that matches a job: it really does, and nothing smaller would.

Compared with every relaxation of one number, of two, of the cut, and of the cut with one number,
whose values are those that some offer asks for.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop
from contracts.terms.ids import Address, Digest
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.domain.matching import Need, asks_of, judge
from market.domain.offers import Candidate
from market.domain.quote import Relaxation, least_relaxation
from market.domain.reputation import Reputation
from market.domain.sizes import Cut, Terms

NOW = UnixMillis(1_000_000)
NEED = Need(PricePerPflop(4), 4, BaseUnits(4), UnixSeconds(1010), NOW)
CUT = Cut(2, 2, memory_bytes=4, dearest_unit=Flops(1))
OTHERS = (
    Cut(1, 2, 8, Flops(1)),
    Cut(2, 1, 4, Flops(1)),
    Cut(3, 2, 3, Flops(1)),
    Cut(3, 1, 3, Flops(1)),
    Cut(1, 1, 8, Flops(1)),
)

candidates = st.builds(
    Candidate,
    offer=st.integers(0, 2**64).map(lambda number: Digest(number.to_bytes(32, "big"))),
    account=st.integers(0, 6).map(lambda number: Address(bytes([number]) * 20)),
    price=st.integers(1, 9).map(PricePerPflop),
    memory_bytes=st.integers(1, 9),
    flops_per_second=st.just(1),
    available_from=st.sampled_from((0, 0, 1001, 1003)).map(UnixSeconds),
    expires_at=st.sampled_from((1005, 1008, 2000)).map(UnixSeconds),
    heard_at=st.sampled_from((NOW, NOW, NOW, None)),
    leased=st.sampled_from((False, False, False, True)),
    free_stake=st.integers(0, 6).map(BaseUnits),
    device_class=st.just("cpu/a"),
    reputation=st.sampled_from((Reputation(), Reputation(), Reputation(mismatches=1))),
)
books = st.lists(candidates, max_size=9)


def owners(terms: Terms, offers: list[Candidate]) -> int:
    """How many fit a job with these terms at its start; who is heard now is heard then."""
    need = Need(
        terms.price_ceiling, terms.cut.memory_bytes, terms.min_stake, terms.deadline, terms.start
    )
    then = [replace(each, heard_at=each.heard_at and terms.start) for each in offers]
    return len({ask.seller for ask in asks_of(judge(need, then))})


def is_matched(terms: Terms, offers: list[Candidate]) -> bool:
    return owners(terms, offers) >= terms.cut.slots


def size_of(terms: Terms) -> Fraction:
    millis = NEED.deadline * 1000 - NOW
    return (
        Fraction(terms.price_ceiling - NEED.price_ceiling, NEED.price_ceiling)
        + Fraction(NEED.min_stake - terms.min_stake, NEED.min_stake)
        + Fraction((NEED.deadline - terms.deadline) * 1000, millis)
        + Fraction(terms.start - NOW, millis)
        + Fraction(abs(terms.cut.stages - CUT.stages), CUT.stages)
        + Fraction(abs(terms.cut.peers_per_stage - CUT.peers_per_stage), CUT.peers_per_stage)
    )


def num_changes(terms: Terms) -> int:
    signed = (NEED.price_ceiling, NEED.min_stake, NEED.deadline, NOW, 2, 2)
    cut = (terms.cut.stages, terms.cut.peers_per_stage)
    asked = (terms.price_ceiling, terms.min_stake, terms.deadline, terms.start, *cut)
    return sum(one != other for one, other in zip(signed, asked, strict=True))


def every_terms(offers: list[Candidate]) -> Iterator[Terms]:
    """All terms with one or two changes, to values that offers ask for."""
    prices = {NEED.price_ceiling} | {each.price for each in offers if each.price > 4}
    stakes = {NEED.min_stake} | {each.free_stake for each in offers if each.free_stake < 4}
    deadlines = {NEED.deadline} | {each.expires_at for each in offers if each.expires_at < 1010}
    starts = {NOW} | {
        UnixMillis(each.available_from * 1000) for each in offers if each.available_from
    }
    for price, stake, deadline, start, cut in product(
        prices, stakes, deadlines, starts, (CUT, *OTHERS)
    ):
        terms = Terms(price, stake, deadline, start, cut)
        if 1 <= num_changes(terms) <= 2:
            yield terms


def relaxed(offers: list[Candidate]) -> Relaxation | None:
    return least_relaxation(NEED, CUT, OTHERS, judge(NEED, offers))


SIGNED = Terms(NEED.price_ceiling, NEED.min_stake, NEED.deadline, NOW, CUT)


@given(books)
def test_relaxation__any_offers__applied_it_matches_and_nothing_smaller_does(
    offers: list[Candidate],
) -> None:
    found = relaxed(offers)

    if is_matched(SIGNED, offers):
        assert found is None
        return
    sizes = [size_of(terms) for terms in every_terms(offers) if is_matched(terms, offers)]
    if found is None:
        assert sizes == []
        return
    assert is_matched(found.terms, offers)
    assert found.size == size_of(found.terms) == min(sizes)
    assert len(found.changes) == num_changes(found.terms) <= 2


@given(books, st.randoms(use_true_random=False))
def test_relaxation__offers_in_another_order__is_the_same(offers: list[Candidate], order) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(offers)
    order.shuffle(shuffled)

    assert relaxed(shuffled) == relaxed(offers)


@given(books)
def test_relaxation__terms_that_may_not_be_posted__are_never_advised(
    offers: list[Candidate],
) -> None:
    def admits(terms: Terms) -> bool:
        return terms.min_stake >= 3 and terms.cut.peers_per_stage > 1

    found = least_relaxation(NEED, CUT, OTHERS, judge(NEED, offers), admits=admits)

    allowed = [
        terms for terms in every_terms(offers) if admits(terms) and is_matched(terms, offers)
    ]
    if found is not None:
        assert admits(found.terms) and is_matched(found.terms, offers)
        assert found.size == min(map(size_of, allowed))
    elif not is_matched(SIGNED, offers):
        assert allowed == []
