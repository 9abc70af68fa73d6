"""Is every adversary found by its name, and only where one may be played?"""

from functools import partial

import pytest

from contracts.terms.errors import WrongConfiguration
from contracts.terms.ids import ZERO_DIGEST, StepNumber
from tallystick.gym.lazy import Stale
from tallystick.gym.registry import MAKERS, behaviour_of, plans
from tests.support.fakes.counting import CountingStrategy
from tests.support.fakes.memory_source import at_once
from tests.support.history import make_spec
from training.worker.ports import HONEST, Wanted

RULES = make_spec().rules
STEP = StepNumber(2)


@pytest.fixture
def gym(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where adversaries play."""
    monkeypatch.setenv("TALLYSTICK_HOOKS", "tallystick.gym.hooks")


@pytest.mark.usefixtures("gym")
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_behaviour_of__every_name__is_made(name: str) -> None:
    assert behaviour_of(f"{name}:from=2", RULES) is not HONEST


@pytest.mark.parametrize("allowed", ["", "0"])
def test_plans__not_in_the_gym__is_refused(monkeypatch: pytest.MonkeyPatch, allowed: str) -> None:
    monkeypatch.delenv("TALLYSTICK_HOOKS", raising=False)
    if allowed:
        monkeypatch.setenv("TALLYSTICK_HOOKS", allowed)

    with pytest.raises(WrongConfiguration, match="TALLYSTICK_HOOKS="):
        plans("stale")


@pytest.mark.usefixtures("gym")
async def test_together__one_withholds_and_one_leaves__both_do() -> None:
    peer = behaviour_of("stale+withheld+leaving:from=2", RULES)

    assert not await peer.serves(Wanted("bytes", ZERO_DIGEST, True, STEP))
    assert peer.departure(STEP, "sealed") == "leave"
    assert isinstance(peer.arithmetic(partial(CountingStrategy, make_spec()), at_once), Stale)
