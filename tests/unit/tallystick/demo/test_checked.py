"""Does the checking part of the report say who lied, and fail where something does not hold?"""

from dataclasses import replace

import pytest

from contracts.terms.ids import StepNumber, UnitId
from market.bodies import SlashView
from tallystick.demo.cast import ACCUSER, LAZY
from tallystick.demo.verdicts import PeerStep
from tests.unit.tallystick.demo.factories import FAIR, LIAR, OUT, RATE, checked, slash, story
from verification.draws.odds import Exposed


@pytest.fixture(scope="module", autouse=True)
def _made() -> None:
    """Make the history that lends its docket before any test is timed."""
    checked()


def test_problems__all_as_it_should_be__are_none() -> None:
    assert list(checked().problems()) == []


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


def test_lines__say_who_said_what_how_far_it_was_and_where_the_stake_went() -> None:
    text = "\n".join(checked().lines())

    assert "30.0% extra compute" in text
    assert "provider-2: work of step 9, stage 0" in text
    assert (
        "first auditor provider-1: mismatch, gradient.norm relative_l2 0.5 of 0.0001 allowed"
        in text
    )
    assert "provider-8 is contradicted in the seal of step 12" in text
    assert "honest convicted    none" in text
    assert "restitution 0.001000 to the job, bounty 0.500000" in text
    assert "the 1 peer-steps that provider-2 did falsify" in text
    assert "53, one in each step from 8 to 60" in text
    assert ")^53" in text


def test_lines__every_peer_has_a_row_with_its_audits_rate_honesty_and_stake() -> None:
    (row,) = [line for line in checked().lines() if line.split()[:2] == [LAZY.name, "4"]]

    assert row.split() == [LAZY.name, "4", "3", "2", "1", "0", "0.310", "0.050", "5.000000", "1.25"]
