"""Coordinator, trainer and peer as three processes over gRPC, each killed at the worst moment.

The window is "the GradCommit of a step is stored and its seal is not"; that the kill landed in it
is asserted from the logs. Weights, losses and pay are equal to the run without kills, byte for
byte.
"""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.swarm_job import COORDINATOR, TRAINER
from tests.support.swarm_process import NUM_STEPS
from tests.support.swarm_processes import ProcessSwarm

WINDOW = 3


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The run without kills."""
    swarm = ProcessSwarm(tmp_path_factory.mktemp("undisturbed"))
    asyncio.run(swarm.run())
    assert swarm.kills == []
    return swarm.outcome()


def assert_in_window(swarm: ProcessSwarm, teller: str, killed: str) -> None:
    """The failpoint's line says: GradCommit stored; no seal of that step was stored before it."""
    (struck,) = [line for line in swarm.lines(teller) if line["event"] == "failpoint"]
    (seal,) = [line for line in swarm.lines(COORDINATOR, "seal_stored") if line["step"] == WINDOW]
    assert struck["step"] == WINDOW
    assert struck["at"] <= seal["at"]
    assert swarm.kills == [killed]


def test_processes__undisturbed__every_step_sealed_and_the_loss_falls(
    undisturbed: dict[str, Any],
) -> None:
    losses = undisturbed["losses"]

    assert sorted(losses) == list(range(1, NUM_STEPS + 1))
    assert losses[NUM_STEPS] < losses[1]
    assert undisturbed["ended"]
    assert sorted(undisturbed["validation"]) == [2, 4, 5]


@pytest.mark.parametrize("victim", [COORDINATOR, "ann"])
@pytest.mark.parametrize("event", ["grad_commit_stored", "chunk_stored"])
async def test_processes__killed_between_grad_commit_and_seal__equal_bytes(
    tmp_path: Path, undisturbed: dict[str, Any], victim: str, event: str
) -> None:
    swarm = ProcessSwarm(tmp_path, failpoints={victim: f"kill:{event}:{WINDOW}"})

    await swarm.run()

    assert_in_window(swarm, victim, victim)
    assert swarm.outcome() == undisturbed


@pytest.mark.parametrize("victim", [TRAINER, COORDINATOR])
async def test_processes__killed_from_outside_while_the_peer_stands_still__equal_bytes(
    tmp_path: Path, undisturbed: dict[str, Any], victim: str
) -> None:
    swarm = ProcessSwarm(tmp_path, failpoints={"ann": f"stop:grad_commit_stored:{WINDOW}"})

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(swarm.run())
        await swarm.wait_line("ann", "failpoint", WINDOW)
        swarm.send(victim, signal.SIGKILL)
        await swarm.processes[victim].wait()
        assert not swarm.told(COORDINATOR, "seal_stored", WINDOW)
        swarm.send("ann", signal.SIGCONT)
        await running

    assert_in_window(swarm, "ann", victim)
    assert swarm.outcome() == undisturbed


async def test_processes__peer_killed_after_the_seal_is_stored__applies_it_once(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    swarm = ProcessSwarm(tmp_path, failpoints={"ann": f"kill:seal_stored:{WINDOW}"})

    await swarm.run()

    assert swarm.kills == ["ann"]
    assert swarm.outcome() == undisturbed
    assert [line["step"] for line in swarm.lines("ann", "resumed")] == [0, WINDOW]
