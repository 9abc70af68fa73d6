"""The timeline of a whole job that was killed and went on, from the lines that it told."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from tallystick.cli.main import app
from tests.support.swarm_job import COORDINATOR, MemorySwarm, make_papers
from tests.support.trace_format import check_format
from training.telling import JsonLines, telling_about

WORKERS = ("ann", "bob", "cem", "dan")
STEPS = 2


class Logged(MemorySwarm):
    """Each party has a log file, as its process would."""

    def _tell(self, name: str) -> Callable[..., None]:
        heard = super()._tell(name)
        process = COORDINATOR if name == COORDINATOR else "peer"
        about: dict[str, object] = {"job": self.papers.job}
        if process == "peer":
            about |= {"peer": self.papers.members[name].session.peer}

        def tell(event: str, **fields: Any) -> None:
            with (self.folder / f"{name}.log").open("a") as stream:
                telling_about(JsonLines(stream, process=process), **about)(event, **fields)
            heard(event, **fields)

        return tell


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The events that the command wrote."""
    folder = tmp_path_factory.mktemp("job")
    swarm = Logged(make_papers(*WORKERS, stages=2, steps=STEPS), folder)
    swarm.deadly = {(COORDINATOR, "claim_stored", 1): "ann"}
    asyncio.run(swarm.run(timeout=100))
    assert swarm.restarts == 1
    file = folder / "trace.json"
    said = CliRunner().invoke(app, ["job", "timeline", str(folder), "--to", str(file)])
    assert said.exit_code == 0, said.output
    found: list[dict[str, Any]] = json.loads(file.read_text())["traceEvents"]
    return found


def named(events: list[dict[str, Any]], kind: str) -> Counter[str]:
    """How often each name occurs among events of one phase letter."""
    return Counter(event["name"] for event in events if event["ph"] == kind)


def test_timeline__of_a_job__keeps_the_format(events: list[dict[str, Any]]) -> None:
    check_format(events)


def test_timeline__of_a_job__a_track_a_party(events: list[dict[str, Any]]) -> None:
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]

    assert names[0] == "coordinator"
    assert [name.rsplit(" ", 1)[0] for name in names[1:]] == [
        *["stage 0 peer"] * 2,
        *["stage 1 peer"] * 2,
    ]


def test_timeline__of_a_job__says_where_the_time_went(events: list[dict[str, Any]]) -> None:
    slices = named(events, "X")

    assert {"forward", "backward", "commit", "exchange", "reduce", "apply", "work"} <= slices.keys()
    assert slices["apply"] >= STEPS * len(WORKERS)
    items = {event["id"] for event in events if event["ph"] == "s"}
    assert len(items) == 6 * STEPS  # every item flows


def test_timeline__of_a_job__shows_seals_and_the_loss_of_a_peer(
    events: list[dict[str, Any]],
) -> None:
    instants = named([e for e in events if e.get("s") == "g"], "i")

    assert instants["seal_stored"] == STEPS
    assert instants["peer_lost"] >= 1
