"""Does the checking part of the report say who lied, and fail where something does not hold?"""

from dataclasses import replace

import pytest

from contracts.terms.ids import StepNumber, UnitId
from market.bodies.settlement import SlashView
from tallystick.demo.cast import ACCUSER, LAZY
from tallystick.demo.verdicts import PeerStep
from tests.unit.tallystick.demo.factories import FAIR, LIAR, OUT, RATE, checked, slash, story
from verification.draws.odds import Exposed


@pytest.fixture(scope="module", autouse=True)
def _made() -> None:
    """Make the history that lends its docket before any test is timed."""
    checked()


def test_problems__lazy_one_is_not_convicted__is_one() -> None:
    verdicts = checked().verdicts
    verdicts = replace(verdicts, stories=verdicts.stories[1:])

    (problem,) = replace(checked(), verdicts=verdicts).problems()

    assert LAZY.name in problem


def test_problems__accuser_is_not_contradicted__is_one() -> None:
    verdicts = replace(checked().verdicts, stories=checked().verdicts.stories[:1])

    (problem,) = replace(checked(), verdicts=verdicts).problems()

    assert ACCUSER.name in problem


def test_problems__somebody_honest_is_convicted__is_named() -> None:
    more = story(FAIR, OUT, ("accused", FAIR), ("convicted", FAIR))
    verdicts = replace(checked().verdicts, stories=(*checked().verdicts.stories, more))

    (problem,) = replace(checked(), verdicts=verdicts).problems()

    assert "provider-1 is honest" in problem


def test_problems__rarely_drawn__chance_is_too_large() -> None:
    steps = {LIAR: [PeerStep(StepNumber(1), (UnitId(0),), Exposed(RATE / 10, None))]}
    verdicts = replace(checked().verdicts, peer_steps=steps)

    (problem,) = replace(checked(), verdicts=verdicts).problems()

    assert "P(undetected) of 53" in problem


@pytest.mark.parametrize("slashes", [(), (slash("dropped"),)])
def test_problems__no_stake_was_slashed__is_one(slashes: tuple[SlashView, ...]) -> None:
    (problem,) = replace(checked(), slashes=slashes).problems()

    assert "slashed" in problem
