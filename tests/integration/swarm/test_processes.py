"""Coordinator and peer as two processes over gRPC, each killed at the worst moment.

The window is "the claim of a round is stored and its seal is not"; that the kill landed in it
is asserted from the logs. Weights, losses and pay are equal to the run without kills, byte for
byte.
"""

import asyncio
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.numerics.plain import greatest_difference, plain_losses
from tests.support.fakes.blobs import FolderBlobs
from tests.support.swarm_job import COORDINATOR
from tests.support.swarm_process import NUM_STEPS, process_papers
from tests.support.swarm_processes import ProcessSwarm
from training.config import train_config
from training.data.loading import UnitRows
from training.data.manifest import Manifest

WINDOW = 3


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The run without kills."""
    swarm = ProcessSwarm(tmp_path_factory.mktemp("undisturbed"))
    asyncio.run(swarm.run())
    assert swarm.kills == []
    return swarm.outcome()


def assert_in_window(swarm: ProcessSwarm, killed: str) -> None:
    """The failpoint's line says: claim stored; no seal of that step was stored before it."""
    (struck,) = [line for line in swarm.lines(killed) if line["event"] == "failpoint"]
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


@pytest.mark.parametrize(
    ("victim", "event"),
    [
        (COORDINATOR, "claim_stored"),
        pytest.param("ann", "claim_stored", marks=pytest.mark.nightly),
        pytest.param("ann", "bucket_stored", marks=pytest.mark.nightly),
    ],
)
async def test_processes__killed_between_claim_and_seal__equal_bytes(
    tmp_path: Path, undisturbed: dict[str, Any], victim: str, event: str
) -> None:
    swarm = ProcessSwarm(tmp_path, failpoints={victim: f"kill:{event}:{WINDOW}"})

    await swarm.run()

    assert_in_window(swarm, victim)
    assert swarm.outcome() == undisturbed


STAGED = ("ann", "bob", "cem", "dan")


async def test_processes__two_stages_and_a_peer_killed_at_its_claim__equals_the_plain_model(
    tmp_path: Path,
) -> None:
    swarm = ProcessSwarm(
        tmp_path,
        workers=STAGED,
        stages=2,
        first=f"kill:claim_stored:{WINDOW}",  # a given peer may have no item of that step
    )

    await swarm.run()

    (killed,) = swarm.kills
    assert_in_window(swarm, killed)
    outcome = swarm.outcome()
    losses = [loss / 1e6 for _, loss in sorted(outcome["losses"].items())]
    assert greatest_difference(losses, plain_curve(tmp_path)) <= 1e-4
    assert_equal_roots(swarm)
    assert outcome["ended"]


@pytest.mark.gpu
@pytest.mark.parametrize("on_gpu", [("ann", "cem"), STAGED])
async def test_processes__two_or_all_workers_on_a_gpu__equal_roots_and_near_the_plain_model(
    tmp_path: Path, on_gpu: tuple[str, ...]
) -> None:
    swarm = ProcessSwarm(tmp_path, workers=STAGED, stages=2, devices=dict.fromkeys(on_gpu, "cuda"))

    await swarm.run()

    outcome = swarm.outcome()
    losses = [loss / 1e6 for _, loss in sorted(outcome["losses"].items())]
    assert greatest_difference(losses, plain_curve(tmp_path)) <= 1e-4
    assert_equal_roots(swarm)
    assert outcome["ended"]


LOCAL = {
    "inner_steps": 4, "segments": 1, "rewarm_steps": 2, "outer_rate": 10**6, "outer_momentum": 0,
    "round_time": 60_000, "quorum": 1,
}  # fmt: skip
THREE = ("ann", "bob", "cem")


@pytest.mark.parametrize(
    "on_gpu",
    [(), *(pytest.param(each, marks=pytest.mark.gpu) for each in (("bob",), THREE))],
)
async def test_processes__local_steps__equal_roots_and_the_loss_falls(
    tmp_path: Path, on_gpu: tuple[str, ...]
) -> None:
    changed = {
        "strategy": "local", "local": LOCAL, "gradient_codec": "seeded4", "units_per_step": 3,
        "peers_per_stage": 3, "steps": NUM_STEPS,
    }  # fmt: skip
    swarm = ProcessSwarm(tmp_path, THREE, changed=changed, devices=dict.fromkeys(on_gpu, "cuda"))

    await swarm.run()

    outcome = swarm.outcome()
    assert len(outcome["weights"]) == 1
    assert_equal_roots(swarm)
    assert outcome["ended"] and outcome["losses"][NUM_STEPS] < outcome["losses"][1]


EIGHT = ("ann", "bob", "cem", "dan", "eve", "fay", "gil", "hal")


@pytest.mark.nightly
async def test_processes__half_of_a_stage_is_killed__it_is_filled_from_the_other_stage(
    tmp_path: Path,
) -> None:
    changed = {"steps": 8, "units_per_step": 16, "peers_per_stage": 4, "lease_grace": 2000}
    swarm = ProcessSwarm(tmp_path, EIGHT, stages=2, changed=changed, rebalance_every=2000)

    async def kill_half() -> None:
        while not swarm.lines(COORDINATOR, "seal_stored"):
            await asyncio.sleep(0.05)
        members = process_papers(tmp_path).members
        names = {member.session.peer.hex(): name for name, member in members.items()}
        joined = swarm.lines(COORDINATOR, "peer_joined")
        own = [names[line["peer"]] for line in joined if line["stage"] == 1]
        assert len(own) == 4
        for name in own[:2]:
            swarm.gone.add(name)
            swarm.send(name, signal.SIGKILL)

    await asyncio.gather(swarm.run(), kill_half())

    move = swarm.lines(COORDINATOR, "peer_moves")[0]  # measured on a busy machine, so maybe not all
    done = swarm.lines(COORDINATOR, "item_done")
    assert (move["stage"], move["target"]) == (0, 1)
    assert {line["stage"] for line in done if line["peer"] == move["peer"]} == {0, 1}
    losses = [line["loss"] / 1e6 for line in swarm.lines(COORDINATOR, "seal_stored")]
    assert greatest_difference(losses, plain_curve(tmp_path)) <= 1e-4


def plain_curve(folder: Path) -> list[float]:
    """Losses of the plain model on the job of a folder."""
    torch.set_num_threads(1)
    spec = process_papers(folder).spec.message
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch)
    blobs = FolderBlobs(folder / "blobs")
    manifest = Manifest.decoded(blobs.fetch(spec.data.manifest))
    return plain_losses(
        config, UnitRows(manifest, config.data, config.model.sequence_length, blobs)
    )


def assert_equal_roots(swarm: ProcessSwarm) -> None:
    """All peers of a stage had one state after each step."""
    roots: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for worker in swarm.workers:
        for line in swarm.lines(worker, "seal_applied"):
            roots[line["stage"], line["step"]].add(line["state_root"])
    assert len(roots) == swarm.stages * NUM_STEPS
    assert all(len(each) == 1 for each in roots.values())
