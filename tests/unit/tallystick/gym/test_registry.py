"""Is every adversary found by its name, and only where one may be played?"""

import struct

import pytest

from contracts.terms.errors import WrongConfiguration
from contracts.terms.ids import ZERO_DIGEST, StepNumber, UnitId
from tallystick.gym.registry import MAKERS, behaviour_of, plans
from tests.support.history import make_spec, make_wallet
from training.fakes.counting import CountingCompute
from training.worker.ports import HONEST, Wanted

RULES = make_spec(make_wallet("poster"), make_wallet("coordinator")).rules
STEP = StepNumber(2)


@pytest.fixture
def gym(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where adversaries play."""
    monkeypatch.setenv("TALLYSTICK_HOOKS", "tallystick.gym.hooks")


def gradient_of(text: str) -> list[float]:
    compute = CountingCompute(2)
    compute.forward(STEP, UnitId(1), None)
    parts = behaviour_of(text, RULES).parts(compute, STEP)
    return [number for piece in parts for number in struct.unpack("<6f", piece.data)]


@pytest.mark.usefixtures("gym")
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_behaviour_of__every_name__is_made(name: str) -> None:
    assert behaviour_of(f"{name}:from=2", RULES) is not HONEST


def test_behaviour_of__nothing__is_honest_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TALLYSTICK_HOOKS", raising=False)

    assert behaviour_of("", RULES) is HONEST


@pytest.mark.parametrize("allowed", ["", "0"])
def test_plans__not_in_the_gym__is_refused(monkeypatch: pytest.MonkeyPatch, allowed: str) -> None:
    monkeypatch.delenv("TALLYSTICK_HOOKS", raising=False)
    if allowed:
        monkeypatch.setenv("TALLYSTICK_HOOKS", allowed)

    with pytest.raises(WrongConfiguration, match="TALLYSTICK_HOOKS="):
        plans("stale")


@pytest.mark.usefixtures("gym")
def test_plans__unknown_name__says_which_there_are() -> None:
    with pytest.raises(WrongConfiguration, match="stale"):
        plans("stale+lazybones")


@pytest.mark.usefixtures("gym")
def test_together__gradient__is_changed_by_both() -> None:
    honest = gradient_of("")

    assert gradient_of("huge:from=2+turned") == [-1000 * number for number in honest]


@pytest.mark.usefixtures("gym")
def test_huge__without_an_end__lasts_one_step() -> None:
    assert gradient_of("huge:from=1") == gradient_of("")
    assert gradient_of("huge:from=1,until=2") != gradient_of("")


@pytest.mark.usefixtures("gym")
async def test_together__one_withholds_and_one_leaves__both_do() -> None:
    peer = behaviour_of("stale+withheld+leaving:from=2", RULES)

    assert not await peer.serves(Wanted("part", ZERO_DIGEST, True, STEP))
    assert peer.departure(STEP, "sealed") == "leave"
    assert peer.arithmetic(CountingCompute(2)).units == ()
