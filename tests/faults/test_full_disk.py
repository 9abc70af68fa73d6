"""A peer whose disk has room for the tensors of its items, and none for the shards of its claim."""

import errno
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.errors import Unavailable
from tests.faults.test_memory_swarm import STEPS, UNITS, swarm_of
from tests.faults.test_silence import items_averaged
from tests.support.swarm_job import COORDINATOR
from training.worker import store

FULL = "bob"


async def test_swarm__disk_fills_before_the_claim__its_items_are_redone_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store.write_whole

    def limited(path: Path, data: Any) -> None:
        if path.is_relative_to(tmp_path / FULL / "shards"):
            raise Unavailable(f"cannot write {path}: {errno.errorcode[errno.ENOSPC]}")
        write(path, data)

    monkeypatch.setattr(store, "write_whole", limited)
    swarm = swarm_of(tmp_path, "ann", FULL, "cem", "dan", stages=2)
    swarm.together = True  # else it may have no items
    swarm.leaving = {(COORDINATOR, "items_lost", 1): FULL}  # its agent sees it, too

    await swarm.run(timeout=15)  # far less than the deadline of a claim

    peer = swarm.session_of(FULL).peer
    assert {line["peer"] for line in swarm.lines("items_lost", of=COORDINATOR)} == {peer}
    assert swarm.lines("not_bound", of=FULL) and swarm.lines("left", of=FULL)
    assert peer not in {claim.peer for claim in swarm.claims()}
    assert items_averaged(swarm) == 2 * UNITS * STEPS, "no item is lost"
