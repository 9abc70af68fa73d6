"""When is a peer silent, and when is it gone?"""

from contracts.terms.ids import StepNumber
from tallystick.gym.behaviours import Leaving, Vanishing
from tallystick.gym.plan import Plan


def test_vanishing__close_of_its_first_step__is_gone() -> None:
    peer = Vanishing(Plan(first=3))

    assert peer.departure(StepNumber(2), "closed") == "stay"
    assert peer.departure(StepNumber(3), "sealed") == "stay"
    assert peer.departure(StepNumber(3), "closed") == "vanish"


def test_leaving__seal_of_its_first_step__wants_to_go() -> None:
    peer = Leaving(Plan(first=3))

    assert peer.departure(StepNumber(3), "closed") == "stay"
    assert peer.departure(StepNumber(2), "sealed") == "stay"
    assert peer.departure(StepNumber(3), "sealed") == "leave"
