"""Whom does an auditor ask, and for how long?"""

import pytest

from contracts.terms.errors import NotFound
from tests.support.dockets import peer
from training.worker.patience import LEFT_ALONE, MOST_WASTED, Patience

ANN, BOB, CEM = peer("ann"), peer("bob"), peer("cem")


class Clock:
    """Says what it is told."""

    now = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


def fail(patience: Patience, clock: Clock, *, seconds: float) -> None:
    """Ask Bob, who lets us wait and gives nothing."""
    with pytest.raises(NotFound), patience.waiting_for(BOB):
        clock.now += seconds
        raise NotFound("not here")


def test_order__whose_work_is_audited__comes_last_and_the_others_stay_as_they_are() -> None:
    patience = Patience()
    patience.doer = CEM

    assert patience.order([CEM, BOB, ANN]) == [BOB, ANN, CEM]
    assert patience.order([BOB, ANN]) == [BOB, ANN]


def test_waiting_for__long_and_for_nothing__is_left_alone_for_a_while() -> None:
    clock = Clock()
    patience = Patience(clock)

    fail(patience, clock, seconds=MOST_WASTED)

    assert not patience.is_left_for(BOB)
    assert patience.is_left_for(ANN)
    clock.now += LEFT_ALONE
    assert patience.is_left_for(BOB)


def test_waiting_for__no_at_once_or_slow_bytes__is_asked_again() -> None:
    clock = Clock()
    patience = Patience(clock)

    fail(patience, clock, seconds=MOST_WASTED / 2)
    with patience.waiting_for(BOB):
        clock.now += 2 * MOST_WASTED

    assert patience.is_left_for(BOB)
