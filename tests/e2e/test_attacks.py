"""Attacks on a whole market, played by the script that makes the table of all of them.

One on work, one on a sum, one on an audit: each liar is convicted and earns less than an honest one
in its place, nobody else is blamed, and with checking off the first two move the model.
"""

from pathlib import Path

import pytest

from tests.benchmarks.attacks import named
from tests.benchmarks.attacks_theatre import theatre

CHOSEN = ("scaled", "left_out", "friend")


@pytest.mark.chaos  # minutes; single cheats are in every run, in one event loop
@pytest.mark.timeout(900)
async def test_attacks__on_work_on_a_sum_and_on_an_audit__end_as_they_have_to(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    async with theatre(tmp_path, tell=told.append) as opened:
        results = [await opened.perform(attack) for attack in named(CHOSEN)]

    assert [result.unmet for result in results] == [(), (), ()], "\n".join(told)
    assert [result.outcome for result in results] == ["convicted"] * 3
