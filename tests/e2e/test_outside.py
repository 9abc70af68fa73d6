"""Auditors from outside a checked job, as processes: strangers decide where a stage cannot.

A stage of two owners cannot convict one of them by itself. Everything is drawn, and every report
repeated; two providers without a lease, who only audit, read the job from the market. What is found
is shown, and stake burned, by itself; anyone can run it again.
"""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from contracts.governance.escrow import BURN
from contracts.terms.ids import Address, Digest, JobId
from market.bodies.routes import GET_CONVICTIONS
from market.bodies.slashes import ConvictionView
from tallystick.sdk.convictions import ENDED
from tests.support.money_story import account_of, until_said
from tests.support.patience import patience
from tests.support.stack import Stack, said, stack, verified

JOB: dict[str, Any] = {
    "checking": "on", "audit_rate": 1.0, "sum_audit_rate": 0.0, "repeat_rate": 1.0, "steps": 5,
    "peers_per_stage": 2, "units_per_step": 4, "budget": 60, "vesting_window": 2, "min_stake": 3,
}  # fmt: skip
OUTSIDE = ("out", "oda")
WINDOW = 5  # seconds; an agent looks twice in it once its owner is convicted
BONDED = 3_000_000
SHOWN = re.compile("evidence_shown subject=([0-9a-f]+)")


@pytest.mark.nightly  # more than a minute; the same in one event loop is in every run
@pytest.mark.timeout(600)
async def test_outside__a_stage_of_two_owners__strangers_convict_and_the_stake_is_slashed(
    tmp_path: Path,
) -> None:
    async with stack(tmp_path, forked=True, announce=WINDOW) as running:
        for name in OUTSIDE:
            running.start_provider(name, ask=None)
        for name in OUTSIDE:
            await until_said(running, name, "auditing from outside")
        for name in ("ann", "bob"):
            running.start_provider(name, lie="stale:from=2" if name == "ann" else "")
        job = (await running.submit(**JOB)).job
        view = await running.settled(job, within=450)
        work = await running.work(job)

        lazy, fair, *outside = (account_of(running, name) for name in ("ann", "bob", *OUTSIDE))
        await running.wait_line(running.peer_log("ann", job), "too_late")  # it is turned away
        logs = [running.audit_log(name, job) for name in OUTSIDE]
        audits = [line for log in logs for line in running.lines(log, "audited")]
        found = {(line["round"], line["verdict"]) for line in audits if line["kind"] == "work"}
        assert {(1, "mismatch"), (3, "mismatch")} <= found  # a third owner, and a confirmation
        assert {line["verdict"] for line in audits if line["kind"] == "report"} == {"match"}
        assert work.forfeited[lazy] > 0 and all(work.pay[each].vested > 0 for each in outside)
        assert work.pay[fair].vested > work.pay[lazy].vested
        assert view.claimed == sum(pay.vested for pay in work.pay.values()) < view.earned
        assert (await verified(running, job))["verdict"] == "anchored"

        convictions = await ended_slashes(running, job)
        await check_stake(running, job, lazy, convictions)
        await until_said(running, "ann", "tallystick audit rerun")
        shown = [(log, found) for log in agent_logs(running) for found in SHOWN.findall(log)]
        assert {subject for _, subject in shown} == {each.subject.hex() for each in convictions}
        assert len(set(shown)) == len(shown)  # one each
        for each in convictions:
            assert each.slash is not None
            rerun(running, each.slash.evidence)
        await no_bundle_left(running)


def agent_logs(running: Stack) -> list[str]:
    """What the agents said, which show evidence."""
    return [log.read_text(errors="replace") for log in running.folder.glob("provider-*.log")]


async def ended_slashes(running: Stack, job: JobId) -> Sequence[ConvictionView]:
    """The job's convictions once nothing more becomes of their slashes."""
    async with asyncio.timeout(patience(60)):
        while True:
            found = (await running.client.whole(GET_CONVICTIONS, job=job)).convictions
            if all(each.slash is not None and each.slash.state in ENDED for each in found):
                return found
            await asyncio.sleep(0.1)


async def check_stake(
    running: Stack, job: JobId, convict: Address, convictions: Sequence[ConvictionView]
) -> None:
    """What was burned is where the API, the events and the escrow say; nobody has it."""
    escrow, head = running.contracts.escrow, await running.contracts.chain.head()
    events = await escrow.events(0, head.number)
    burned = [log.args for log in events if log.event == "Burned"]
    slashes = [each.slash for each in convictions if each.slash is not None]
    taken = [each for each in slashes if each.state == "burned"]
    assert {(each.job, each.account) for each in slashes} == {(job, convict)}
    assert [each.amount for each in taken] == [each["amount"] for each in burned]
    stake = (await escrow.channels([(job, convict)], head))[job, convict].stake
    assert sum(each.amount for each in taken) == BONDED - stake > 0
    assert (await escrow.balances([BURN], head))[BURN][0] == BONDED - stake


def rerun(running: Stack, evidence: Digest) -> None:
    """Anyone who gets the bundle from the market comes to the same verdict."""
    file = str(running.folder / f"{evidence.hex()[:12]}.bundle")
    market = ("--market", running.client.url)
    said(running, "job", "evidence", evidence.hex(), "--to", file, *market)
    said(running, "audit", "rerun", file)


async def no_bundle_left(running: Stack) -> None:
    """Wait until agents have removed what nobody needs any more."""
    async with asyncio.timeout(patience(30)):
        while list(running.folder.glob("*/*/*/evidence/*.bundle")):
            await asyncio.sleep(0.1)
