"""When is a peer silent, and when is it gone?"""

from contracts.terms.ids import ZERO_DIGEST, StepNumber
from tallystick.gym.absent import Leaving, Vanishing, Withheld
from tallystick.gym.plan import Plan
from training.worker.ports import HONEST, Wanted


def wanted(step: int, *, is_sealed: bool) -> Wanted:
    return Wanted("tensor", ZERO_DIGEST, is_sealed, StepNumber(step))


async def test_withheld__sealed_steps__not_given_away_and_the_open_one_is() -> None:
    peer = Withheld(Plan(first=3))

    assert not await peer.serves(wanted(3, is_sealed=True))
    assert await peer.serves(wanted(3, is_sealed=False))
    assert await peer.serves(wanted(2, is_sealed=True))


async def test_honest__anything__is_given_away_and_nobody_goes() -> None:
    assert await HONEST.serves(wanted(1, is_sealed=True))
    assert HONEST.departure(StepNumber(1), "closed") == "stay"


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
