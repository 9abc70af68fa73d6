"""Boundary tensors on disk: no second value under a name, not even when its step is sealed."""

from pathlib import Path

import pytest

from contracts.terms.digest import tensor_digest
from contracts.terms.errors import Conflict
from contracts.terms.ids import JobId, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import TensorHeader
from tests.support.history import make_session
from training.worker.tensors import Kept, Tensors

STAGE, STEP = StageIndex(0), StepNumber(5)
ANN = make_session("ann")


def kept(data: bytes, *, step: int = STEP, attempt: int = 1, unit: int = 0) -> Kept:
    """A tensor of ours."""
    header = TensorHeader(
        job=JobId(bytes(32)),
        step=StepNumber(step),
        stage=STAGE,
        unit=ItemNumber(unit),
        attempt=attempt,
        tensor="y",
        dtype="float32",
        shape=(len(data) // 4,),
        codec="none",
        tensor_digest=tensor_digest("float32", (len(data) // 4,), data),
    )
    return Kept(ANN.sign(header), data)


ONE, OTHER = kept(b"1111"), kept(b"2222")


@pytest.mark.parametrize("restarted", [False, True])
def test_tensors__step_is_sealed__its_names_are_taken_until_the_next_is(
    tmp_path: Path, restarted: bool
) -> None:
    tensors = Tensors(tmp_path, STAGE)
    tensors.put(ONE)
    tensors.drop(STEP)
    if restarted:
        tensors = Tensors(tmp_path, STAGE)

    with pytest.raises(Conflict, match="attempt 1 had another y"):
        tensors.put(OTHER)
    tensors.put(kept(b"2222", attempt=2))

    tensors.drop(StepNumber(STEP + 1))
    assert not list(tmp_path.glob("tensors/*/*"))


def has(tensors: Tensors, what: Kept) -> bool:
    header = what.header.message
    return tensors.has(header.step, header.tensor_digest)


@pytest.mark.parametrize("restarted", [False, True])
def test_tensors__steps_dropped_but_some__those_are_served_and_their_names_stay_taken(
    tmp_path: Path, restarted: bool
) -> None:
    tensors = Tensors(tmp_path, STAGE)
    several = [kept(b"1111", step=step) for step in (2, 3, 4, 5, 6)]
    for each in several:
        tensors.put(each)

    tensors.drop(STEP, but=[StepNumber(3), STEP])
    if restarted:
        tensors = Tensors(tmp_path, STAGE)

    assert [has(tensors, each) for each in several] == [False, True, False, True, True]
    assert tensors.steps() == {3, 5, 6}
    assert tensors.get(StepNumber(3), several[1].header.message.tensor_digest) == several[1]
    with pytest.raises(Conflict):
        tensors.put(kept(b"2222", step=3))


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("drawn", [0, 1])
def test_tensors__narrowed_to_units__theirs_stay_also_where_another_sent_the_same(
    tmp_path: Path, restarted: bool, drawn: int
) -> None:
    tensors = Tensors(tmp_path, STAGE)
    copied = [kept(b"1111", unit=0), kept(b"1111", unit=1, attempt=2)]
    others = [kept(b"2222", unit=2), kept(b"3333", unit=3)]
    for each in (*copied, *others):
        tensors.put(each)
    if restarted:
        tensors = Tensors(tmp_path, STAGE)

    tensors.narrow(STEP, [ItemNumber(drawn), ItemNumber(3)])

    assert [has(tensors, each) for each in (copied[0], *others)] == [True, False, True]
    assert len(list(tmp_path.glob("tensors/*/*.bin"))) == 2
    with pytest.raises(Conflict):
        tensors.put(kept(b"4444", unit=2))
