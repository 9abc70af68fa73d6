"""How far is what adversaries send from the truth, and do honest stages refuse what is no tensor?

Numbers of the real stage in fp32: relative L2 between a liar's gradient and the honest one, which
repeats byte for byte here, so whatever differs is the lie.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.terms.errors import Malformed, NotFinite
from contracts.terms.ids import StepNumber
from contracts.terms.items import ItemNumber
from tallystick.gym.registry import behaviour_of
from tests.numerics.pipeline import FIRST, ITEMS, Line, spec_of
from tests.support.fakes.memory_source import at_once

SECOND = StepNumber(2)
LATER = tuple(ItemNumber(item + len(ITEMS)) for item in ITEMS)
MIDDLE = 1
SPEC = spec_of(1, 2, 3)


@pytest.fixture(autouse=True)
def _gym(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_HOOKS", "tallystick.gym.hooks")


def line(text: str, *, place: int = MIDDLE) -> Line:
    """The stages of a job, one of which is an adversary's."""
    made = Line(SPEC)
    peer = made.firsts[place]
    honest: Any = peer.strategy

    def make(compute: Any) -> Any:
        honest.compute = compute
        return honest

    liar: Any = behaviour_of(text, SPEC.rules).arithmetic(make, at_once)
    liar.start(peer.state, FIRST)
    peer.strategy = liar
    return made


def gradients(text: str, *, place: int = MIDDLE) -> Tensor:
    """What the liar sends for its second round, at the weights of the first one."""
    stages = line(text, place=place)
    for step, items in (FIRST, ITEMS), (SECOND, LATER):
        for peer in stages.firsts:
            peer.strategy.start(peer.state, step)
        for item in items:
            stages.trip(item)
        shards = stages.firsts[place].shards(items)
    return torch.cat([torch.frombuffer(bytearray(data), dtype=torch.float32) for _, data in shards])


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


@pytest.mark.parametrize(("text", "error"), [("not_finite", NotFinite), ("oversized", Malformed)])
def test_spoilt__boundary_tensor__the_next_stage_refuses_it(
    text: str, error: type[Exception]
) -> None:
    stages = line(text, place=0).firsts
    stages[0].run(ITEMS[0], "forward")

    with pytest.raises(error):
        stages[MIDDLE].run(ITEMS[0], "forward")
