"""Links between stages: who is left out when a leaf is not the copy that counts."""

from typing import Any

import pytest

from contracts.terms.errors import BadSignature, Malformed
from contracts.terms.ids import ZERO_DIGEST, Digest, JobId, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import GradCommit, TensorHeader, UnitLeaf
from tests.support.dockets import CheckedJob
from tests.support.history import make_digest, make_session
from training.coordinator.links import (
    Difference,
    OwnFault,
    Verdict,
    check_header,
    first_difference,
    judge,
)
from training.swarm.state import Copy, Place

STEP = StepNumber(4)
UNIT = ItemNumber(2)
NAMES = ("ann", "bob", "cem")  # of stages 0, 1, 2


def copies() -> dict[Place, Copy]:
    """One unit in three stages."""
    y = [make_digest("y", 0), make_digest("y", 1), ZERO_DIGEST]
    dx = [ZERO_DIGEST, make_digest("dx", 1), make_digest("dx", 2)]
    return {
        (StageIndex(stage), UNIT): Copy(
            make_session(name).peer,
            attempt=10 + stage,
            x=y[stage - 1] if stage else make_digest("rows"),
            y=y[stage],
            dy=dx[stage + 1] if stage < 2 else ZERO_DIGEST,
            dx=dx[stage],
        )
        for stage, name in enumerate(NAMES)
    }


def leaf(stage: int, **changed: Digest) -> UnitLeaf:
    copy = copies()[StageIndex(stage), UNIT]
    values: dict[str, Any] = {"x": copy.x, "y": copy.y, "dy": copy.dy, "dx": copy.dx} | changed
    return UnitLeaf(unit=UNIT, loss=7 if stage == 2 else None, **values)


def commit(stage: int) -> GradCommit:
    return CheckedJob().commit(NAMES[stage], step=STEP, stage=StageIndex(stage))


def difference(stage: int, **changed: Digest) -> Difference | OwnFault | None:
    return first_difference(copies(), commit(stage), [leaf(stage, **changed)])


def header(found: Difference, **changed: Any) -> TensorHeader:
    values: dict[str, Any] = {
        "job": JobId(bytes(32)),
        "step": STEP,
        "stage": found.stage,
        "unit": UNIT,
        "attempt": found.attempt,
        "tensor": found.tensor,
        "dtype": "float32",
        "shape": (1, 1, 1),
        "codec": "none",
        "tensor_digest": found.shown,
    }
    return TensorHeader(**(values | changed))


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_first_difference__leaves_are_the_counted_copies__is_none(stage: int) -> None:
    assert difference(stage) is None


OTHER = make_digest("another")


@pytest.mark.parametrize(
    ("stage", "name", "sender", "receiver", "tensor", "shown"),
    [
        (1, "x", "ann", "bob", "y", OTHER),
        (1, "dy", "cem", "bob", "dx", OTHER),
        (1, "y", "bob", "cem", "y", make_digest("y", 1)),
        (1, "dx", "bob", "ann", "dx", make_digest("dx", 1)),
        (0, "y", "ann", "bob", "y", make_digest("y", 0)),
        (2, "dx", "cem", "bob", "dx", make_digest("dx", 2)),
    ],
)
def test_first_difference__one_tensor_differs__names_both_ends_of_its_link(
    stage: int, name: str, sender: str, receiver: str, tensor: str, shown: Digest
) -> None:
    found = broken(stage, **{name: OTHER})

    ends = tuple(make_session(each).peer for each in (sender, receiver))
    assert (found.sender, found.receiver, found.tensor, found.shown) == (*ends, tensor, shown)


def test_first_difference__other_rows_on_the_first_stage__is_its_own_fault() -> None:
    assert isinstance(difference(0, x=OTHER), OwnFault)


def test_first_difference__input_and_output_differ__the_input_is_asked_about() -> None:
    assert broken(1, x=OTHER, y=OTHER, dx=OTHER).receiver == make_session("bob").peer


def test_first_difference__unit_of_somebody_else__is_not_judged_here() -> None:
    done = copies()
    place = (StageIndex(1), UNIT)
    done[place] = Copy(make_session("dan").peer, x=OTHER)

    assert first_difference(done, commit(1), [leaf(1)]) is None


def broken(stage: int, **changed: Digest) -> Difference:
    found = difference(stage, **changed)
    assert isinstance(found, Difference)
    return found


@pytest.mark.parametrize(
    ("name", "changed", "verdict"),
    [
        ("x", {}, Verdict.SENDER),
        ("y", {}, Verdict.SENDER),
        ("x", {"attempt": 99}, Verdict.NOBODY),
        ("y", {"attempt": 99}, Verdict.SENDER),  # its own output, whichever attempt it was
        ("x", {"step": 5}, Verdict.RECEIVER),
        ("x", {"stage": 2}, Verdict.RECEIVER),
        ("x", {"unit": 1}, Verdict.RECEIVER),
        ("x", {"tensor": "dx"}, Verdict.RECEIVER),
        ("x", {"tensor_digest": ZERO_DIGEST}, Verdict.RECEIVER),
    ],
)
def test_judge__header_that_the_sender_signed__leaves_out_who_lied(
    name: str, changed: dict[str, Any], verdict: Verdict
) -> None:
    found = broken(1, **{name: OTHER})

    assert judge(found, STEP, header(found, **changed)) is verdict


def test_judge__no_header__leaves_the_receiver_out() -> None:
    found = broken(1, x=OTHER)

    assert judge(found, STEP, None) is Verdict.RECEIVER


def test_check_header__signed_by_another__is_refused() -> None:
    found = broken(1, x=OTHER)
    ann, bob = make_session("ann"), make_session("bob")
    data = ann.sign(header(found)).encoded()

    assert check_header(data, ann.key) == header(found)
    with pytest.raises(BadSignature):
        check_header(data, bob.key)
    with pytest.raises(Malformed):
        check_header(b"\x80", ann.key)
