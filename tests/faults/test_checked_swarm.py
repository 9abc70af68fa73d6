"""A checked job whole, in one event loop: everything is drawn, done again, sealed and paid."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.governance.vesting import forfeited_by
from contracts.terms.amounts import BaseUnits
from contracts.terms.beacons import Beacon
from contracts.terms.errors import Conflict
from contracts.terms.ids import SessionKey, StepNumber
from contracts.terms.messages import MILLION, Notice, StepBeacon
from tallystick.gym.registry import behaviour_of
from tests.support.checked_swarm import MadeUpBeacons
from tests.support.dockets import audit_spec, begin_checked
from tests.support.history import DOMAIN, make_digest
from tests.support.lying import Answer, AnsweringTransport
from tests.support.patience import patience
from tests.support.swarm_job import COORDINATOR, MemorySwarm, make_papers
from training.journal import Journal
from training.transport.calls import REPORT
from training.transport.port import Handler
from training.worker.book import WorkerBook


def checked_swarm(tmp_path: Path, *workers: str, **changed: Any) -> MemorySwarm:
    """A job of four rounds whose every claim is drawn."""
    audit = changed.pop("audit", audit_spec(sums=MILLION, deadline=4))
    papers = make_papers(*workers, audit=audit, steps=4, **changed)
    return MemorySwarm(papers, tmp_path, together=True)


@pytest.mark.parametrize("stages", [pytest.param(1, marks=pytest.mark.nightly), 2])
async def test_checked_swarm__honest__everything_is_audited_and_paid(
    stages: int, tmp_path: Path
) -> None:
    workers = ("ann", "bob", "cem", "dan")
    swarm = checked_swarm(tmp_path, *workers, stages=stages)

    await swarm.run()

    docket, history = swarm.docket(), swarm.history()
    assert history.record is not None and history.newest is not None and history.record.ended
    assert docket.is_clear and not docket.convicts
    assert {each.findings.verdict for each in swarm.reports()} == {"match"}
    heard = {claim.subject for claim in swarm.claims("report")}
    assert heard == {claim.digest() for claim in (*swarm.claims(), *swarm.claims("bucket"))}
    seal = history.newest.seal.message
    lost = forfeited_by(history.record.pay, history.record.pay_leases())
    assert seal.earned == seal.vested + lost.total() and seal.vested > 0
    assert_no_report_is_named_again(swarm)


def assert_no_report_is_named_again(swarm: MemorySwarm) -> None:
    """Everybody, started again after the last seal, has no report left that a claim names."""
    auditors = swarm.papers.opening.auditors
    reporters = {claim.peer for claim in swarm.claims("report")}
    for name in swarm.papers.members:
        assert swarm.session_of(name).peer in reporters
        with Journal(swarm.folder / name / "journal.sqlite") as journal:
            book = WorkerBook(
                journal,
                swarm.papers.spec,
                swarm.papers.signed_opening(),
                DOMAIN,
                auditors,
                begin_checked,
            )
            assert book.unsealed_reports() == ()


class AnchoredEarly(MadeUpBeacons):
    """Whoever anchors put what nobody has signed under every step, and knew the beacons."""

    async def beacon_of(self, step: StepNumber) -> Beacon | None:
        """See `Beacons.beacon_of`."""
        beacon = await super().beacon_of(step)
        return beacon and replace(beacon, seal=make_digest("garbage", step))


async def test_checked_swarm__beacons_that_were_known_before_the_work__no_member_takes_their_seal(
    tmp_path: Path,
) -> None:
    swarm = checked_swarm(tmp_path, "ann", "bob")
    swarm.beacons = AnchoredEarly()

    running = asyncio.ensure_future(swarm.run())
    async with asyncio.timeout(patience(60)):
        while not (refused := swarm.lines("call_failed", of=COORDINATOR)):
            await asyncio.sleep(0.01)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running

    assert {(line["duty"], line["code"]) for line in refused} == {("seal", "invalid_seal")}
    assert "another seal of step 1 was anchored" in refused[0]["reason"]
    drawing = min(each.step for each in swarm.messages(StepBeacon))
    stored = [*swarm.lines("seal_stored", of="ann"), *swarm.lines("seal_stored", of="bob")]
    assert stored and all(line["step"] < drawing for line in stored)


class Deaf:
    """A coordinator's handler that takes no report by itself while `is_deaf`."""

    def __init__(self, handler: Handler, is_deaf: Callable[[], bool]) -> None:
        self._handler, self._is_deaf = handler, is_deaf

    async def handle(
        self, caller: SessionKey, method: str, header: bytes, tensors: tuple[memoryview, ...]
    ) -> Answer:
        """As if nobody wanted a report."""
        if method == REPORT.name and self._is_deaf():
            raise Conflict("this report is not wanted")
        return await self._handler.handle(caller, method, header, tensors)


async def test_checked_swarm__coordinator_wants_no_report__claims_bring_them_all_the_same(
    tmp_path: Path,
) -> None:
    papers = make_papers("ann", "bob", "cem", "dan", audit=audit_spec(deadline=4), steps=9)
    swarm = MemorySwarm(papers, tmp_path, together=True)
    swarm.behaviours["ann"] = behaviour_of("turned:from=2", papers.spec.message.rules)

    def is_deaf() -> bool:  # while there is work
        return len(swarm.lines("seal_stored", of=COORDINATOR)) < 8

    swarm.wrap = lambda name, inner: (
        AnsweringTransport(inner, lambda handler: Deaf(handler, is_deaf))
        if name == COORDINATOR
        else inner
    )

    await swarm.run()

    assert swarm.docket().convicts == {papers.members["ann"].session.peer}
    assert not [each for each in swarm.messages(Notice) if each.what == "missed_report"]
    named = {name for claim in swarm.claims() if claim.round < 8 for name in claim.reports}
    assert named and named <= {claim.digest() for claim in swarm.claims("report")}


LIES = ("stale", "wrong_sum")  # of work and of sums
OTHER_LIES = "scaled", "skipped", "half", "junk", "copied", "flipped", "turned", "huge", "left_out"


@pytest.mark.parametrize(
    "lie", [*LIES, *(pytest.param(each, marks=pytest.mark.nightly) for each in OTHER_LIES)]
)
async def test_checked_swarm__one_lies__is_convicted_alone_and_loses_what_waits(
    lie: str, tmp_path: Path
) -> None:
    # Enough items that who lies has two in some step: a copy takes two.
    audit = audit_spec(sums=MILLION)
    swarm = checked_swarm(tmp_path, "ann", "bob", "cem", audit=audit, units_per_step=9)
    swarm.behaviours["ann"] = behaviour_of(f"{lie}:from=2", swarm.papers.spec.message.rules)

    await swarm.run()

    history = swarm.history()
    assert history.record is not None and history.newest is not None and history.record.ended
    assert swarm.docket().convicts == {swarm.papers.members["ann"].session.peer}
    assert isinstance(swarm.refused["ann"], Conflict)  # it came again, and was turned away
    pay = {leaf.account: leaf for leaf in history.newest.pay}
    accounts = {name: member.wallet.account for name, member in swarm.papers.members.items()}
    ann = pay[accounts["ann"]]
    assert pay[accounts["bob"]].vested > ann.vested and ann.vested < ann.earned
    assert all(each.earned == each.vested for each in pay.values() if each != ann)


async def test_checked_swarm__accused_where_nobody_else_is_left__nothing_is_proved(
    tmp_path: Path,
) -> None:
    swarm = checked_swarm(tmp_path, "ann", "bob", "cem")
    swarm.behaviours["ann"] = behaviour_of("accuser", swarm.papers.spec.message.rules)

    await swarm.run()

    newest = swarm.history().newest
    assert newest is not None and not swarm.docket().convicts
    assert all(leaf.earned == leaf.vested for leaf in newest.pay)


async def test_checked_swarm__audit_budget_is_spent__ends_early_and_pays_what_was_done(
    tmp_path: Path,
) -> None:
    audit = audit_spec(budget=BaseUnits(1_500_000))  # two steps that are drawn whole
    swarm = checked_swarm(tmp_path, "ann", "bob", "cem", audit=audit, commit_timeout=500)

    await swarm.run()

    history = swarm.history()
    assert history.record is not None and history.newest is not None and history.record.ended
    assert any(each.record and each.record.checking.is_spent for each in swarm.sealed())
    worked = [seal.step for seal in swarm.seals() if seal.gradient_norm]
    assert 1 in worked and len(worked) < 4
    seal = history.newest.seal.message
    lost = forfeited_by(history.record.pay, history.record.pay_leases())
    assert seal.earned == seal.vested + lost.total() and seal.vested > 0
