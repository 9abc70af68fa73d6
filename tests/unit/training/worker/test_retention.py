"""How long is work of sealed steps kept, and when does it go after all?"""

from contracts.terms.digest import digest
from contracts.terms.ids import StepNumber
from contracts.terms.items import ItemNumber
from training.disk import MOST_STEPS
from training.worker.retention import Retention

COMMIT, OTHER = digest("test", b"commit"), digest("test", b"other")
UNITS = [ItemNumber(3), ItemNumber(5)]


def steps(*numbers: int) -> tuple[StepNumber, ...]:
    return tuple(map(StepNumber, numbers))


def test_retention__draws_settled_before__older_ones_go_and_do_not_come_back() -> None:
    retention = Retention(most=9).settled_before(StepNumber(3)).settled_before(StepNumber(2))

    assert retention.kept(steps(1, 2, 3, 4)) == steps(3, 4)


def test_retention__nothing_drawn_of_a_step__it_goes_between_others_that_stay() -> None:
    retention = Retention(most=2).narrowed(StepNumber(3), [], []).narrowed(StepNumber(2), UNITS, [])

    assert retention.kept(steps(1, 2, 3, 4)) == steps(2, 4)  # it takes no room
    assert retention.needed[StepNumber(2)].units == set(UNITS)


def test_retention__narrowed_twice__what_was_let_go_is_not_wanted_again() -> None:
    once = Retention(most=MOST_STEPS).narrowed(StepNumber(2), UNITS[:1], [COMMIT])

    twice = once.narrowed(StepNumber(2), UNITS, [OTHER])

    assert twice.needed[StepNumber(2)].units == {UNITS[0]}
    assert twice.needed[StepNumber(2)].commits == frozenset()
