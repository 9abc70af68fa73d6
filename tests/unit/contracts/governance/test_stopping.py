"""When losses end a job, and which seals may say so."""

from typing import Any

import pytest

from contracts.governance.seals import derive_seal
from contracts.governance.stopping import Validations
from contracts.terms.errors import BadSignature, Equivocation, InvalidSeal
from contracts.terms.ids import StepNumber
from contracts.terms.messages import StopEarlySpec, Validation
from contracts.terms.signatures import Signed
from tests.support.history import JobMaker, make_session

MILLION = 10**6


def said(maker: JobMaker, loss: int, **changed: Any) -> Signed[Validation]:
    """The loss of the newest state, in the next seal."""
    values: dict[str, Any] = {
        "job": maker.spec.job(),
        "step": maker.next_step,
        "of": maker.record.step,
    }
    return maker.session.sign(Validation(**(values | {"loss": loss} | changed)))


def stopping(**changed: Any) -> JobMaker:
    """A job after two updates, which is validated after every second one."""
    rule = StopEarlySpec(patience=1, min_delta=100)
    maker = JobMaker(spec_changes={"validate_every": 2, "stop_early": rule} | changed)
    maker.seal_step()
    maker.seal_step()
    return maker


@pytest.mark.parametrize(
    ("patience", "min_delta", "losses", "ends_after"),
    [
        (1, 0, [5, 4, 3, 3, 2], 4),
        (2, 0, [5, 6, 4, 5, 4, 3], 5),
        (2, 0, [5, 6, 4, 6, 3, 7], None),
        (1, 2, [9, 7, 5], 2),  # better by no more than min_delta
        (1, 2, [9, 6, 3], None),
        (2, 2, [9, 8, 6, 5], None),  # each is compared with the best, not with the one before
        (3, 0, [1, 1, 1, 1], 4),
        (1, 0, [5], None),
    ],
)
def test_end_work__losses__after_patience_of_them_in_a_row_that_are_no_better(
    patience: int, min_delta: int, losses: list[int], ends_after: int | None
) -> None:
    maker = stopping()
    rule, known, ended = StopEarlySpec(patience=patience, min_delta=min_delta), Validations(), []

    for loss in losses:
        known = known.after(said(maker, loss).message, rule)
        ended.append(known.end_work(rule))

    assert (ended.index(True) + 1 if any(ended) else None) == ends_after
    assert not known.end_work(None)


def test_seal__losses_no_better__hold_work_no_more_and_all_is_paid() -> None:
    maker = stopping()
    maker.seal([said(maker, 5 * MILLION), *maker.step_items()])
    maker.seal_step()
    maker.seal([said(maker, 5 * MILLION - 100), *maker.step_items()])  # what was begun
    assert maker.record.validations == Validations(StepNumber(4), 5 * MILLION, since=1)

    with pytest.raises(InvalidSeal) as refused:
        maker.seal_step()
    end = maker.seal([], last=True).seal

    assert refused.value.data["part"] == "stop_early"
    assert maker.record.ended and end.updates == 5
    assert end.vested == end.earned > 0


def test_seal__void_rounds__the_newest_state_may_be_validated_later() -> None:
    maker = stopping()
    maker.seal_step(update=False)

    maker.seal([said(maker, 7, of=StepNumber(2))])

    assert maker.record.validations.newest == 2


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, {"of": StepNumber(1)}),  # an older state
        ({}, {"of": StepNumber(4)}),  # one that is not there yet
        ({"validate_every": 3}, {}),  # not due
        ({"stop_early": None}, {}),
    ],
)
def test_seal__loss_that_nobody_asked_for__is_no_valid_one(
    changed: dict[str, Any], wrong: dict[str, Any]
) -> None:
    maker = stopping(**changed)

    with pytest.raises(InvalidSeal) as refused:
        maker.seal([said(maker, 7, **wrong)])

    assert refused.value.data["part"] == "validation"


def test_seal__loss_of_a_state_again__is_refused() -> None:
    maker = stopping()
    maker.seal([said(maker, 7)])

    with pytest.raises(InvalidSeal, match="validation"):
        maker.seal([said(maker, 6, of=StepNumber(2))])


def test_follow__another_loss_of_one_state__is_equivocation() -> None:
    maker = stopping()
    maker.keep(said(maker, 7))

    with pytest.raises(Equivocation):
        maker.keep(said(maker, 6))


def test_follow__loss_by_a_peer__is_refused() -> None:
    maker = stopping()

    with pytest.raises(BadSignature):
        maker.keep(make_session("ann").sign(said(maker, 7).message))


def test_derive_seal__loss__is_under_its_root() -> None:
    maker = stopping()
    one, other = (
        derive_seal(maker.record, maker.under([said(maker, loss)]), last=False) for loss in (6, 7)
    )

    assert one.seal.messages_root != other.seal.messages_root
