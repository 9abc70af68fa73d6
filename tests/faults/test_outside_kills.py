"""Auditors from outside die, or others around them do: no verdict is lost, nobody is punished.

As in `test_checked_kills` a death is scripted as (who tells, event) -> who dies, and lands or
fails the test. Which auditor is drawn follows from the beacon: it is the one that tells `audited`
of the kind and round that the case names.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.messages import MILLION
from tallystick.gym.registry import behaviour_of
from tests.faults.test_checked_kills import (
    ANOTHER,
    AUDITED,
    AUDITOR,
    Death,
    Where,
    assert_landed,
    deaths,
)
from tests.faults.test_outside_auditors import OUTSIDE, about
from tests.faults.test_outside_auditors import swarm_of as short_job
from tests.support.swarm_job import COORDINATOR, MemorySwarm
from verification.docket import Docket
from verification.draws.cases import CONFIRMING, FIRST, SECOND

LIAR = "ann"
LINES = [
    (AUDITOR, "audited"),  # kept, and nothing is sent yet
    (AUDITOR, "audit_handed_in"),
    (COORDINATOR, "report_taken"),
    (COORDINATOR, "seal_stored"),
]
VICTIMS = (AUDITOR, AUDITED, ANOTHER, COORDINATOR)


def death_outside(
    swarm: MemorySwarm, where: Where, kind: str, number: int, since: int = 1
) -> Death:
    """One death in the life of one audit from outside."""
    return Death(swarm, where, number, kind=kind, since=since, by=OUTSIDE)


def swarm_of(folder: Path, *workers: str, audit: dict[str, Any]) -> MemorySwarm:
    """A short job in which everybody works in every step: so others hold what a convict sent."""
    swarm = short_job(folder, *workers, audit=audit)
    swarm.together = True
    return swarm


def assert_nothing_lost(swarm: MemorySwarm, death: Death, *convicts: str) -> None:
    """The death has landed; every report counts once, and only who lied has lost anything."""
    assert_landed(death, *convicts)
    record = swarm.history().record
    assert record is not None and isinstance(record.checking, Docket)
    assert record.ended and record.checking.is_clear
    assert {whom for whom, *_ in about(swarm, "convicted")} == set(convicts)
    # A convict that is turned away while it owes a report has missed it.
    assert {whom for whom, *_ in about(swarm, "missed")} <= set(convicts)
    assert not about(swarm, "unconfirmed")
    guilty = {swarm.session_of(name).peer for name in convicts}
    assert {peer for peer, _, _ in record.pay.forfeits} <= guilty
    reports = swarm.claims("report")
    said = Counter((each.peer, each.subject) for each in reports)
    assert set(said.values()) == {1}
    taken = {line["report"] for line in swarm.lines("report_taken")}
    assert taken <= {each.digest() for each in reports}
    for name in OUTSIDE:
        handed_in = {
            line["subject"] for line in swarm.lines("audit_handed_in", of=name) if line["taken"]
        }
        assert {(swarm.session_of(name).peer, each) for each in handed_in} <= said.keys()


@pytest.mark.parametrize(
    "where", deaths(*VICTIMS, always=[(AUDITOR, "audited", AUDITOR)], lines=LINES)
)
async def test_kills__a_report_is_repeated_and_somebody_dies__it_is_agreed_with(
    where: Where, tmp_path: Path
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", "cem", audit={"repeats": MILLION})
    swarm.dies_at = died = death_outside(swarm, where, "report", FIRST)

    await swarm.run()

    assert_nothing_lost(swarm, died)
    assert {each.findings.verdict for each in swarm.reports()} == {"match"}


@pytest.mark.parametrize(
    "where",  # the convict has been turned away before
    deaths(*(AUDITOR, ANOTHER, COORDINATOR), always=[(AUDITOR, "audited", AUDITOR)], lines=LINES),
)
async def test_kills__a_conviction_is_confirmed_and_somebody_dies__stake_may_be_slashed(
    where: Where, tmp_path: Path
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", "cem", audit={})
    swarm.behaviours[LIAR] = behaviour_of("stale:from=2", swarm.papers.spec.message.rules)
    swarm.dies_at = died = death_outside(swarm, where, "work", CONFIRMING, since=2)

    await swarm.run()

    assert_nothing_lost(swarm, died, LIAR)
    slashable = about(swarm, "slashable")
    assert {whom for whom, *_ in slashable} == {LIAR}
    assert all(len(by) == 3 and by[-1] in OUTSIDE for _, *by in slashable)


@pytest.mark.parametrize(
    "where", deaths(*VICTIMS, always=[(COORDINATOR, "report_taken", AUDITOR)], lines=LINES)
)
async def test_kills__the_second_auditor_is_from_outside_and_somebody_dies__the_liar_is_convicted(
    where: Where, tmp_path: Path
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", audit={})
    swarm.behaviours[LIAR] = behaviour_of("stale:from=2", swarm.papers.spec.message.rules)
    swarm.dies_at = died = death_outside(swarm, where, "work", SECOND, since=2)

    await swarm.run()

    assert_nothing_lost(swarm, died, LIAR)
    assert all(by[0] == "bob" and by[1] in OUTSIDE for _, *by in about(swarm, "convicted"))
