"""Data that an audit needs and its holders withhold: who is harmed by it, and who is not?"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from contracts.governance.pay import PayLeaf
from contracts.terms.beacons import Beacon
from contracts.terms.ids import ZERO_DIGEST, PeerId, StepNumber
from contracts.terms.messages import Notice
from contracts.terms.work import Findings, WorkClaim
from tallystick.gym.registry import behaviour_of
from tests.support.checked_swarm import MadeUpBeacons
from tests.support.dockets import audit_spec
from tests.support.simulated_time import loop_seconds
from tests.support.swarm_job import COORDINATOR, MemorySwarm, make_papers
from training.worker import hosting
from training.worker.patience import Patience
from training.worker.ports import Behaviour, Wanted
from verification.docket import Docket

STEPS = 10
HOURS = 7200.0  # seconds, simulated: of a job whose data is waited for as long as it really is
WORKERS = ("ann", "bob", "cem", "dan", "eva", "fay")


def two_stages(
    tmp_path: Path, *withholders: str, lie: str = "withheld", **rules: Any
) -> MemorySwarm:
    """Three peers a stage, everything drawn; these give away nothing of sealed steps."""
    papers = make_papers(
        *WORKERS,
        audit=audit_spec(deadline=4),
        stages=2,
        steps=2,
        units_per_step=18,
        lease_grace=3_000,  # validation needs tensors of a sealed state, and is not waited for
        **rules,
    )
    swarm = MemorySwarm(papers, tmp_path, in_order=True)  # ann and bob are in different stages
    for name in withholders:
        swarm.behaviours[name] = behaviour_of(f"{lie}:from=1", papers.spec.message.rules)
    return swarm


def wait_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Auditors take the loop's clock to say how long a holder has let them wait."""
    monkeypatch.setattr(hosting, "Patience", lambda: Patience(loop_seconds))


def docket_of(swarm: MemorySwarm) -> Docket:
    """At the end of a job, of which nothing is open."""
    assert swarm.seals()[-1].last and swarm.docket().is_clear
    return swarm.docket()


def pay_of(swarm: MemorySwarm) -> dict[str, PayLeaf]:
    """What everybody has at the end, by name."""
    newest = swarm.history().newest
    assert newest is not None
    names = {member.wallet.account: name for name, member in swarm.papers.members.items()}
    return {names[leaf.account]: leaf for leaf in newest.pay if leaf.account in names}


def noticed(swarm: MemorySwarm) -> set[PeerId]:
    return {each.peer for each in swarm.messages(Notice) if each.what == "missing_data"}


def missed(swarm: MemorySwarm) -> set[PeerId]:
    """Auditors whose reports did not come in time."""
    return {each.peer for each in swarm.messages(Notice) if each.what == "missed_report"}


def names_of(swarm: MemorySwarm, peers: set[PeerId]) -> set[str]:
    return {name for name, each in swarm.papers.members.items() if each.session.peer in peers}


@pytest.mark.simulated_time
@pytest.mark.parametrize(
    ("withholders", "lie"),
    [
        pytest.param(("ann",), "withheld", marks=pytest.mark.nightly),
        (("ann", "bob"), "withheld"),
        pytest.param(("ann", "bob"), "stalling", marks=pytest.mark.nightly),
    ],
)
async def test_missing_data__withheld__costs_their_pay_if_the_neighbour_with_the_copy_does_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, withholders: tuple[str, ...], lie: str
) -> None:
    wait_by_the_loop(monkeypatch)
    swarm = two_stages(tmp_path, *withholders, lie=lie)

    await swarm.run(timeout=HOURS)

    assert swarm.stage_of("ann") != swarm.stage_of("bob")
    assert docket_of(swarm).convicts == frozenset()
    losers = set(withholders) if len(withholders) > 1 else set()  # alone: others have copies
    assert names_of(swarm, noticed(swarm)) == losers
    assert not missed(swarm)
    for name, leaf in pay_of(swarm).items():
        assert leaf.vested < leaf.earned if name in losers else leaf.vested == leaf.earned > 0


@pytest.mark.simulated_time
async def test_missing_data__a_liar_never_answers_its_auditors__others_do_and_it_is_convicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_by_the_loop(monkeypatch)
    swarm = two_stages(tmp_path)
    lie = behaviour_of("turned:from=1+stalling:from=1", swarm.papers.spec.message.rules)
    swarm.behaviours["ann"] = lie

    await swarm.run(timeout=HOURS)

    assert names_of(swarm, set(docket_of(swarm).convicts)) == {"ann"}
    assert not noticed(swarm)
    assert names_of(swarm, missed(swarm)) <= {"ann"}  # a suspended one owes what it owed
    pay = pay_of(swarm)
    assert all(pay[name].vested == pay[name].earned > 0 for name in WORKERS[1:])


class Reluctant(Behaviour):
    """Gives sealed work away only after the coordinator has asked somebody in vain."""

    def __init__(self, swarm: MemorySwarm) -> None:
        self._swarm = swarm

    async def serves(self, wanted: Wanted) -> bool:
        """See `Behaviour.serves`."""
        return not wanted.is_sealed or bool(self._swarm.lines("not_found", of=COORDINATOR))


async def test_missing_data__holders_give_it_to_the_coordinator__it_is_handed_on_and_all_are_paid(
    tmp_path: Path,
) -> None:
    swarm = two_stages(tmp_path)
    swarm.behaviours = {name: Reluctant(swarm) for name in WORKERS}

    await swarm.run()

    assert swarm.lines("data_found", of=COORDINATOR)
    assert not docket_of(swarm).convicts and not noticed(swarm)
    assert {line["verdict"] for line in swarm.lines("audited")} == {"match"}
    assert all(leaf.vested == leaf.earned for leaf in pay_of(swarm).values())


@dataclass
class FirstStepDrawn(MadeUpBeacons):
    """Step 1 has the beacon that draws everything."""

    async def beacon_of(self, step: StepNumber) -> Beacon | None:
        """See `Beacons.beacon_of`."""
        beacon = await super().beacon_of(step)
        return replace(beacon, value=ZERO_DIGEST) if beacon and step == 1 else beacon


@dataclass
class Waiting(Behaviour):
    """Audits only when the last step with work is sealed."""

    swarm: MemorySwarm

    async def report(
        self, about: WorkClaim, agreeing: Findings, replay: Callable[[], Awaitable[Findings]]
    ) -> Findings:
        """See `Behaviour.report`."""
        while all(each.step < STEPS for each in self.swarm.feed.reports[-1:]):
            await asyncio.sleep(0.001)
        return await replay()


@pytest.mark.nightly
async def test_kept_work__one_step_was_drawn__only_that_stays_and_its_audits_find_all(
    tmp_path: Path,
) -> None:
    workers = ("ann", "bob", "cem", "dan", "eve", "fay")  # with two owners a stage all is drawn
    audit = audit_spec(floor=1, deadline=STEPS)
    papers = make_papers(
        *workers, audit=audit, stages=2, steps=STEPS, units_per_step=9, min_stake=10**15
    )
    swarm = MemorySwarm(papers, tmp_path, beacons=FirstStepDrawn())
    swarm.behaviours = {name: Waiting(swarm) for name in workers}

    await swarm.run()

    docket_of(swarm)
    assert {line["verdict"] for line in swarm.lines("audited")} == {"match"}
    first = [each for each in swarm.claims() if each.round == 1]
    assert sum(each.round == 1 for each in swarm.claims("report")) == len(first) > 1
    for name in workers:
        [line] = [each for each in swarm.lines("work_kept", of=name) if each["step"] == STEPS]
        assert line["steps"] < STEPS - 2  # also those without a beacon


@pytest.mark.nightly
async def test_missing_data__a_holder_is_lost_for_good__nobody_is_blamed_before_it_is_gone(
    tmp_path: Path,
) -> None:
    swarm = two_stages(tmp_path, "ann")
    swarm.deadly = {("bob", "seal_applied", 2): "bob"}
    swarm.for_good = frozenset({"bob"})

    await swarm.run()

    assert docket_of(swarm).convicts == frozenset()
    assert "ann" in names_of(swarm, noticed(swarm)) <= {"ann", "bob"}
    peer = swarm.papers.members["bob"].session.peer
    told = swarm.messages(Notice)
    gone = next(each.number for each in told if (each.what, each.peer) == ("leave", peer))
    assert all(each.number > gone for each in told if each.what == "missing_data")
    pay = pay_of(swarm)
    assert all(pay[name].vested == pay[name].earned > 0 for name in WORKERS[2:])
