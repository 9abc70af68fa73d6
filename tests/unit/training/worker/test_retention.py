"""How long is work of sealed rounds kept, and when does it go after all?"""

from contracts.terms.ids import StepNumber
from tests.support.history import make_digest
from training.disk import MOST_STEPS
from training.worker.retention import Retention

A, B, C = make_digest("a"), make_digest("b"), make_digest("c")


def rounds(*numbers: int) -> tuple[StepNumber, ...]:
    return tuple(map(StepNumber, numbers))


def test_retention__draws_settled_before__older_ones_go_and_do_not_come_back() -> None:
    retention = Retention(most=9).settled_before(StepNumber(3)).settled_before(StepNumber(2))

    assert retention.kept(rounds(1, 2, 3, 4)) == rounds(3, 4)


def test_retention__nothing_drawn_of_a_round__it_goes_between_others_that_stay() -> None:
    retention = Retention(most=2).narrowed(StepNumber(3), []).narrowed(StepNumber(2), [A, B])

    assert retention.kept(rounds(1, 2, 3, 4)) == rounds(2, 4)  # it takes no room
    assert retention.needed[StepNumber(2)] == {A, B}


def test_retention__narrowed_twice__what_was_let_go_is_not_wanted_again() -> None:
    once = Retention(most=MOST_STEPS).narrowed(StepNumber(2), [A])

    twice = once.narrowed(StepNumber(2), [B, C])

    assert twice.needed[StepNumber(2)] == frozenset()


def test_retention__claims_are_pending__their_rounds_stay_checked_or_not() -> None:
    for most in (0, 2):
        retention = Retention(most=most).settled_before(StepNumber(9)).with_pending(rounds(1))

        assert retention.kept(rounds(1, 2, 3)) == rounds(1)
        assert retention.with_pending(()).kept(rounds(1, 2, 3)) == ()
