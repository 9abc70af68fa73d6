"""Adversaries over real processes and the real stage: what is sealed, and who is paid.

Nothing checks here: lies that can be computed with are sealed and paid, which is the damage that
checking is measured against; what nobody can compute with is harmless by itself.
"""

from pathlib import Path

import pytest

from tests.support.swarm_process import NUM_STEPS, process_papers
from tests.support.swarm_processes import ProcessSwarm

WORKERS = ("ann", "bob", "cem", "dan")


async def played(folder: Path, text: str) -> ProcessSwarm:
    """A job of two stages, to its end, in which `bob` is an adversary."""
    swarm = ProcessSwarm(folder, WORKERS, stages=2, behaviours={"bob": text})
    await swarm.run(timeout=220.0)
    return swarm


def earned(swarm: ProcessSwarm, name: str) -> int:
    """FLOPs that a worker is paid for."""
    record = swarm.history().record
    assert record is not None
    return record.pay.resolved.get(process_papers(swarm.folder).members[name].session.peer, 0)


def assert_all_sealed(swarm: ProcessSwarm) -> None:
    outcome = swarm.outcome()
    assert outcome["ended"]
    assert sorted(outcome["losses"]) == list(range(1, NUM_STEPS + 1))
    assert len(outcome["weights"]) == 2, "one for each stage"


# A run takes half a minute to two; tests/e2e/test_checked.py has a liar in every run.
MANY = pytest.mark.nightly


@MANY
@pytest.mark.parametrize("text", ["coarse", "stale:from=2", "skipped", "turned"])
async def test_processes__lie_that_can_be_computed_with__is_paid(tmp_path: Path, text: str) -> None:
    swarm = await played(tmp_path, text)

    assert_all_sealed(swarm)
    assert earned(swarm, "bob") > 0


@MANY
@pytest.mark.timeout(240)  # what is refused is tried until two complain, then caps are lifted
@pytest.mark.parametrize("text", ["not_finite", "oversized", "not_finite_parts"])
async def test_processes__what_nobody_can_compute_with__stops_nothing_and_earns_nothing(
    tmp_path: Path, text: str
) -> None:
    swarm = await played(tmp_path, text)

    assert_all_sealed(swarm)
    assert earned(swarm, "bob") == 0
