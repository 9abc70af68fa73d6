"""Three stages of several peers compute what one plain model computes, step for step.

The plain model is `plain.py`, of which no line is ours. Swarms run over the in-memory transport,
with real messages, signatures and journals; one torch thread a peer.
"""

import asyncio
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.numerics.loop import rows_of, synthetic_corpus
from tests.numerics.plain import greatest_difference, plain_losses
from tests.support.stage_swarm import stage_papers, stage_swarm
from tests.support.swarm_job import COORDINATOR, MemorySwarm
from training.recipes import micro

STAGES, STEPS = 3, 3
TOLERANCE = 1e-5  # relative, of a step's loss
CORPUS = synthetic_corpus()
_MICRO = micro(num_steps=STEPS)
CONFIG = replace(
    _MICRO,
    model=replace(_MICRO.model, num_layers=STAGES),
    data=replace(_MICRO.data, units_per_step=8, rows_per_unit=8),
)
GOLDEN = [5.836350, 5.436197, 4.946681]
"""Losses of this configuration on the corpus that `synthetic_corpus` generates."""


def swarm_of(folder: Path, peers_per_stage: int) -> MemorySwarm:
    names = [f"p{number}" for number in range(STAGES * peers_per_stage)]
    manifest = CORPUS.manifest.digest()
    papers = stage_papers(CONFIG, manifest, *names, stages=STAGES, chunks=2)
    return stage_swarm(folder, papers, CORPUS)


def finished(swarm: MemorySwarm) -> MemorySwarm:
    torch.set_num_threads(1)
    asyncio.run(swarm.run())
    return swarm


def losses_of(swarm: MemorySwarm) -> list[float]:
    """Losses of all steps, nats per token."""
    return [loss / 1e6 for _, loss in sorted(swarm.losses().items())]


def roots_of(swarm: MemorySwarm) -> dict[tuple[int, int], set[bytes]]:
    """State roots that the peers of a stage had after a step, by (stage, step)."""
    roots: defaultdict[tuple[int, int], set[bytes]] = defaultdict(set)
    for line in swarm.lines("seal_applied"):
        if "state_root" in line:  # a peer's own line, not the coordinator's
            roots[line["stage"], line["step"]].add(line["state_root"])
    return roots


@pytest.fixture(scope="module", params=[1, 2, 4, 8])
def swarm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MemorySwarm:
    """A job of three stages of 1, 2, 4 and 8 peers, from its first to its last seal."""
    return finished(swarm_of(tmp_path_factory.mktemp("swarm"), request.param))


@pytest.fixture(scope="module")
def plain() -> list[float]:
    """The curve of the plain model."""
    torch.set_num_threads(1)
    return plain_losses(CONFIG, rows_of(CONFIG, CORPUS))


def test_swarm__three_stages__equals_the_plain_model_step_for_step(
    swarm: MemorySwarm, plain: list[float]
) -> None:
    assert greatest_difference(losses_of(swarm), plain) <= TOLERANCE


def test_swarm__three_stages__has_the_golden_losses(swarm: MemorySwarm) -> None:
    assert greatest_difference(losses_of(swarm), GOLDEN) <= TOLERANCE


def test_swarm__peers_of_a_stage__have_equal_states_after_every_step(swarm: MemorySwarm) -> None:
    roots = roots_of(swarm)

    assert sorted(roots) == [
        (stage, step) for stage in range(STAGES) for step in range(1, STEPS + 1)
    ]
    assert all(len(each) == 1 for each in roots.values())
    num_peers = len(swarm.papers.members)
    assert len(swarm.lines("seal_applied", of=COORDINATOR)) == num_peers * STEPS


def test_swarm__resumed_between_two_steps__equals_the_uninterrupted_one_in_bytes(
    tmp_path: Path,
) -> None:
    # One unit at a time: sums of fp32 depend on their order, and nothing else of this is random.
    whole, resumed = swarm_of(tmp_path / "whole", 1), swarm_of(tmp_path / "resumed", 1)
    whole.max_units = resumed.max_units = 1
    resumed.deadly = {(name, "seal_applied", 2): name for name in ("p0", "p1", "p2")} | {
        (COORDINATOR, "seal_stored", 2): COORDINATOR
    }

    finished(whole)
    finished(resumed)

    assert resumed.restarts == 4
    assert roots_of(resumed) == roots_of(whole)
    assert resumed.losses() == whole.losses()
