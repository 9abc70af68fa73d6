"""A peer whose disk fills after it has done units, and before it has committed to them."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.errors import Unavailable
from contracts.terms.messages import StepClose
from tests.faults.test_memory_swarm import STEPS, swarm_of
from tests.faults.test_silence import units_averaged
from tests.support.swarm_job import COORDINATOR, Line
from training.worker import store, tensors

WORKERS = ("ann", "bob", "cem", "dan")
FULL = "bob"
UNITS = 8
FIRST = 1  # step, in which everybody has units


class Disk:
    """Refuses what is written under one folder once it is full."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.is_full = folder, False

    def limited(self, write: Callable[..., None]) -> Callable[..., None]:
        """As `write`, where there is room."""

        def limited(path: Path, *data: Any, **options: Any) -> None:
            if self.is_full and path.is_relative_to(self._folder):
                raise Unavailable(f"cannot write {path}: {errno.errorcode[errno.ENOSPC]}")
            write(path, *data, **options)

        return limited


async def test_swarm__disk_fills_before_the_grad_commit__its_units_are_redone_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = swarm_of(tmp_path, *WORKERS, stages=2, units_per_step=UNITS)
    disk = Disk(tmp_path / FULL)
    for module in (store, tensors):
        monkeypatch.setattr(module, "write_whole", disk.limited(module.write_whole))

    def watch(name: str, line: Line) -> None:
        closed = (COORDINATOR, "step_closed", FIRST)
        if (name, line["event"], line.get("step")) == closed:
            disk.is_full = True

    swarm.watch = watch
    swarm.leaving = {(COORDINATOR, "step_closed", FIRST): FULL}  # its agent sees it, too

    await swarm.run(timeout=15)

    peer = swarm.session_of(FULL).peer
    given = [{each.peer for each in close.assignments} for close in swarm.messages(StepClose)[:2]]
    assert [peer in each for each in given] == [True, False]
    assert peer not in {commit.peer for commit in swarm.commits()}
    assert swarm.lines("left", of=FULL) and not swarm.refused
    assert units_averaged(swarm) == 2 * UNITS * STEPS, "no unit is lost"
