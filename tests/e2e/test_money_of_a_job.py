"""Where the money of a job goes when its parties stop, lie or take it back, over real processes.

Each story ends by comparing the escrow's events and storage with `/money` and the earnings, and by
saying in one line what each honest party lost, beside what the specification allows.
"""

import contextlib
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from contracts.governance.claims import PayTree
from contracts.governance.escrow import Channel
from contracts.governance.pay import PayLeaf
from contracts.keys.store import load_wallet
from contracts.keys.wallet import Wallet
from contracts.terms.amounts import BASE_UNITS_PER_TOKEN, BaseUnits, format_tokens
from contracts.terms.escrow_messages import Grant, Limit
from contracts.terms.ids import ZERO_DIGEST, Address, JobId, StepNumber
from contracts.terms.messages import Seal
from contracts.terms.moments import UnixSeconds
from market.bodies.routes import GET_PAY
from market.domain.sizes import job_cost
from tallystick.host.folder import wallet_path
from tallystick.sdk.escrow import told_job, until_quit
from tallystick.sdk.job_file import parse_job_file
from tallystick.sdk.job_spec import build_spec, prepare
from tallystick.sdk.on_chain import OnChain, top_up
from tallystick.up.processes import send
from tests.support.money_story import (
    Loss,
    Told,
    account_of,
    agreed,
    closed,
    lag_pay,
    loss_of,
    newest_pay,
    paid_after,
    released_at,
    sent,
    short_stack,
    spent,
    stranger,
    taken_back,
    tell,
    until,
    until_free,
    until_said,
)
from tests.support.patience import patience
from tests.support.stack import MICRO_JOB, Stack, kill_and_see

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]
TOKEN = BASE_UNITS_PER_TOKEN
DEPOSIT, STAKE = 10 * TOKEN, 2 * TOKEN
NAMES = ("ann", "bob")
PAIR: dict[str, Any] = {"peers_per_stage": 2, "min_stake": 2, "budget": 40}
LONG: dict[str, Any] = PAIR | {"steps": 600, "budget": 100}
"""Longer than the test, and worth more than is ever granted at once."""
FRIEND, NOBODY = Address(b"\xf1" * 20), Address(b"\xf2" * 20)
FRIENDLY, MUCH = BaseUnits(3 * TOKEN), BaseUnits(1000 * TOKEN)


def start_all(running: Stack, *names: str) -> dict[str, Address]:
    """Providers, and their accounts."""
    for name in names:
        running.start_provider(name)
    return {name: account_of(running, name) for name in names}


def earned(told: Told) -> int:
    """By all, by the newest seal."""
    return sum(leaf.earned for leaf in told.leaves.values())


# ---------------------------------------------------------------------------------- an honest job


async def test_honest_job__closed_and_reclaimed__paid_at_once_and_all_else_is_back(
    tmp_path: Path,
) -> None:
    async with short_stack(tmp_path) as running:
        accounts = start_all(running, *NAMES)
        job = (await running.submit(steps=6, **PAIR)).job
        view = await running.settled(job, within=120)
        assert view.claimed == view.vested == view.earned > 0
        seconds = await paid_after(running, job)
        assert seconds < patience(10)

        await until_quit(running.client, job)
        money = await closed(running, job)
        back = await taken_back(running, job)
        assert back.amount == money.funded - view.earned and back.committed == view.earned
        told = await agreed(running, job)
        assert {told.channel(each).stake for each in accounts.values()} == {STAKE}

        state = await until_free(running, job)
        told = await agreed(running, job)
        assert told.budget.funded == told.budget.committed == view.earned
        for each in accounts.values():
            assert state.balances[each] == DEPOSIT + told.leaf(each).vested
        losses = [loss_of(told, name, each) for name, each in accounts.items()]
        story = f"honest job (paid {seconds:.1f} s after its last seal)"
        tell(story, [*losses, Loss("poster", await spent(running, job) - earned(told), 0)])


# -------------------------------------------------------------------------- a coordinator that lies


async def stolen_key(running: Stack, job: JobId) -> Wallet:
    """The wallet of a hosted job's coordinator."""
    return load_wallet(wallet_path(running.home / "keys", (await running.job(job)).coordinator))


async def grant_a_friend(running: Stack, own: OnChain, thief: Wallet, job: JobId) -> UnixSeconds:
    """A limit for a friend, signed by the coordinator's key; when."""
    known = await told_job(running.client, job)
    now = await own.contracts.chain.next_time()
    by = UnixSeconds(now + known.network.times.margin * 23 // 24)
    limits = (Limit(account=FRIEND, limit=FRIENDLY),)
    signed = thief.sign(Grant(job=job, limits=limits, by=by), known.domain)
    await sent(own, own.contracts.escrow.grant(known.spec.header(), signed))
    return now


async def show_lie(
    running: Stack, own: OnChain, thief: Wallet, step: int, job: JobId, pay: Mapping[Address, int]
) -> None:
    """Claim for everybody by a seal that the coordinator's key has signed."""
    known = await told_job(running.client, job)
    leaves = [PayLeaf(who, BaseUnits(pay[who]), BaseUnits(pay[who])) for who in sorted(pay)]
    tree, total = PayTree(tuple(leaves)), BaseUnits(sum(pay.values()))
    seal = Seal(
        job=job,
        step=StepNumber(step),
        previous=ZERO_DIGEST,
        messages_root=ZERO_DIGEST,
        gradient_norm=0,
        pay_root=tree.root,
        earned=total,
        vested=total,
        last=False,
    )
    signature, header = thief.sign(seal, known.domain).signature, known.spec.header()
    escrow = own.contracts.escrow
    for part in tree.subtrees():
        await sent(own, escrow.claim_all(header, seal.details(), signature, part))


async def test_lying_coordinator__two_false_seals_of_a_step__a_friend_gets_its_limit_and_no_more(
    tmp_path: Path,
) -> None:
    async with short_stack(tmp_path) as running:
        accounts = start_all(running, *NAMES)
        job = (await running.submit(steps=40, **PAIR, burst=8, rate=10)).job
        await running.until(job, lambda view: view.progress.step >= 8, within=120)
        thief = await stolen_key(running, job)
        pay = await running.client.call(GET_PAY, job=job)
        honest = {each.account: each.vested for each in pay.leaves}
        async with stranger(running) as own:
            granted_at = await grant_a_friend(running, own, thief, job)
            await show_lie(
                running, own, thief, pay.step, job, {**honest, FRIEND: MUCH, NOBODY: MUCH}
            )
            await show_lie(  # it leaves the honest out
                running, own, thief, pay.step, job, {FRIEND: 2 * MUCH, NOBODY: 3 * MUCH}
            )

        await running.until(job, lambda view: view.state == "finished", within=240)
        await until_quit(running.client, job)
        money = await closed(running, job)
        await taken_back(running, job)
        state = await until_free(running, job)
        told = await agreed(running, job)
        assert told.channel(FRIEND).claimed == state.balances[FRIEND] == FRIENDLY
        assert told.channel(NOBODY) == Channel() and not state.balances.get(NOBODY)
        for each in accounts.values():
            leaf = told.leaf(each)
            assert told.channel(each).claimed == leaf.vested == leaf.earned > 0
        assert money.closed_at is not None
        most = money.burst + money.rate * Fraction(money.closed_at - granted_at, 3600)
        lost = await spent(running, job) - earned(told)
        assert lost == FRIENDLY
        losses = [loss_of(told, name, each) for name, each in accounts.items()]
        tell("coordinator that pays a friend", [*losses, Loss("poster", lost, int(most))])


# ---------------------------------------------------------------- a coordinator that stops for ever


@contextlib.contextmanager
def no_host(running: Stack) -> Iterator[None]:
    """The host is killed, and every one that is started again ends at once: it has no credential.

    The API has read the operator's token and goes on.
    """
    token = running.home / "keys" / "host-token"
    taken = token.rename(token.with_suffix(".taken"))
    try:
        for module in ("tallystick.host", "tallystick.coordinator", "tallystick.trainer"):
            for each in running.find(module):
                send(each, signal.SIGKILL)
        yield
    finally:
        taken.rename(token)


async def test_coordinator__stops_for_ever__what_vested_is_paid_and_the_rest_comes_back(
    tmp_path: Path,
) -> None:
    async with short_stack(tmp_path) as running:
        accounts = start_all(running, *NAMES)
        job = (await running.submit(**LONG)).job
        await running.until(job, lambda view: view.vested > 0, within=120)
        with no_host(running):
            await closed(running, job)
            for name in NAMES:
                line = await until_said(running, name, "its poster has closed it")
                assert f"our peer leaves job {job.hex()[:12]}" in line
            await taken_back(running, job)
            await until_free(running, job)
            told = await agreed(running, job)
            assert not running.find("tallystick.coordinator", job.hex())
        told = replace(told, leaves=newest_pay(running, job, NAMES))
        losses = list[Loss]()
        for name, each in accounts.items():
            leaf, channel = told.leaf(each), told.channel(each)
            assert channel.claimed == leaf.vested > 0
            assert channel.limit == channel.earned == leaf.earned > leaf.vested
            losses.append(loss_of(told, name, each, allowed=await lag_pay(running, job, each)))
        # What never vests was worked for, and is nobody's.
        losses.append(Loss("poster", await spent(running, job) - earned(told), 0))
        tell("coordinator gone for ever", losses)


# ---------------------------------------------------------------------------- budgets that run out


async def test_poster__takes_all_back_in_the_middle__agents_stop_and_all_work_is_paid(
    tmp_path: Path,
) -> None:
    async with short_stack(tmp_path) as running:
        accounts = start_all(running, *NAMES)
        job = (await running.submit(**LONG, burst=1)).job
        await running.until(job, lambda view: view.progress.step >= 3, within=120)
        first = await taken_back(running, job)
        assert first.from_job > LONG["budget"] * TOKEN // 2
        for name in NAMES:
            await until_said(running, name, "leaves no room for 2 rounds", within=120)
        view = await running.job(job)
        assert view.state == "running" and view.earned <= view.committed

        await closed(running, job)
        view = await running.settled(job, within=120)
        assert view.progress.step < LONG["steps"]
        await taken_back(running, job)
        await until_free(running, job)
        told = await agreed(running, job)
        assert view.claimed == view.vested == view.earned == earned(told) > 0
        losses = [loss_of(told, name, each) for name, each in accounts.items()]
        poster = Loss("poster", await spent(running, job) - earned(told), 0)
        tell("poster that reclaims in the middle", [*losses, poster])


def least_budget(**changes: Any) -> BaseUnits:
    """What the market takes at least: the work at the ceiling, and no room for limits beyond it."""
    job = parse_job_file(MICRO_JOB | changes)
    prepared = prepare(job)
    now = UnixSeconds(int(time.time()))
    spec = build_spec(
        job,
        prepared.config,
        poster=FRIEND,
        coordinator=NOBODY,
        salt=0,
        data=prepared.names,
        now=now,
    )
    return job_cost(spec, spec.price_ceiling)


async def test_budget__too_small_for_the_limits__work_stops_before_it_is_not_paid(
    tmp_path: Path,
) -> None:
    async with short_stack(tmp_path) as running:
        accounts = start_all(running, *NAMES)
        short = PAIR | {"steps": 12}
        budget = least_budget(**short)
        job = (await running.submit(**short | {"budget": format_tokens(budget)})).job
        for name in NAMES:
            await until_said(running, name, "leaves no room for 2 rounds", within=120)
        view = await running.job(job)
        assert view.state == "running" and view.progress.step < short["steps"]
        assert view.earned <= view.committed <= budget

        more = BaseUnits(budget // 2)
        folder = running.folder / "poster"
        folder.mkdir(exist_ok=True)
        await top_up(running.client, running.poster, job, more, folder=folder)
        view = await running.settled(job, within=240)
        assert view.progress.step >= short["steps"]
        await until_quit(running.client, job)
        await closed(running, job)
        await taken_back(running, job)
        await until_free(running, job)
        told = await agreed(running, job)
        assert view.claimed == view.earned == earned(told) > 0
        losses = [loss_of(told, name, each) for name, each in accounts.items()]
        poster = Loss("poster", await spent(running, job) - earned(told), 0)
        tell("budget too small for its limits", [*losses, poster])


# ---------------------------------------------------------------------- a member that does nothing


async def test_member__stands_still__its_unspent_limit_is_back_tail_after_its_end(
    tmp_path: Path,
) -> None:
    async with short_stack(tmp_path) as running:
        accounts = start_all(running, *NAMES, "cem")
        times = {"commit_timeout": "8s", "exchange_timeout": "8s", "lease_grace": "10s"}
        job = (await running.submit(steps=20, **PAIR | {"peers_per_stage": 3}, **times)).job
        still = await until_joined(running, job, "cem")
        agent = running.providers.pop("cem").identity
        for each in (agent, still):
            assert send(each, signal.SIGSTOP)
        view = await running.until(job, lambda view: view.state == "finished", within=300)

        await until_quit(running.client, job)
        money = await closed(running, job)
        await taken_back(running, job)
        told = await agreed(running, job)
        idle = told.channel(accounts["cem"])
        kept = idle.limit - told.leaf(accounts["cem"]).earned
        assert kept > 0 and idle.stake == STAKE
        assert await spent(running, job) == earned(told) + kept
        assert [(each.at, each.amount, each.what) for each in money.returns][-1:] == [
            (money.releasable_at, kept, "unspent")
        ]

        state = await until_free(running, job)
        assert money.releasable_at is not None
        assert await released_at(running, job, accounts["cem"]) >= money.releasable_at
        await kill_and_see(agent)
        send(still, signal.SIGKILL)  # if it has not ended with its agent
        told = await agreed(running, job)
        idle = told.channel(accounts["cem"])
        assert view.earned <= earned(told) and idle.limit == told.leaf(accounts["cem"]).earned
        assert state.balances[accounts["cem"]] == DEPOSIT + idle.claimed
        losses = [loss_of(told, name, accounts[name]) for name in NAMES]
        poster = Loss("poster", await spent(running, job) - earned(told), 0)
        tell(f"member that does nothing ({format_tokens(BaseUnits(kept))} late)", [*losses, poster])


async def until_joined(running: Stack, job: JobId, name: str) -> Any:
    """The peer of a provider, once its coordinator has taken it in."""

    async def look() -> bool | None:
        peer = running.peer_of(name, job).hex()
        joined = running.lines(running.coordinator_log(job), "peer_joined")
        return any(line["peer"] == peer for line in joined) or None

    await until(running, f"{name} started", lambda: _has_lease(running, job, name), within=120)
    await until(running, f"{name} joined", look, within=120)
    return await running.peer_process(name)


async def _has_lease(running: Stack, job: JobId, name: str) -> bool | None:
    with contextlib.suppress(AssertionError):
        return running.lease_folder(name, job).is_dir() or None
    return None
