"""Does the checking part of the report say who lied, and fail where something does not hold?"""

from dataclasses import replace
from typing import Any

import pytest

from market.bodies.slashes import SlashView
from tallystick.demo.cast import ACCUSER, LAZY
from tallystick.demo.checked import Checked
from tests.unit.tallystick.demo.factories import (
    FAIR,
    LIAR,
    OUT,
    SLANDERER,
    checked,
    heard_of,
    slash,
    story,
)


@pytest.fixture(scope="module", autouse=True)
def _made() -> None:
    """Make the history that lends its docket before any test is timed."""
    checked()


def with_verdicts(**changed: Any) -> Checked:
    return replace(checked(), verdicts=replace(checked().verdicts, **changed))


def test_problems__verdict_is_missing_or_about_somebody_honest__is_the_one_problem() -> None:
    stories = checked().verdicts.stories
    false = story(FAIR, OUT, ("accused", FAIR), ("convicted", FAIR))

    for told, words in (
        (stories[1:], LAZY.name),
        (stories[:1], ACCUSER.name),
        ((*stories, false), "provider-1 is honest"),
    ):
        (problem,) = with_verdicts(heard=heard_of(*told)).problems()
        assert words in problem


def test_problems__what_is_contradicted_was_true_of_the_liar__is_none() -> None:
    convicted, _ = checked().verdicts.stories
    accusation = story(LIAR, SLANDERER, ("accused", LIAR), ("contradicted", SLANDERER))

    assert not [*with_verdicts(heard=heard_of(convicted, accusation)).problems()]


@pytest.mark.parametrize("slashes", [(), (slash("dropped"),)])
def test_problems__no_stake_was_slashed__is_one(slashes: tuple[SlashView, ...]) -> None:
    (problem,) = replace(checked(), slashes=slashes).problems()

    assert "slashed" in problem
