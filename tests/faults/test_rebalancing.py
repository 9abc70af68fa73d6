"""A group that lost half of its peers is filled from another one, and nothing else changes."""

from pathlib import Path

from tests.support.plain_swarm import plain_run
from tests.support.swarm_job import COORDINATOR, MemorySwarm, make_papers, patient_rules

EIGHT = ("ann", "bob", "cem", "dan", "eve", "fay", "gil", "hal")
STEPS = 6


async def test_rebalancing__half_of_a_group_is_gone__one_of_the_other_moves_and_works_there(
    tmp_path: Path,
) -> None:
    papers = make_papers(
        *EIGHT,
        stages=2,
        steps=STEPS,
        units_per_step=16,
        checkpoint_every=2,
        rules=patient_rules(lease_grace=3000),
    )
    swarm = MemorySwarm(papers, tmp_path, in_order=True, rebalance_every=1)
    swarm.deadly = {(COORDINATOR, "seal_stored", 1): "bob", (COORDINATOR, "seal_applied", 1): "dan"}
    swarm.for_good = frozenset({"bob", "dan"})

    await swarm.run()

    (move,) = swarm.lines("peer_moves", of=COORDINATOR)
    assert (move["stage"], move["target"]) == (0, 1)
    groups = {line["peer"]: line["stage"] for line in swarm.lines("peer_joined", of=COORDINATOR)}
    assert groups[move["peer"]] == 1
    done = [
        line["stage"]
        for line in swarm.lines("item_done", of=COORDINATOR)
        if line["peer"] == move["peer"]
    ]
    assert done == sorted(done)
    assert {*done} == {0, 1}
    states = plain_run(papers.spec.message).states
    roots = {
        swarm.session_of(name).peer: line["state_root"]
        for name, line in swarm.log
        if line["event"] == "finished" and name != COORDINATOR
    }
    assert {*roots.values()} == {*states}
    assert roots[move["peer"]] == states[1]
