"""Whatever happens around a job's money while it is on its way, nobody honest loses any of it.

Real processes, and each time something else fails: a relayer that holds every signature until it
counts no more, a coordinator that is away for longer than TAIL, a market that is switched off for
good, blocks that the chain takes back, a node that does not answer. Afterwards the events of the
escrow, its storage, the market's view and the earnings of each account are compared, and what
honest parties lost is printed. Rising fees: `tests/integration/chain/test_fees.py`; one of two
workers killed: `tests/integration/market/test_workers.py`.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from contracts.governance.claims import SealedPay
from contracts.terms.ids import Address, JobId
from contracts.terms.messages import Seal
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from market.bodies.jobs import JobView
from market.bodies.money import JobMoney
from market.bodies.routes import GET_NETWORK
from tallystick.demo.shares import read_work
from tallystick.provider.folder import load_pay
from tallystick.sdk.escrow import close, told_job
from tallystick.up import child as children
from tallystick.up import json_rpc
from tallystick.up.child import Child
from tests.support.money_story import (
    Told,
    agreed,
    by_events,
    events_of,
    losses_of,
    start_all,
    tell,
    until_event,
    until_money,
    until_said,
)
from tests.support.patience import patience
from tests.support.stack import Stack, said, stack
from tests.support.weather import end_market, held_still, pass_moment, sky

NAMES = ("ann", "bob")
Accounts: TypeAlias = Mapping[str, Address]
JOB: dict[str, Any] = {"peers_per_stage": 2, "min_stake": 1, "budget": 40, "vesting_window": 2}


async def both_deposited(running: Stack) -> dict[str, Address]:
    """Two honest providers that have their stake in the escrow, and offer."""
    accounts = start_all(running, *NAMES)
    for name in NAMES:
        await until_said(running, name, "offering at")
    return accounts


async def funded(running: Stack, **changes: Any) -> JobId:
    """A job whose budget is in the escrow, seen the moment that the market sees it."""
    job = (await running.submit(**(JOB | changes))).job
    await running.until(job, lambda view: view.state != "draft", within=60)
    return job


def all_leases(view: JobView, *states: str) -> bool:
    """Whether both leases are in one of these states."""
    live = [each for each in view.leases if each.state in ("reserved", "accepted", "active")]
    return len(live) == len(NAMES) and all(each.state in states for each in live)


async def paid_in_full(running: Stack, job: JobId) -> JobMoney:
    """Wait until all that was earned has vested and is claimed."""
    await running.settled(job, within=120)
    return await until_money(running, job, lambda m: m.claimed == m.vested == m.earned > 0)


async def tell_in_full(running: Stack, job: JobId, story: str, accounts: Accounts) -> None:
    """Nobody lost anything; what accounts hold and nobody earned the poster has after TAIL."""
    told = await agreed(running, job)
    held = told.budget.committed - told.earned
    tell(story, await losses_of(running, told, accounts, poster=held))


# ------------------------------------------------------------------------------------ a bad relayer

HOLD = 20  # MARGIN, in seconds


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_relayer__holds_every_signature_until_its_by__parties_sign_again_and_all_are_paid(
    tmp_path: Path,
) -> None:
    async with stack(tmp_path, forked=True, margin=HOLD) as running:
        accounts = await both_deposited(running)
        relayer = running.services.identity("worker-chain")
        job = await funded(running, steps=8)
        async with held_still(relayer):  # bonds
            await running.until(job, lambda view: all_leases(view, "accepted"), within=30)
            assert not await events_of(running, "Bonded", job)
            await pass_moment(time.time() + HOLD)
        await running.until(job, lambda view: all_leases(view, "active"), within=60)
        async with held_still(relayer):  # grants
            log = running.coordinator_log(job)
            await running.wait_line(log, "limits_granted", within=60)
            assert not await events_of(running, "LimitSet", job)
            await pass_moment(time.time() + HOLD)
        await running.wait_line(log, "seal_stored", step=2, within=120)
        view = await running.settled(job, within=120)
        known = await told_job(running.client, job)
        async with held_still(relayer):  # what the poster signs
            await close(running.client, running.poster, known)
            await pass_moment(time.time() + HOLD)
        assert not await events_of(running, "Closed", job)
        await close(running.client, running.poster, known)
        await until_money(running, job, lambda shown: shown.closed_at is not None)

        for name in NAMES:
            assert "signed its bond" in (tmp_path / f"provider-{name}.log").read_text()
        assert len(running.lines(log, "limits_granted")) >= 2
        assert all_leases(view, "active") or view.state == "finished"
        await tell_in_full(running, job, "signatures held until their by", accounts)


# ----------------------------------------------------------------- a coordinator away for TAIL


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_coordinator__comes_back_after_tail_and_vests__claims_still_pay(
    tmp_path: Path,
) -> None:
    tail = 30
    async with stack(tmp_path, forked=True, margin=10, announce=2, execute=3, tail=tail) as running:
        accounts = start_all(running, *NAMES)
        job = (await running.submit(**JOB, steps=400, lease_grace="10s")).job
        await running.until(job, lambda view: view.progress.step >= 8, within=120)
        coordinator = await running.pid_of("tallystick.coordinator", mentions=job.hex())
        host = running.services.identity("host")
        async with held_still(host, coordinator):
            await until_money(running, job, lambda m: m.earned > m.vested > 0)
            await close(running.client, running.poster, await told_job(running.client, job))
            before = await until_money(running, job, lambda m: m.closed_at is not None)
            assert before.closed_at is not None
            await pass_moment(before.closed_at + tail)
            # Stakes are back, unspent limits too, and the market has sent the rest to the poster.
            gone = await until_money(
                running,
                job,
                lambda m: m.committed == m.funded and not any(each.stake for each in m.accounts),
            )
            assert gone.claimed == before.vested and gone.committed == before.earned

        money = await until_money(running, job, lambda m: m.claimed == m.committed)
        assert money.claimed > before.vested and money.vested == money.earned

        # Only the round that it was in when it went silent, and which no seal said, may be lost.
        told, rounds = await agreed(running, job), await pay_of_last_round(running, job)
        allowed = {name: rounds[each] for name, each in accounts.items()}
        tell("coordinator away for TAIL", await losses_of(running, told, accounts, **allowed))


async def pay_of_last_round(running: Stack, job: JobId) -> dict[Address, int]:
    """What the last seal with work in it adds to what each had earned before."""
    network = await running.client.call(GET_NETWORK)
    domain = Domain(network.chain_id, network.contracts.escrow)
    items = [item async for _, item in running.client.messages(job)]
    ends = [
        number
        for number, each in enumerate(items, 1)
        if isinstance(each, Signed) and isinstance(each.message, Seal)
    ]
    earned = (
        {account: leaf.earned for account, leaf in read_work(items[:end], domain).pay.items()}
        for end in reversed(ends)
    )
    newest = next(earned)
    before = next(each for each in earned if each != newest)
    return {account: amount - before.get(account, 0) for account, amount in newest.items()}


# ------------------------------------------------------------------------ a market that is gone

SLOWDOWN = 8.0
BURST = 1.9
"""Tokens: about twenty rounds of two providers, so that limits have to be raised meanwhile."""


def small_corpus(folder: Path) -> dict[str, Any]:
    """Text in few shards, of which providers soon have all: nobody but the market serves them."""
    text = folder / "text.txt"
    text.write_text("".join(f"{number} times {number} is {number**2}\n" for number in range(200)))
    return {"data": str(text), "lease_grace": "20s"}


def shipped(running: Stack, job: JobId) -> Child:
    """Coordinator of a job, started by the command that a person would type."""
    return children.start(
        (sys.executable, "-m", "tallystick.coordinator", str(running.job_folder(job))),
        environment=running.environment("coordinator"),
        log=running.folder / "alone-coordinator.log",
    )


async def last_pay(running: Stack, name: str, job: JobId) -> SealedPay:
    """Wait until a provider's folder has the last seal, and all pay by it."""
    folder = running.lease_folder(name, job)
    try:
        async with asyncio.timeout(patience(120)):
            while (pay := load_pay(folder)) is None or not pay.seal.message.last:
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"{name} has no last seal: {running.tails()}") from None
    return pay


async def give_gas(running: Stack, *accounts: Address) -> None:
    """Wei for gas, as their owner brings them who knows that no market will."""
    port = running.services.ports["anvil"]
    for account in accounts:
        name = f"0x{account.hex()}"
        await json_rpc.call(f"http://127.0.0.1:{port}", "anvil_setBalance", name, hex(10**18))


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_market__gone_for_good_in_the_middle__job_is_done_and_paid_by_shipped_commands(
    tmp_path: Path,
) -> None:
    async with stack(tmp_path, forked=True, margin=60, tail=80) as running:
        # Half of a limit has to last until the coordinator has raised it.
        accounts = start_all(running, *NAMES, slowdown=SLOWDOWN)
        submitted = await running.submit(**JOB, **small_corpus(tmp_path), steps=40, burst=BURST)
        job, shards = submitted.job, submitted.corpus.manifest.train
        await running.until(job, lambda view: view.progress.step >= 3, within=120)
        async with asyncio.timeout(patience(60)):
            while not all((tmp_path / name / "blobs" / each.digest.hex()).exists()
                          for name in NAMES for each in shards):  # fmt: skip
                await asyncio.sleep(0.02)
        assert (await running.job(job)).progress.step < 30
        spec = (await told_job(running.client, job)).spec
        await give_gas(running, spec.coordinator, running.poster.account)
        limits = len(await events_of(running, "LimitSet", job))
        await end_market(running)
        assert not running.find("tallystick.coordinator") and not running.find("market.api")

        alone = shipped(running, job)
        try:
            pays = [await last_pay(running, name, job) for name in NAMES]
        finally:
            everybody = [alone, *(running.providers[name] for name in NAMES)]
            await asyncio.gather(*(each.stop(signal.SIGTERM, grace=30.0) for each in everybody))
        (pay,) = {each.pay for each in pays}
        assert pays[0].seal.message.step >= 40
        assert len(await events_of(running, "LimitSet", job)) > limits  # by the coordinator's own
        settled = [
            said(running, "provider", "settle", job.hex(), "--home", str(tmp_path / name))
            for name in NAMES
        ]
        for name in NAMES:
            home = str(tmp_path / name)
            said(running, "provider", "quit", job.hex(), "--direct", "--home", home)
        wallet = ("--wallet", str(tmp_path / "poster.json"))
        before = await running.contracts.token.balance(
            running.poster.account, await running.contracts.chain.head()
        )
        said(running, "job", "close", job.hex(), "--direct", *wallet)
        back = said(running, "job", "reclaim", job.hex(), *wallet)
        state, head = await by_events(running)
        after = await running.contracts.token.balance(running.poster.account, head)

        told = Told(job, state, {leaf.account: leaf for leaf in pay})
        assert all(leaf.vested == leaf.earned for leaf in pay)
        assert any(int(each["jobs"][0]["paid"]) for each in settled)
        assert after - before == int(back["amount"])
        assert told.budget.funded == told.budget.committed == told.earned
        tell("market gone for good", await losses_of(running, told, accounts))

        ends = max(told.channel(each).end for each in accounts.values())
        await pass_moment(ends + 80)
        for name in NAMES:  # stakes, too
            said(running, "provider", "settle", job.hex(), "--home", str(tmp_path / name))
        state, _ = await by_events(running)
        assert not any(state.channels[job, each].stake for each in accounts.values())


# ------------------------------------------------------------------------------- a bad chain

OUTAGE = 60.0


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_chain__takes_blocks_back_and_does_not_answer__bonds_grants_claims_happen_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_CONFIRMATIONS", "3")
    async with (
        stack(tmp_path, forked=True, margin=150, tail=200) as running,
        sky(running) as weather,
    ):
        accounts = await both_deposited(running)
        gateway = running.services.identity("gateway")
        job = (await running.submit(**JOB, steps=10)).job
        taken = {}
        for name in ("Bonded", "LimitSet", "Claimed"):
            before = await until_event(running, name, job)
            first, last = await weather.take_back(5)
            assert first <= before.block <= last, f"{name} was older than what was taken back"
            taken[name] = before
            if name != "LimitSet":  # while it trains nobody would notice
                async with held_still(gateway):
                    await asyncio.sleep(OUTAGE)
        await paid_in_full(running, job)
        await until_quits(running, job)

        for name, before in taken.items():
            after = await events_of(running, name, job)
            assert before.block_hash not in {each.block_hash for each in after}, name
            assert len({each.args["account"] for each in after}) == len(after) == len(NAMES) or (
                name == "LimitSet"
            )
        story = "5 blocks taken back three times, no node for 60 s twice"
        await tell_in_full(running, job, story, accounts)


async def until_quits(running: Stack, job: JobId) -> None:
    """Wait until both have given back what they did not need of their limits."""
    await until_money(running, job, lambda shown: shown.committed == shown.earned)
