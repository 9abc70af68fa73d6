"""Everybody dies once at each line of an audit's life: no verdict is lost, and dying costs nothing.

A death is scripted as (round of an audit, who tells a line after it, event) -> who dies, so that it
lands in its window or the test fails. Who audits whom follows from the beacon: roles are filled in
when the first audit of that round is told.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from contracts.governance.pay import PayLeaf
from contracts.governance.rounds import flops_of as flops_of_claim
from contracts.governance.vesting import forfeited_by
from contracts.terms.amounts import pay_for
from contracts.terms.errors import Conflict
from contracts.terms.ids import Digest, PeerId
from contracts.terms.messages import MILLION, Notice
from contracts.terms.work import Findings, WorkClaim
from tallystick.gym.registry import behaviour_of
from tests.support.dockets import audit_spec
from tests.support.swarm_job import COORDINATOR, Line, MemorySwarm, make_papers
from training.worker.ports import Behaviour
from verification.docket import Docket
from verification.draws.cases import Ruling

STEPS = 3
THREE = ("ann", "bob", "cem")
FOUR = (*THREE, "dan")
LIAR = "ann"

AUDITOR, SECOND, AUDITED, ANOTHER = "auditor", "second auditor", "audited", "another outside"
ANYBODY = (AUDITOR, AUDITED, COORDINATOR)
OF_AN_AUDITOR = ("audited", "audit_handed_in", "seal_stored", "seal_applied")
OF_THE_COORDINATOR = ("report_taken", "seal_stored", "beacon_taken")
LINES = [
    *((AUDITOR, event) for event in OF_AN_AUDITOR),
    *((COORDINATOR, event) for event in OF_THE_COORDINATOR),
]
Where = tuple[str, str, str]  # who tells, what, who dies


@dataclass
class Death:
    """One death in the life of one audit: `MemorySwarm.dies_at`."""

    swarm: MemorySwarm
    where: Where
    round: int = 0
    of: str | None = None  # whose work it is about; None: anybody's
    kind: str = "work"
    since: int = 1  # of the steps whose audits count
    by: Collection[str] | None = None  # who audits; None: anybody
    roles: dict[str, str] = field(default_factory=dict)
    victim: str | None = None
    is_late: bool = False  # its victim had been turned away, and ended by itself

    def __call__(self, name: str, line: Line) -> str | None:
        """Who dies at this line."""
        teller, event, victim = self.where
        if not self.roles and (self.by is None or name in self.by) and self._begins(line):
            self.roles = roles_of(self.swarm, name, name_of(self.swarm, line["peer"]))
        if not self.roles or self.victim or event != line["event"]:
            return None
        is_ours = (
            event != "report_taken" or name_of(self.swarm, line["peer"]) == self.roles[AUDITOR]
        )
        if name == self.roles[teller] and is_ours:
            self.victim = self.roles[victim]
            self.is_late = self.swarm.parties[self.victim].task.done()
            return self.victim
        return None

    def _begins(self, line: Line) -> bool:
        wanted = {"event": "audited", "round": self.round, "kind": self.kind}
        if self.of is not None:
            wanted["peer"] = self.swarm.session_of(self.of).peer
        return wanted.items() <= line.items() and line["step"] >= self.since


def roles_of(swarm: MemorySwarm, auditor: str, audited: str) -> dict[str, str]:
    """Who is who in one audit, by a member or from outside."""
    left = [name for name in swarm.papers.members if name not in (auditor, audited)]
    outside = [name for name in swarm.papers.outside if name != auditor]
    return {
        AUDITOR: auditor,
        AUDITED: audited,
        SECOND: left[0],
        ANOTHER: next(iter(outside), ""),
        COORDINATOR: COORDINATOR,
    }


def name_of(swarm: MemorySwarm, peer: PeerId) -> str:
    """The name of a member, or of an auditor from outside."""
    names = (*swarm.papers.members, *swarm.papers.outside)
    return next(name for name in names if swarm.session_of(name).peer == peer)


def swarm_of(folder: Path, *workers: str, **changed: Any) -> MemorySwarm:
    """A job whose every claim is drawn; deadlines that only a clock's jump reaches.

    Everybody works in every step: who has not worked in it cannot lie in it, nor audit it.
    """
    audit = audit_spec(sums=MILLION, deadline=2)
    papers = make_papers(*workers, audit=audit, steps=STEPS, **changed)
    return MemorySwarm(papers, folder, together=True)


# ---------------------------------------------------------------------------------- what must hold


def assert_landed(death: Death, *convicts: str) -> None:
    """Somebody has died and is back, but for a convict: the seal that was told has it turned away.

    Who ends first, the convict or whoever tells that seal, is nobody's to say.
    """
    assert death.victim is not None, "the kill has to land"
    assert not death.is_late or death.victim in convicts
    assert death.swarm.restarts == (0 if death.is_late else 1)


def assert_whole(swarm: MemorySwarm, *convicts: str, missed: Sequence[PeerId] = ()) -> None:
    """The job has ended with every verdict in it once, and all pay where it belongs."""
    record, docket = swarm.history().record, swarm.docket()
    assert record is not None and record.ended and docket.is_clear
    guilty = {swarm.session_of(name).peer for name in convicts}
    assert docket.convicts == guilty
    assert set(swarm.refused) == set(convicts)
    assert {peer for peer, _, _ in record.pay.forfeits} <= guilty | set(missed)
    assert_every_verdict_once(swarm)
    assert_pay_adds_up(swarm, exact=not missed)


def assert_every_verdict_once(swarm: MemorySwarm) -> None:
    """What was taken is sealed, once; and all was audited that somebody could audit."""
    reports = swarm.claims("report")
    each = Counter((report.peer, report.subject) for report in reports)
    assert set(each.values()) == {1}
    sealed = {report.digest() for report in reports}
    assert {line["report"] for line in swarm.lines("report_taken")} <= sealed
    done = {(swarm.session_of(name).peer, line["subject"]) for name, line in swarm.log
            if line["event"] == "audit_handed_in" and line["taken"]}  # fmt: skip
    assert done <= each.keys()
    drawn = {claim.digest() for claim in (*swarm.claims(), *swarm.claims("bucket"))}
    heard = {report.subject for report in reports}
    assert heard <= drawn <= heard | unrepeated(swarm)


def unrepeated(swarm: MemorySwarm) -> set[Digest]:
    """What nobody was left to look at: no other owner worked in that step, but for convicts."""
    return {each.subject for each in rulings_of(swarm) if each.what == "unrepeated"}


def rulings_of(swarm: MemorySwarm) -> list[Ruling]:
    """What all seals decided, in order."""
    found = list[Ruling]()
    for history in swarm.sealed():
        assert history.record is not None and isinstance(history.record.checking, Docket)
        found += history.record.checking.rulings
    return found


def assert_pay_adds_up(swarm: MemorySwarm, *, exact: bool) -> None:
    """Earned = work + audits of each; all vested or forfeited; neither ever falls."""
    record, pays = swarm.history().record, pay_of_seals(swarm)
    assert record is not None
    earned, work = record.pay.earned, flops_of(swarm)
    assert earned == work if exact else all(work[peer] >= each for peer, each in earned.items())
    lost = forfeited_by(record.pay, record.pay_leases())
    assert all(leaf.earned == leaf.vested + lost[leaf.account] for leaf in pays[-1])
    paid = {leaf.account: leaf.vested for leaf in pays[-1]}
    losers = {peer for peer, _, _ in record.pay.forfeits}
    assert bool(lost.total()) == bool(losers)
    for peer, lease in record.leases.items():
        if peer not in losers:
            assert paid[lease.account] == pay_for(earned[peer], lease.price)
    seal = swarm.seals()[-1]
    assert (seal.earned, seal.vested) == (sum(paid.values()) + lost.total(), sum(paid.values()))
    for before, after in pairwise(pays):
        later = {leaf.account: leaf for leaf in after}
        for leaf in before:
            now = later[leaf.account]
            assert now.earned >= leaf.earned and now.vested >= leaf.vested


def flops_of(swarm: MemorySwarm) -> Counter[PeerId]:
    """What everybody claimed, and replayed for a report that is sealed."""
    work: Counter[PeerId] = Counter()
    flops = {
        each.digest(): flops_of_claim(swarm.papers.spec.message, each) for each in swarm.claims()
    }
    for claim in swarm.claims():
        work[claim.peer] += flops[claim.digest()]
    for report in swarm.claims("report"):
        work[report.peer] += flops.get(report.subject, 0)
    return work


def earned_by_seal(swarm: MemorySwarm, peer: PeerId) -> list[int]:
    """What each seal added to a peer's work."""
    records = [history.record for history in swarm.sealed()]
    sums = [0, *(record.pay.earned.get(peer, 0) for record in records if record)]
    return [after - before for before, after in pairwise(sums)]


def pay_of_seals(swarm: MemorySwarm) -> list[tuple[PayLeaf, ...]]:
    """The pay behind each seal, in order."""
    return [history.newest.pay for history in swarm.sealed() if history.newest]


# ------------------------------------------------------------------------------------------ kills


def deaths(
    *victims: str, always: Sequence[Where], lines: Sequence[tuple[str, str]] = LINES
) -> list[ParameterSet]:
    """Every line with every victim; those that are not in `always` only in `make nightly`."""
    found = [(*line, victim) for line in lines for victim in victims]
    assert set(always) <= set(found)
    return [
        pytest.param(
            where,
            marks=() if where in always else pytest.mark.nightly,
            id="{2}-dies-when-{0}-tells-{1}".format(*where),
        )
        for where in found
    ]


@pytest.mark.parametrize(
    "where",
    deaths(
        *ANYBODY,
        always=[(AUDITOR, "audited", AUDITOR), (COORDINATOR, "beacon_taken", COORDINATOR)],
    ),
)
async def test_kills__honest_job_and_a_death__nobody_loses_anything(
    where: Where, tmp_path: Path
) -> None:
    swarm = swarm_of(tmp_path, *THREE)
    swarm.dies_at = death = Death(swarm, where)

    await swarm.run()

    assert_landed(death)
    assert_whole(swarm)


@pytest.mark.parametrize(
    ("number", "lie", "where"),
    [
        pytest.param(number, lie, *case.values, marks=case.marks, id=f"{lie}-{number}-{case.id}")
        for number, lie, always in (
            (0, "stale", [(COORDINATOR, "seal_stored", COORDINATOR)]),
            (0, "wrong_sum", []),
            (1, "stale", []),
            (1, "wrong_sum", [(COORDINATOR, "report_taken", AUDITOR)]),
        )
        for case in deaths(*ANYBODY, SECOND, always=always)
    ],
)
async def test_kills__one_lies_and_somebody_dies__the_liar_alone_is_convicted(
    number: int, where: Where, lie: str, tmp_path: Path
) -> None:
    swarm = swarm_of(tmp_path, *THREE)
    swarm.behaviours[LIAR] = behaviour_of(f"{lie}:from=2", swarm.papers.spec.message.rules)
    kind = "bucket" if lie == "wrong_sum" else "work"
    swarm.dies_at = death = Death(swarm, where, number, LIAR, kind, since=2)

    await swarm.run()

    assert_landed(death, LIAR)
    assert_whole(swarm, LIAR)
    assert isinstance(swarm.refused[LIAR], Conflict)


@pytest.mark.parametrize(
    ("number", "where"),
    [
        pytest.param(number, *case.values, marks=case.marks, id=f"{case.id}-in-round-{number}")
        for number, always in ((1, []), (2, [(AUDITOR, "audited", COORDINATOR)]))
        for case in deaths(*ANYBODY, always=always)
    ],
)
async def test_kills__one_accuses_and_somebody_dies__the_accuser_alone_is_convicted(
    number: int, where: Where, tmp_path: Path
) -> None:
    # So many units that everybody has some in each step: else nobody is left for a third opinion.
    swarm = swarm_of(tmp_path, *FOUR, units_per_step=8)
    swarm.behaviours[LIAR] = behaviour_of("accuser", swarm.papers.spec.message.rules)
    swarm.dies_at = death = Death(swarm, where, number)

    await swarm.run()

    assert_landed(death, LIAR)
    assert_whole(swarm, LIAR)


# --------------------------------------------------------------------------------- missed reports


@dataclass
class Slow(Behaviour):
    """Shared by all: who is asked first about a peer-step of step 1 waits before it replays."""

    subject: Digest | None = None
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def report(
        self, about: WorkClaim, agreeing: Findings, replay: Callable[[], Awaitable[Findings]]
    ) -> Findings:
        """See `Behaviour.report`."""
        if about.what == "work" and self.subject is None:
            self.subject = about.digest()
            await self.goes_on.wait()
        return await replay()


def doer_of(swarm: MemorySwarm, claim: Digest | None) -> str:
    """Who signed a claim of work."""
    return next(name_of(swarm, each.peer) for each in swarm.claims() if each.digest() == claim)


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param(name, marks=() if name == COORDINATOR else pytest.mark.nightly)
        for name in (COORDINATOR, AUDITOR, SECOND, AUDITED)
    ],
)
async def test_kills__a_report_is_missed_and_somebody_dies__costs_a_peer_step_and_no_conviction(
    victim: str, tmp_path: Path
) -> None:
    swarm, slow = swarm_of(tmp_path, *THREE), Slow()
    swarm.behaviours = dict.fromkeys(THREE, slow)
    grace = swarm.papers.spec.message.rules.commit_timeout
    swarm.jumps = {(COORDINATOR, "seal_stored", STEPS + 1): grace}
    dead: list[str] = []

    def dies(name: str, line: Line) -> str | None:
        if line["event"] != "report_missed" or dead:
            return None
        roles = roles_of(swarm, name_of(swarm, line["peer"]), doer_of(swarm, slow.subject))
        dead.append(roles[victim])
        slow.goes_on.set()
        return dead[0]

    swarm.dies_at = dies
    await swarm.run()

    assert dead and swarm.restarts == 1, "the kill has to land"
    late = [each.peer for each in swarm.messages(Notice) if each.what == "missed_report"]
    assert late
    assert_whole(swarm, missed=late)
    record = swarm.history().record
    assert record is not None and len(record.pay.forfeits) <= len(late)
    for peer, start, end in record.pay.forfeits:
        assert end - start in earned_by_seal(swarm, peer)
