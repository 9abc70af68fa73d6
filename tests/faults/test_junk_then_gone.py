"""Junk is sent, and its sender is gone before it claims: who does its items again is not to blame.

The leaves of whoever does them again name the tensors that the neighbours really used
(docs/protocol.md 3.4). They are the junk, from which every replay differs.
"""

from pathlib import Path

import pytest

from tallystick.gym.registry import behaviour_of
from tests.support.dockets import audit_spec
from tests.support.swarm_job import MemorySwarm, make_papers

WORKERS = ("ann", "bob", "cem", "dan", "eve", "fay")


@pytest.mark.parametrize("liar", ["ann", pytest.param("bob", marks=pytest.mark.nightly)])
async def test_junk_then_gone__its_items_are_done_again__nobody_finds_a_mismatch(
    liar: str, tmp_path: Path
) -> None:
    papers = make_papers(
        *WORKERS,
        audit=audit_spec(deadline=4),
        stages=2,
        steps=3,
        units_per_step=18,
        redo_after=200,
        lease_grace=3_000,
    )
    swarm = MemorySwarm(papers, tmp_path)
    swarm.behaviours[liar] = behaviour_of("junk:from=2+vanishing:from=2", papers.spec.message.rules)

    await swarm.run()

    peer = swarm.session_of(liar).peer
    assert {each.round for each in swarm.claims() if each.peer == peer} == {1}
    assert swarm.lines("redo_differs"), "somebody has done again what was junk"
    assert "mismatch" not in {line["verdict"] for line in swarm.lines("audited")}
    assert not swarm.docket().convicts
