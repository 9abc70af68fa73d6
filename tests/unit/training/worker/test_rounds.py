"""Whole rounds of real workers that count, under a coordinator that a test leads by hand."""

from pathlib import Path

from contracts.terms.items import ItemNumber
from tests.support.history import JobMaker, make_members
from tests.support.scripted_rounds import ScriptedCoordinator, ScriptedJob

SIX = tuple(map(ItemNumber, range(6)))


def job_of(folder: Path, *names: str, stages: int = 1) -> ScriptedJob:
    """A job of these members, of two buckets a stage."""
    return ScriptedJob(JobMaker(members=make_members(names, stages=stages)), folder)


async def one_round(coordinator: ScriptedCoordinator) -> None:
    """All issued items, dealt in turn, are claimed and reduced."""
    issued = coordinator.maker.record.cursor.issue(coordinator.maker.spec.batch.units_per_step)
    coordinator.deal_buckets()
    dealt = await coordinator.compute(*issued)
    for member in coordinator.maker.members:
        await coordinator.claim(member, dealt[member.session.peer])
    await coordinator.exchange()


async def test_rounds__two_members_of_one_stage__come_to_one_state(tmp_path: Path) -> None:
    job = job_of(tmp_path, "ann", "bob")

    async with job.running() as coordinator:
        roots = set()
        for _ in range(3):
            await one_round(coordinator)
            taken = await coordinator.seal()
            assert len({each.state_root for each in taken}) == 1
            roots |= {each.state_root for each in taken}

    assert len(roots) == 3
