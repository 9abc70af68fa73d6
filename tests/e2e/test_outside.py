"""Auditors from outside a checked job, as processes: strangers decide where a stage cannot.

A stage of two owners cannot convict one of them by itself. Everything is drawn, and every report
repeated; two providers without a lease, who only audit, read the job from the market. What is found
is shown, and slashed, by itself; anyone can run it again.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.ids import Address, Digest
from contracts.terms.merkle import FORFEITED
from market.bodies.routes import GET_CONVICTIONS
from market.bodies.settlement import ConvictionView
from tests.e2e.test_checked import account_of, told, verified
from tests.support.patience import patience
from tests.support.stack import Stack, stack

JOB: dict[str, Any] = {
    "checking": "on", "audit_rate": 1.0, "sum_audit_rate": 0.0, "repeat_rate": 1.0, "steps": 5,
    "peers_per_stage": 2, "units_per_step": 4, "budget": 60, "vesting_window": 2, "min_stake": 3,
}  # fmt: skip
OUTSIDE = ("out", "oda")
WINDOW = 5  # seconds; an agent looks twice in it once its owner is convicted
BURN = Address(bytes.fromhex("000000000000000000000000000000000000dead"))
STAKE = 10_000_000
SHOWN = "evidence_shown"


async def said(running: Stack, name: str, words: str, *, within: float = 60.0) -> None:
    """Wait until a provider's agent has said something."""
    log = running.folder / f"provider-{name}.log"
    async with asyncio.timeout(patience(within)):
        while not log.exists() or words not in log.read_text(errors="replace"):
            await asyncio.sleep(0.05)


@pytest.mark.nightly  # more than a minute; the same in one event loop is in every run
@pytest.mark.timeout(600)
async def test_outside__a_stage_of_two_owners__strangers_convict_and_the_stake_is_slashed(
    tmp_path: Path,
) -> None:
    async with stack(tmp_path, forked=True, announcement_window=WINDOW) as running:
        for name in OUTSIDE:
            running.start_provider(name, ask=None)
        for name in OUTSIDE:
            await said(running, name, "auditing from outside")
        for name in ("ann", "bob"):
            lie = "stale:from=2" if name == "ann" else ""
            running.variables = {
                "TALLYSTICK_HOOKS": "tallystick.gym.hooks",
                "TALLYSTICK_PEER_BEHAVIOUR": lie,
            }
            running.start_provider(name)
        job = (await running.submit(**JOB)).job
        view = await running.until(job, lambda each: each.state == "refunded", within=450)
        work = await running.work(job)

        lazy, fair, *outside = (account_of(running, name) for name in ("ann", "bob", *OUTSIDE))
        assert running.lines(running.peer_log("ann", job), "too_late")  # it was turned away
        logs = [running.audit_log(name, job) for name in OUTSIDE]
        audits = [line for log in logs for line in running.lines(log, "audited")]
        found = {(line["round"], line["verdict"]) for line in audits if line["kind"] == "work"}
        assert {(1, "mismatch"), (3, "mismatch")} <= found  # a third owner, and a confirmation
        assert {line["verdict"] for line in audits if line["kind"] == "report"} == {"match"}
        assert work.pay[FORFEITED] > 0 and all(work.pay[account] > 0 for account in outside)
        assert work.pay[fair] > work.pay.get(lazy, 0)
        assert view.escrowed == view.earned + view.refunded
        assert "escrow in" in verified(running, job)

        convictions = (await running.client.whole(GET_CONVICTIONS, job=job)).convictions
        await check_stake(running, lazy, convictions)
        await said(running, "ann", "tallystick provider contest")
        shown = [line for log in process_logs(running) for line in running.lines(log, SHOWN)]
        assert {line["subject"] for line in shown} == {each.subject.hex() for each in convictions}
        assert len({(line["pid"], line["subject"]) for line in shown}) == len(shown)  # one each
        for each in convictions:
            assert each.slash is not None
            rerun(running, each.slash.evidence)
        await no_bundle_left(running)


def process_logs(running: Stack) -> list[Path]:
    """Logs of all that may show evidence: peers and auditors."""
    return sorted(running.folder.glob("*/logs/*.log"))


async def check_stake(
    running: Stack, convict: Address, convictions: Sequence[ConvictionView]
) -> None:
    """Every base unit that left a stake is where the API, the events and the token say."""
    contracts, head = running.contracts, await running.contracts.chain.head()
    events = await contracts.stakes.events(0, head.number)
    ended = {log.transaction: log.args for log in events if log.event == "SlashEnded"}
    slashes = [each.slash for each in convictions if each.slash is not None]
    assert slashes and len(slashes) == len(convictions) == len(ended)
    given = Counter[Address]()
    for slash in slashes:
        parts = {"restitution": slash.restitution, "bounty": slash.bounty, "burned": slash.burned}
        assert (slash.account, slash.state) == (convict, "executed") and slash.ended_by is not None
        assert {name: ended[slash.ended_by][name] for name in parts} == parts
        assert sum(parts.values()) == slash.amount > 0 and 2 * slash.burned >= slash.amount
        given += Counter({slash.challenger: slash.bounty, BURN: slash.burned})
        given += Counter({running.contracts.escrow.address: slash.restitution})
    stake = await contracts.stakes.stake(convict, head)
    assert stake.active == STAKE - sum(slash.amount for slash in slashes)
    sent = Counter[Address]()
    for log in await contracts.token.events(0, head.number):
        if log.event == "Transfer" and log.args["from"] == contracts.stakes.address:
            sent[log.args["to"]] += log.args["value"]
    assert sent == given


def rerun(running: Stack, evidence: Digest) -> None:
    """Anyone who gets the bundle from the market comes to the same verdict."""
    file = str(running.folder / f"{evidence.hex()[:12]}.bundle")
    market = ("--market", running.client.url)
    told(running, "job", "evidence", evidence.hex(), "--to", file, *market)
    told(running, "audit", "rerun", file)


async def no_bundle_left(running: Stack) -> None:
    """Wait until agents have removed what nobody needs any more."""
    async with asyncio.timeout(patience(30)):
        while list(running.folder.glob("*/*/*/evidence/*.bundle")):
            await asyncio.sleep(0.1)
