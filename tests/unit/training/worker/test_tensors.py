"""Boundary tensors on disk: no second value under a name, not even when its step is sealed."""

from pathlib import Path

import pytest

from contracts.terms.digest import tensor_digest
from contracts.terms.errors import Conflict, NotFound
from contracts.terms.ids import JobId, StageIndex, StepNumber, UnitId
from contracts.terms.messages import TensorHeader
from tests.support.history import make_session
from training.worker.tensors import Kept, Tensors

STAGE, STEP = StageIndex(0), StepNumber(5)
ANN = make_session("ann")


def kept(data: bytes, *, step: int = STEP, attempt: int = 1) -> Kept:
    """A tensor of ours."""
    header = TensorHeader(
        job=JobId(bytes(32)),
        step=StepNumber(step),
        stage=STAGE,
        unit=UnitId(0),
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


@pytest.mark.parametrize("restarted", [False, True])
def test_tensors__step_is_sealed__its_bytes_are_gone(tmp_path: Path, restarted: bool) -> None:
    tensors = Tensors(tmp_path, STAGE)
    tensors.put(ONE)
    tensors.drop(STEP)
    if restarted:
        tensors = Tensors(tmp_path, STAGE)
    digest = ONE.header.message.tensor_digest

    assert not tensors.has(STEP, digest)
    with pytest.raises(NotFound):
        tensors.get(STEP, digest)
    tensors.put(ONE)
    assert tensors.get(STEP, digest) == ONE
