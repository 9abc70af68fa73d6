"""`job plan` and `job submit` where a warning costs money, and where a file was ordered before."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tallystick.cli import job_order
from tallystick.cli.main import EXIT_CODES, app
from tests.integration.bad_input.posting import world_of_a_person
from tests.integration.bad_input.servers import market_in_a_thread
from tests.support.market_world import World

ASK = 10**10


@dataclass
class Person:
    """Somebody who types, and whose market has `sellers` sellers for the one that is wanted."""

    folder: Path
    market: str = ""

    def job(self, verb: str, *options: str, typed: str = "") -> tuple[int, str, str]:
        """Exit code, standard output and standard error of a verb."""
        line = ["job", verb, str(self.folder / "job.yaml"), "--market", self.market, *options]
        done = CliRunner().invoke(
            app, line, input=typed, env={"TALLYSTICK_HOME": str(self.folder / "home")}
        )
        return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def person(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Person]:
    with market_in_a_thread(asyncio.run(_market(tmp_path, request.param))) as url:
        yield Person(tmp_path, url)


async def _market(folder: Path, sellers: int) -> World:
    world = await world_of_a_person(folder, num_coordinators=2)
    for number in range(sellers):
        expires_at = world.chain.now + 10**6
        await world.offer(f"seller {number}", ASK + number, expires_at=expires_at)
    return world


@pytest.mark.parametrize(
    ("person", "code"), [(0, EXIT_CODES["no_match"]), (1, 9), (2, 0)], indirect=["person"]
)
def test_plan__exit_code_says_whether_it_would_be_matched_and_whether_that_is_dear(
    person: Person, code: int
) -> None:
    assert person.job("plan")[0] == code


@pytest.mark.parametrize("person", [1], indirect=True)
def test_submit__costs_money_and_nobody_can_be_asked__is_refused_until_yes(person: Person) -> None:
    code, said, complained = person.job("submit", "-o", "json")
    error = json.loads(complained.splitlines()[-1])
    agreed, job, _ = person.job("submit", "--yes")

    assert (code, said, error["code"]) == (9, "", "unconfirmed")
    assert "you would pay your ceiling of 2000000 tokens" in error["message"]
    assert "--yes" in error["message"] and agreed == 0 and len(job.strip()) == 64


@pytest.mark.parametrize("person", [1], indirect=True)
def test_submit__costs_money__asks_and_posts_if_a_person_agrees(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_order, "is_terminal", lambda: True)

    no, nothing, asked = person.job("submit", typed="n\n")
    yes, job, _ = person.job("submit", typed="y\n")

    assert (no, nothing) == (9, "") and "Post it all the same?" in asked
    assert yes == 0 and len(job.strip()) == 64


@pytest.mark.parametrize("person", [2], indirect=True)
def test_submit__typed_again__finds_its_job_until_again(person: Person) -> None:
    first = person.job("submit")
    second = person.job("submit")
    once_more = person.job("submit", "--again")

    assert first[0] == 0 and (second[0], second[1]) == (0, first[1])
    assert "nothing is paid again" in second[2]
    assert once_more[0] == 0 and once_more[1] != first[1]
