"""Paces and outlooks of a job's spending."""

from contracts.terms.amounts import BaseUnits
from contracts.terms.moments import UnixMillis
from market.bodies.earnings import OutlookView
from market.domain.earnings import Pace, Sealed, outlook_of, pace_of


def sealed(step: int, earned: int, at: int) -> Sealed:
    return Sealed(step, BaseUnits(earned), UnixMillis(at))


def outlook(budget: int) -> OutlookView:
    """Of a job of 10 steps after its fourth, which spends 10 a step of 7 ms."""
    return outlook_of(
        Pace(2, 15, BaseUnits(20)),
        sealed(4, 40, 1000),
        steps=10,
        budget=BaseUnits(budget),
    )


def test_pace__seals_of_some_steps__is_from_the_first_to_the_last() -> None:
    pace = pace_of([sealed(3, 10, 100), sealed(4, 15, 150), sealed(6, 31, 400)])
    assert pace == Pace(3, 300, BaseUnits(21))
    assert (pace.millis_a_step, pace.spent_a_step) == (100, 7)
    assert pace.spent_an_hour == 21 * 12_000


def test_pace__one_seal_or_one_moment__is_none() -> None:
    assert pace_of([]) is None and pace_of([sealed(1, 5, 5)]) is None
    assert pace_of([sealed(1, 5, 5), sealed(2, 9, 5)]) is None


def test_outlook__budget_covers_all_steps__lasts() -> None:
    found = outlook(100)
    assert (found.ends_at, found.spent_then) == (1045, 100)
    assert found.lasts and found.spent_up_at is None and found.spent_up_at_step is None


def test_outlook__budget_is_short__names_the_step_that_it_does_not_cover() -> None:
    found = outlook(75)
    assert not found.lasts
    assert (found.spent_up_at_step, found.spent_up_at) == (8, 1023)  # three more steps: 70


def test_outlook__nothing_is_earned__lasts() -> None:
    nothing = BaseUnits(0)
    found = outlook_of(Pace(2, 10, nothing), sealed(4, 0, 10), steps=6, budget=nothing)
    assert found.lasts and found.spent_then == 0 and found.ends_at == 20
