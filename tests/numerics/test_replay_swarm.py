"""Peer-steps of a real swarm with the real stage, from what its peers have kept on disk.

Here units come in whatever order, are done again by others, and are subtracted: a replay in the
order of the leaves is near, no longer equal; outputs of single units are.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from contracts.terms.digest import digest
from contracts.terms.history import Leaves
from contracts.terms.ids import ZERO_DIGEST, ChunkIndex, Digest, StageIndex, StepNumber
from contracts.terms.messages import GradCommit, UnitLeaf
from contracts.terms.signatures import Signed
from tests.numerics.loop import synthetic_corpus
from tests.support.fakes.blobs import MemoryBlobs
from tests.support.stage_swarm import stage_papers, stage_swarm
from tests.support.swarm_job import COORDINATOR, MemorySwarm
from training.recipes import micro
from training.worker import keeping
from training.worker.keeping import Keeping
from training.worker.numeric_recipe import NumericRecipe, corpus_rows
from training.worker.ports import Numbers
from training.worker.retention import Retention
from training.worker.stage_replay import StageReplayer
from training.worker.states import States
from training.worker.store import Store
from training.worker.tensors import Tensors

CORPUS = synthetic_corpus()
SEED = digest("test", b"projections")
NEAR = 1e-5  # relative L2 of each parameter's gradient, claimed and replayed


def claims_of(swarm: MemorySwarm) -> Iterator[tuple[str, GradCommit, tuple[UnitLeaf, ...]]]:
    """Every peer-step, and whose it is."""
    items = swarm.items()
    leaves = {item.grad_commit: item.leaves for item in items if isinstance(item, Leaves)}
    names = {each.session.peer: name for name, each in swarm.papers.members.items()}
    for item in items:
        if isinstance(item, Signed) and isinstance(item.message, GradCommit):
            commit = item.message
            yield names[commit.peer], commit, leaves[commit.digest()]


class Disk:
    """What one peer has kept."""

    def __init__(self, folder: Path, stage: StageIndex) -> None:
        self._folder, self._store, self._tensors = folder, Store(folder), Tensors(folder, stage)

    def weights_before(self, step: StepNumber) -> Path:
        """File of the weights that a step was computed on."""
        return self._folder / "weights" / f"{step - 1:08d}.weights"

    def tensor(self, step: StepNumber, name: Digest) -> bytes | None:
        """Wire bytes of a boundary tensor, where a leaf names one."""
        return None if name == ZERO_DIGEST else self._tensors.get(step, name).data

    def parts(self, commit: GradCommit) -> list[bytes]:
        """All parts of a gradient."""
        found = [
            self._store.find_part(commit.digest(), ChunkIndex(chunk))
            for chunk in range(len(commit.parts))
        ]
        return [data for data in found if data is not None]


def tensor_of(numbers: Numbers) -> Tensor:
    return torch.frombuffer(numbers.data, dtype=torch.float32).view(numbers.shape)


def distances(found: dict[str, Numbers], claimed: dict[str, Numbers]) -> list[float]:
    pairs = [(tensor_of(found[name]), tensor_of(claimed[name])) for name in claimed]
    return [float((a - b).norm() / b.norm()) for a, b in pairs]


async def test_replay__every_peer_step_of_a_swarm_with_a_kill__is_near_what_was_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "retention_of", lambda _rules: Retention(most=16))
    monkeypatch.setattr(States, "_oldest_needed", lambda _self: StepNumber(0))
    monkeypatch.setattr(Keeping, "clear", lambda _self: None)
    papers = stage_papers(
        micro(), CORPUS.manifest.digest(), "ann", "bob", "cem", "dan", stages=2, steps=4
    )
    swarm = stage_swarm(tmp_path, papers, CORPUS)
    swarm.deadly = {(COORDINATOR, "grad_commit_stored", 2): "bob"}

    await swarm.run()

    assert swarm.restarts == 1
    spec, replayed = papers.spec.message, set[tuple[int, int]]()
    for name, commit, leaves in claims_of(swarm):
        disk, step = Disk(tmp_path / name, commit.stage), commit.step
        recipe = NumericRecipe(spec, corpus_rows(spec, MemoryBlobs(CORPUS.blobs)), commit.stage)
        replay = StageReplayer(recipe).begin(
            step, disk.weights_before(step), commit.state_root, SEED
        )
        for leaf in leaves:
            x = None if commit.stage == 0 else disk.tensor(step, leaf.x)
            found = replay.unit(leaf.unit, x, disk.tensor(step, leaf.dy))
            assert found.x == leaf.x and found.loss == leaf.loss
            assert (found.y.digest if found.y else ZERO_DIGEST) == leaf.y
            assert (found.dx.digest if found.dx else ZERO_DIGEST) == leaf.dx
        claimed = replay.parameters(disk.parts(commit))
        mine = replay.parameters([piece.data for piece in replay.gradient()])
        assert max(distances(mine, claimed)) <= NEAR
        replayed.add((step, commit.stage))
    assert replayed == {(step, stage) for step in range(1, 5) for stage in range(2)}
