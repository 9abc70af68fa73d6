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
from contracts.governance.escrow import BURN, Channel
from contracts.governance.pay import PayLeaf
from contracts.keys.store import load_wallet
from contracts.keys.wallet import Wallet
from contracts.terms.amounts import BASE_UNITS_PER_TOKEN, BaseUnits, format_tokens
from contracts.terms.escrow_messages import Grant, Limit
from contracts.terms.ids import Address, JobId
from contracts.terms.moments import UnixSeconds
from market.bodies.routes import GET_PAY
from market.domain.sizes import job_cost
from tallystick.host.folder import wallet_path
from tallystick.sdk.escrow import told_job, until_quit
from tallystick.sdk.job_file import parse_job_file
from tallystick.sdk.job_spec import build_spec, prepare
from tallystick.sdk.on_chain import OnChain, top_up
from tallystick.up.processes import send
from tests.support.history import seal_over
from tests.support.leaving_out import Lie, tell_lie
from tests.support.money_story import (
    Loss,
    agreed,
    closed,
    emptied,
    lag_pay,
    losses_of,
    newest_pay,
    released_at,
    sent,
    short_stack,
    spent,
    start_all,
    stranger,
    taken_back,
    tell,
    until,
    until_free,
    until_said,
)
from tests.support.stack import MICRO_JOB, Stack, kill_and_see

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]
TOKEN = BASE_UNITS_PER_TOKEN
DEPOSIT, STAKE = 10 * TOKEN, 2 * TOKEN
NAMES = ("ann", "bob")
PAIR: dict[str, Any] = {"peers_per_stage": 2, "min_stake": 2, "budget": 40}
LONG: dict[str, Any] = PAIR | {"steps": 600, "budget": 100}
"""Longer than the test, and worth more than is ever granted at once."""
SLOWDOWN = 50.0
"""A round takes longer than an agent's look at it."""
FRIEND, NOBODY = Address(b"\xf1" * 20), Address(b"\xf2" * 20)
FRIENDLY, MUCH = BaseUnits(3 * TOKEN), BaseUnits(1000 * TOKEN)


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
    tree = PayTree(tuple(leaves))
    seal = seal_over(job, step, tree)
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
        told = await emptied(running, job)
        assert told.channel(FRIEND).claimed == told.state.balances[FRIEND] == FRIENDLY
        assert told.channel(NOBODY) == Channel() and not told.state.balances.get(NOBODY)
        for each in accounts.values():
            leaf = told.leaf(each)
            assert told.channel(each).claimed == leaf.vested == leaf.earned > 0
        assert money.closed_at is not None
        most = money.burst + money.rate * Fraction(money.closed_at - granted_at, 3600)
        losses = await losses_of(running, told, accounts, poster=int(most))
        assert losses[-1].lost == FRIENDLY
        tell("coordinator that pays a friend", losses)


# ---------------------------------------------------------------- a coordinator that stops for ever


@contextlib.contextmanager
def no_host(running: Stack) -> Iterator[None]:
    """The host is killed, and every one that is started again ends at once: it has no credential.

    The API has read the operator's token and goes on.
    """
    token = running.home / "keys" / "host-token"
    taken = token.rename(token.with_suffix(".taken"))
    try:
        for module in ("tallystick.host", "tallystick.coordinator"):
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
            told = await emptied(running, job)
            assert not running.find("tallystick.coordinator", job.hex())
        told = replace(told, leaves=newest_pay(running, job, NAMES))
        for each in accounts.values():
            leaf, channel = told.leaf(each), told.channel(each)
            assert channel.claimed == leaf.vested > 0
            assert channel.limit == channel.earned == leaf.earned > leaf.vested
        # What never vests was worked for, and is nobody's: the poster lost none of it.
        lag = {name: (await lag_pay(running, job, each))[1] for name, each in accounts.items()}
        tell("coordinator gone for ever", await losses_of(running, told, accounts, **lag))


# --------------------------------------------------------- a coordinator that leaves out one member


@pytest.mark.parametrize("lie", ["pay", "work"])
async def test_coordinator__leaves_out_one_member__it_stops_and_newest_honest_seals_are_paid(
    lie: Lie, tmp_path: Path
) -> None:
    async with short_stack(tmp_path, "tests.support.leaving_out") as running:
        accounts = start_all(running, *NAMES, slowdown=SLOWDOWN)
        # Who is left out rests 2, 4, 8 and more rounds, after each wait for its claim.
        job = (await running.submit(**LONG, vesting_window=1, commit_timeout="5s")).job
        view = await running.until(job, lambda view: view.vested > 0, within=120)
        step = view.progress.step + 2
        tell_lie(running.job_folder(job), lie, accounts["ann"], step)
        logs = {name: running.peer_log(name, job) for name in NAMES}
        if lie == "pay":  # nobody can derive such a seal: all refuse it, the market too
            for log in logs.values():
                refused = await running.wait_line(log, "seal_refused", within=120)
                assert refused["reason"].startswith("pay_root: the seal says something else")
            refusal = "the market refused its coordinator's messages: invalid_seal: pay_root"
            await running.until(job, lambda view: refusal in (view.failure or ""), within=60)
        else:  # nobody can see it but who worked
            await until_said(running, "ann", "rounds was sealed", within=240)
            for log in logs.values():
                assert not running.lines(log, "seal_refused")
        await closed(running, job)
        if lie == "work":  # bob sees it through
            await running.settled(job, within=120)
        else:
            for name in NAMES:
                await until_said(running, name, "its poster has closed it")
        told = await emptied(running, job)

        told = replace(told, leaves=newest_pay(running, job, NAMES))
        losses = [Loss("poster", await spent(running, job) - told.earned, 0)]
        for name, each in accounts.items():
            leaf, (one, lag) = told.leaf(each), await lag_pay(running, job, each)
            assert told.channel(each).claimed == leaf.vested > 0
            assert told.state.balances[each] == DEPOSIT + leaf.vested  # the stake is back, too
            lost = leaf.earned - leaf.vested
            if (name, lie) == ("ann", "work"):  # what no seal says that it did
                bound = {line["step"] for line in running.lines(logs[name], "claim_stored")}
                lost += one * len([number for number in bound if number >= step])
            losses.append(Loss(name, lost, lag + one))
        assert BURN not in told.state.balances
        tell(f"coordinator that leaves out the {lie} of one", losses)


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
        told = await emptied(running, job)
        assert view.claimed == view.vested == view.earned == told.earned > 0
        tell("poster that reclaims in the middle", await losses_of(running, told, accounts))


def least_budget(data: Path, **changes: Any) -> BaseUnits:
    """What the market takes at least: the work at the ceiling, and no room for limits beyond it."""
    job = parse_job_file(MICRO_JOB | changes)
    prepared = prepare(job, data)
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
        budget = least_budget(tmp_path / "data", **short)
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
        told = await emptied(running, job)
        assert view.claimed == view.earned == told.earned > 0
        tell("budget too small for its limits", await losses_of(running, told, accounts))


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
        assert await spent(running, job) == told.earned + kept
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
        assert view.earned <= told.earned and idle.limit == told.leaf(accounts["cem"]).earned
        assert state.balances[accounts["cem"]] == DEPOSIT + idle.claimed
        story = f"member that does nothing ({format_tokens(BaseUnits(kept))} late)"
        del accounts["cem"]
        tell(story, await losses_of(running, told, accounts))


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
