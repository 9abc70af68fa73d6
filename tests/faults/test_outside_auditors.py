"""Auditors from outside a job, in one event loop: they repeat reports, and confirm convictions.

They are no members: they read the history as the market has it, and fetch what they replay.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from contracts.terms import errors
from contracts.terms.history import Leaves
from contracts.terms.ids import PeerId, SessionKey
from contracts.terms.messages import MILLION
from contracts.terms.work import Findings, WorkClaim
from tallystick.gym.registry import behaviour_of
from tests.faults.test_checked_kills import rulings_of
from tests.support.dockets import audit_spec
from tests.support.friends import until_convicted
from tests.support.lying import LyingTransport
from tests.support.swarm_job import MemorySwarm, make_papers
from training.transport.port import Deadline, Session, Transport
from training.worker.ports import Behaviour, Wanted

OUTSIDE = ("out", "oda", "olu")


def swarm_of(folder: Path, *workers: str, audit: dict[str, Any], **changed: Any) -> MemorySwarm:
    """A short job whose every claim of work is drawn, with auditors outside."""
    spec = audit_spec(**({"deadline": 6} | audit))
    usual: dict[str, Any] = {"steps": 3, "outside": OUTSIDE}
    return MemorySwarm(make_papers(*workers, audit=spec, **(usual | changed)), folder)


def names(swarm: MemorySwarm) -> dict[PeerId, str]:
    """Who is who."""
    papers = swarm.papers
    found = {session.peer: name for name, session in papers.outside.items()}
    return found | {member.session.peer: name for name, member in papers.members.items()}


def about(swarm: MemorySwarm, what: str) -> set[tuple[str, ...]]:
    """Whom the rulings of a kind are about, and then by whom."""
    known = names(swarm)
    assert swarm.seals()[-1].last
    return {
        (known[each.peer], *(known[peer] for peer in each.by))
        for each in rulings_of(swarm)
        if each.what == what
    }


@pytest.mark.parametrize("stages", [1, pytest.param(2, marks=pytest.mark.nightly)])
async def test_outside__everybody_is_honest__reports_are_repeated_and_agreed_with(
    stages: int, tmp_path: Path
) -> None:
    workers = ("ann", "bob", "cem", "dan")[: 2 * stages]
    swarm = swarm_of(tmp_path, *workers, audit={"repeats": MILLION}, stages=stages)

    await swarm.run()

    outside = {session.peer for session in swarm.papers.outside.values()}
    assert not about(swarm, "convicted") | about(swarm, "accused") | about(swarm, "missed")
    by_outside = [each for each in swarm.reports() if each.claim.peer in outside]
    assert len(by_outside) >= len(swarm.claims()) > 0
    assert {each.findings.verdict for each in by_outside} == {"match"}


async def test_outside__an_auditor_stamps_unseen__two_from_outside_convict_it(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", "cem", audit={"repeats": MILLION})
    swarm.behaviours["ann"] = behaviour_of("stamp", swarm.papers.spec.message.rules)

    await swarm.run()

    convicted = about(swarm, "convicted")
    assert {whom for whom, *_ in convicted} == {"ann"}
    assert all(len(set(by)) == 2 and set(by) <= set(OUTSIDE) for _, *by in convicted)
    assert {whom for whom, *_ in about(swarm, "slashable")} == {"ann"}


class StampsBuckets(Behaviour):
    """Replays work, and agrees with every bucket unseen."""

    async def report(
        self, about: WorkClaim, agreeing: Findings, replay: Callable[[], Awaitable[Findings]]
    ) -> Findings:
        """See `Behaviour.report`."""
        return await replay() if about.what != "bucket" else agreeing


async def test_outside__a_wrong_sum_is_stamped_unseen__its_auditor_and_then_its_peer_are_convicted(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", audit={"sums": MILLION, "repeats": MILLION})
    swarm.behaviours["ann"] = StampsBuckets()
    swarm.behaviours["bob"] = behaviour_of("wrong_sum:from=2", swarm.papers.spec.message.rules)

    await until_convicted(swarm, "ann", "bob")

    known = names(swarm)
    reports = swarm.reports()
    stamped = {each.claim.digest() for each in reports if not each.findings.distances}
    against = {
        known[each.claim.peer]
        for each in reports
        if each.claim.subject in stamped and each.findings.verdict == "mismatch"
    }
    assert len(against) >= 2 and against <= set(OUTSIDE)


class Reticent(Behaviour):
    """Works in another stage than ann, and gives away no boundary tensor of its sealed work."""

    def __init__(self, swarm: MemorySwarm, name: str) -> None:
        self._swarm, self._name = swarm, name

    async def serves(self, wanted: Wanted) -> bool:
        """See `Behaviour.serves`."""
        swarm, ann = self._swarm, self._swarm.session_of("ann").peer
        claims = {claim.digest() for claim in swarm.claims() if claim.peer == ann}
        said = (each for each in swarm.items() if isinstance(each, Leaves))
        leaves = (leaf for each in said if each.claim in claims for leaf in each.leaves)
        is_of_ann = any(wanted.digest in dict(leaf.tensors).values() for leaf in leaves)
        return not (is_of_ann and wanted.is_sealed) or self._is_mate_of_ann

    @cached_property
    def _is_mate_of_ann(self) -> bool:
        return self._swarm.stage_of(self._name) == self._swarm.stage_of("ann")


async def test_outside__what_a_convict_alone_would_serve__comes_from_those_who_audited_it(
    tmp_path: Path,
) -> None:
    others = ("bob", "cem", "dan", "eve", "fay")
    swarm = swarm_of(tmp_path, "ann", *others, audit={}, stages=2, steps=2)
    swarm.together = True
    swarm.behaviours = {name: Reticent(swarm, name) for name in others}
    # A behaviour that lies about any item: there is one round to lie in, maybe with one item.
    swarm.behaviours["ann"] = behaviour_of("turned:from=2", swarm.papers.spec.message.rules)

    await swarm.run()

    assert {whom for whom, *_ in about(swarm, "slashable")} == {"ann"}
    assert not about(swarm, "unconfirmed")


class Firewalled(LyingTransport):
    """Reaches the coordinator alone."""

    def __init__(self, inner: Transport, coordinator: SessionKey) -> None:
        super().__init__(inner, {})
        self._coordinator = coordinator

    async def dial(self, node: SessionKey, hints: Sequence[str], *, deadline: Deadline) -> Session:
        """See `port.Transport.dial`."""
        if node != self._coordinator:
            raise errors.PeerUnreachable("behind a firewall")
        return await super().dial(node, hints, deadline=deadline)


async def test_outside__cannot_dial_a_member__replays_what_the_coordinator_passes_on(
    tmp_path: Path,
) -> None:
    workers = ("ann", "bob", "cem", "dan")
    swarm = swarm_of(tmp_path, *workers, audit={"repeats": MILLION}, stages=2, outside=("out",))
    key = swarm.papers.session.key
    swarm.wrap = lambda name, at: Firewalled(at, key) if name == "out" else at

    await swarm.run()

    peer = swarm.papers.outside["out"].peer
    verdicts = [each.findings.verdict for each in swarm.reports() if each.claim.peer == peer]
    assert len(verdicts) >= len(swarm.claims()) > 0
    assert set(verdicts) == {"match"}
