"""What is known of an account after some outcomes; properties are in tests/property."""

from fractions import Fraction

import pytest

from contracts.terms.ids import ZERO_DIGEST, PeerId, StepNumber
from market.domain.reputation import (
    LIVE,
    MOST,
    NEWCOMER,
    Outcome,
    Reputation,
    is_trusted,
    standing,
)
from market.service.reputation import outcomes_of
from verification.draws.cases import Ruling, What


def test_reputation__stranger__is_a_twentieth_though_the_mean_is_a_half() -> None:
    assert (Reputation().bound, Reputation().mean) == (NEWCOMER, Fraction(1, 2))
    assert NEWCOMER == 500


def test_reputation__ten_thousand_matches__count_as_five_hundred() -> None:
    many = Reputation(matches=10_000)

    assert many.bound == Reputation(matches=MOST).bound
    assert many.after(Outcome.MISMATCH).bound == Reputation(MOST, 1).bound


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        (Reputation(), Reputation(matches=1)),
        (Reputation(matches=9, mismatches=1), Reputation(matches=9)),
        (Reputation(missed=1, liveness=1), Reputation()),
        (Reputation(liveness=LIVE), Reputation(matches=1, liveness=0)),
    ],
)
def test_standing__two_accounts__honesty_first_and_liveness_within_it(
    worse: Reputation, better: Reputation
) -> None:
    assert standing(worse) < standing(better)


def test_is_trusted__who_is_known_to_be_worse_than_a_stranger__is_not_matched() -> None:
    assert is_trusted(Reputation())
    assert not is_trusted(Reputation(mismatches=1))
    assert is_trusted(Reputation(matches=1, mismatches=1))


def peer(name: str) -> PeerId:
    return PeerId(name.encode().ljust(32, b"."))


@pytest.mark.parametrize(
    ("ruling", "expected"),
    [
        (("settled", "a", "b"), [("a", "match"), ("b", "kept")]),
        (("convicted", "a", "bc"), [("a", "mismatch"), ("b", "kept"), ("c", "kept")]),
        (("missing", "a", "bc"), [("a", "missed"), ("b", "kept"), ("c", "kept")]),
        (("missed", "b", ""), [("b", "missed")]),
        (("unrepeated", "a", "b"), [("b", "kept")]),
        (("slashable", "a", "bcd"), [("d", "kept")]),
        (("unconfirmed", "a", "bcd"), []),
        (("drawn", "a", "b"), []),
        (("accused", "a", "b"), []),
        (("contradicted", "b", "bc"), []),
    ],
)
def test_outcomes_of__a_ruling__counts_what_is_final_and_nothing_else(
    ruling: tuple[What, str, str], expected: list[tuple[str, str]]
) -> None:
    what, about, by = ruling
    told = Ruling(what, ZERO_DIGEST, StepNumber(4), peer(about), tuple(map(peer, by)))

    found = [(chr(each[0]), outcome.value) for each, outcome in outcomes_of(told)]

    assert found == expected
