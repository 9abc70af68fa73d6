"""How far is what adversaries send from the truth, and do honest stages refuse what is no tensor?

Numbers of the real stage in fp32: relative L2 between a liar's gradient and the honest one, which
repeats byte for byte here, so whatever differs is the lie.
"""

from typing import cast

import pytest
import torch
from torch import Tensor

from contracts.terms.errors import Malformed, NotFinite
from contracts.terms.ids import StepNumber
from contracts.terms.messages import JobSpec
from tallystick.gym.registry import behaviour_of
from tests.numerics.pipeline import FIRST, UNITS, spec_of, stages_of, trip
from training.worker.ports import Behaviour
from training.worker.stage_compute import StageCompute

SECOND = StepNumber(2)
MIDDLE = 1
SPEC = spec_of(1, 2, 3)


@pytest.fixture(autouse=True)
def _gym(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_HOOKS", "tallystick.gym.hooks")


def peers(
    text: str = "", *, place: int = MIDDLE, spec: JobSpec = SPEC
) -> tuple[list[StageCompute], Behaviour]:
    """The stages of a job, one of which is an adversary's."""
    behaviour = behaviour_of(text, spec.rules)
    stages = stages_of(spec)
    stages[place] = cast(StageCompute, behaviour.arithmetic(stages[place]))
    return stages, behaviour


def gradients(text: str, *, place: int = MIDDLE) -> Tensor:
    """What the liar sends for its second step, at the weights of the first one."""
    stages, behaviour = peers(text, place=place)
    for step in (FIRST, SECOND):
        for stage in stages:
            stage.begin_step()
        for unit in UNITS:
            trip(stages, step, unit)
        parts = behaviour.parts(stages[place], step)
    return torch.cat(
        [torch.frombuffer(bytearray(piece.data), dtype=torch.float32) for piece in parts]
    )


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("withheld", 0.0, 0.0),
        ("scaled", 0.0099, 0.0101),
        ("flipped", 0.05, 0.5),
        ("turned", 1.9999, 2.0001),
        ("huge:from=2", 998.9, 999.1),
        ("coarse", 1e-3, 0.2),
        ("copied", 0.3, 3.0),
        ("stale", 0.1, 3.0),
        ("skipped", 0.3, 1.2),
        ("half:share=1/2", 0.1, 3.0),
        ("junk", 0.8, 3.0),
    ],
)
def test_gradient__of_an_adversary__is_as_far_from_the_truth_as_its_lie(
    text: str, least: float, most: float
) -> None:
    honest = gradients("")

    distance = float((gradients(text) - honest).norm() / honest.norm())

    assert least <= distance <= most


@pytest.mark.parametrize(
    ("text", "place"), [("copied", 0), ("stale", 2), ("skipped", 0), ("half", 2), ("junk", 0)]
)
def test_gradient__of_a_lazy_end_of_the_pipeline__is_far_from_the_truth(
    text: str, place: int
) -> None:
    honest = gradients("", place=place)

    assert float((gradients(text, place=place) - honest).norm() / honest.norm()) > 0.05


def test_coarse__unit_subtracted__nothing_is_left_of_it() -> None:
    stages, _ = peers("coarse", place=0, spec=spec_of(3))
    only = stages[0]
    only.forward(FIRST, UNITS[0], None)
    before = only.gradient()

    only.forward(FIRST, UNITS[1], None)
    only.subtract(FIRST, UNITS[1], None, None)

    one, two = (
        torch.frombuffer(bytearray(b"".join(p.data for p in parts)), dtype=torch.float32)
        for parts in (before, only.gradient())
    )
    assert float((one - two).norm() / one.norm()) < 1e-5


@pytest.mark.parametrize(("text", "error"), [("not_finite", NotFinite), ("oversized", Malformed)])
def test_spoilt__boundary_tensor__the_next_stage_refuses_it(
    text: str, error: type[Exception]
) -> None:
    stages, _ = peers(text, place=0)
    last = stages[MIDDLE]
    y = stages[0].forward(FIRST, UNITS[0], None).y
    assert y is not None

    with pytest.raises(error):
        last.forward(FIRST, UNITS[0], y.data)

    assert last.units == ()
