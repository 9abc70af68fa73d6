"""Who has what in a job: by the chain, by all that show it, and what each honest party lost.

`agreed` waits until the escrow's events, its storage, `/money`, the job's view and the earnings of
everybody say the same. `tell` prints what each party lost beside what docs/threat-model.md leaves
open, and fails where that is more. Amounts are base units.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from contracts.chain.blocks import Block, Log
from contracts.chain.connection import Call, Receipt
from contracts.governance.escrow import Budget, Channel, EscrowState, differences, held
from contracts.governance.limits import lag_of, planned_round
from contracts.governance.pay import PayLeaf
from contracts.keys.store import load_or_create_wallet
from contracts.terms.amounts import BaseUnits, format_tokens
from contracts.terms.errors import Unavailable
from contracts.terms.ids import Address, JobId
from contracts.terms.messages import JobSpec
from contracts.terms.signatures import decode_signed, expect
from market.bodies.money import JobMoney
from market.bodies.routes import (
    GET_ACCOUNT,
    GET_EARNINGS,
    GET_MONEY,
    GET_NETWORK,
    GET_PAY,
)
from tallystick.gym.registry import MODULE
from tallystick.provider.folder import load_pay
from tallystick.sdk.escrow import Known, close, reclaim, told_job, until_closed
from tallystick.sdk.moved import Reclaimed
from tallystick.sdk.on_chain import OnChain, on_chain
from tests.support.patience import patience
from tests.support.stack import Stack, stack

_LOOK_SECONDS = 0.25
T = TypeVar("T")


@dataclass(frozen=True)
class Told:
    """A job as all who tell of it agree."""

    job: JobId
    state: EscrowState
    leaves: Mapping[Address, PayLeaf]  # of the newest seal

    @property
    def budget(self) -> Budget:
        """What the escrow holds for the job."""
        return self.state.budgets[self.job]

    def channel(self, account: Address) -> Channel:
        """What it holds for an account there."""
        return self.state.channels.get((self.job, account), Channel())

    def leaf(self, account: Address) -> PayLeaf:
        """What the newest seal says of an account."""
        return self.leaves.get(account, PayLeaf(account, BaseUnits(0), BaseUnits(0)))

    @property
    def earned(self) -> int:
        """By all, by the newest seal."""
        return sum(leaf.earned for leaf in self.leaves.values())


def short_stack(folder: Path, hooks: str = MODULE) -> contextlib.AbstractAsyncContextManager[Stack]:
    """A market whose escrow has times so short that a test waits for the tail."""
    return stack(folder, forked=True, hooks=hooks, margin=40, announce=1, execute=2, tail=45)


# ------------------------------------------------------------------------------------- agreeing


async def by_events(running: Stack) -> tuple[EscrowState, Block]:
    """What the escrow's events make of it, which is what it stores and owns."""
    escrow, chain = running.contracts.escrow, running.contracts.chain
    head = await chain.head()
    known = EscrowState((await escrow.times(head)).announce)
    for log in await escrow.events(0, head.number):
        known.apply(log.event, log.args, log.at)
    assert differences(known, await escrow.state(known, head)) == []
    owned = await running.contracts.token.balance(escrow.address, head)
    assert held(known) == owned
    return known, head


async def agreed(running: Stack, job: JobId) -> Told:
    """The job, once chain, pages and earnings say the same."""
    found, ends = list[str](), time.monotonic() + patience(60)
    while time.monotonic() < ends:
        with contextlib.suppress(Unavailable):
            told = await _told(running, job)
            if not (found := await _disagreements(running, told)):
                return told
        await asyncio.sleep(_LOOK_SECONDS)
    raise AssertionError(f"{found}: {running.tails()}")


async def _told(running: Stack, job: JobId) -> Told:
    state, _ = await by_events(running)
    pay = await running.client.call(GET_PAY, job=job)
    leaves = {each.account: PayLeaf(each.account, each.earned, each.vested) for each in pay.leaves}
    return Told(job, state, leaves)


async def _disagreements(running: Stack, told: Told) -> list[str]:
    budget, terms = told.budget, told.state.terms[told.job]
    money = await running.client.whole(GET_MONEY, job=told.job)
    view = await running.job(told.job)
    ours = {account: it for (job, account), it in told.state.channels.items() if job == told.job}
    sums = {
        "funded": budget.funded,
        "committed": budget.committed,
        "free": budget.free,
        "claimed": sum(each.claimed for each in ours.values()),
        "earned": told.earned,
        "vested": sum(leaf.vested for leaf in told.leaves.values()),
    }
    pairs: list[tuple[str, object, object]] = [
        ("committed is all limits", budget.committed, sum(it.limit for it in ours.values())),
        ("accounts", {each.account for each in money.accounts}, set(ours)),
        ("closed_at", money.closed_at or 0, budget.closed_at),
        ("terms", (money.poster, money.burst, money.rate), (terms.poster, terms.burst, terms.rate)),
    ]
    for name, amount in sums.items():
        pairs.append((f"money {name}", getattr(money, name), amount))
        pairs.append((f"job {name}", getattr(view, name), amount))
    for row in money.accounts:
        it, leaf = told.channel(row.account), told.leaf(row.account)
        end = min((at for at in (it.end, budget.closed_at) if at), default=None)
        shown = (row.limit, row.claimed, row.stake, row.end, row.earned, row.vested)
        stored = (it.limit, it.claimed, it.stake, end, leaf.earned, leaf.vested)
        pairs.append((f"money of {row.account.hex()}", shown, stored))
        pairs += await _of_account(running, told, row.account)
    return [f"{what}: {shown} and {stored}" for what, shown, stored in pairs if shown != stored]


async def _of_account(
    running: Stack, told: Told, account: Address
) -> list[tuple[str, object, object]]:
    name, it, leaf = account.hex(), told.channel(account), told.leaf(account)
    seen = await running.client.whole(GET_EARNINGS, account=account, job=told.job)
    parts = seen.parts
    lost = (parts.frozen or 0) + (parts.forfeited or 0)
    kept = max(it.claimed, min(leaf.vested, it.limit))
    shown = (parts.claimed, parts.vested, parts.over_limit, parts.waiting + lost)
    stored = (
        it.claimed,
        kept - it.claimed,
        max(0, leaf.vested - max(it.limit, it.claimed)),
        leaf.earned - leaf.vested,
    )
    free = (await running.client.call(GET_ACCOUNT, account=account)).free
    return [
        (f"earnings of {name}", shown, stored),
        (f"lines of {name}", sum(line.amount for line in seen.lines), leaf.earned),
        (f"free of {name}", free, told.state.balances.get(account, 0)),
    ]


# --------------------------------------------------------------------------------------- waiting


async def until(
    running: Stack, what: str, look: Callable[[], Awaitable[T | None]], *, within: float = 60.0
) -> T:
    """What `look` finds, once it finds something."""
    ends = time.monotonic() + patience(within)
    while time.monotonic() < ends:
        with contextlib.suppress(Unavailable):
            if (found := await look()) is not None:
                return found
        await asyncio.sleep(_LOOK_SECONDS)
    raise AssertionError(f"never {what}: {running.tails()}")


async def until_money(running: Stack, job: JobId, holds: Callable[[JobMoney], bool]) -> JobMoney:
    """A job's money, once the market says what `holds` of it."""

    async def look() -> JobMoney | None:
        money = await running.client.call(GET_MONEY, job=job)
        return money if holds(money) else None

    return await until(running, "the money that was waited for", look)


async def events_of(running: Stack, name: str, job: JobId) -> list[Log]:
    """A job's events of one kind, in the order of the chain."""
    head = await running.contracts.chain.head()
    logs = await running.contracts.escrow.events(0, head.number)
    return [log for log in logs if log.event == name and log.args.get("job") == job]


async def until_event(running: Stack, name: str, job: JobId) -> Log:
    """The first event of a kind in a job."""

    async def look() -> Log | None:
        return next(iter(await events_of(running, name, job)), None)

    return await until(running, name, look, within=120)


async def until_free(running: Stack, job: JobId) -> EscrowState:
    """The escrow, `tail` after a job's close: nobody has a stake there, the poster has the rest."""
    times = await running.contracts.escrow.times(await running.contracts.chain.head())

    async def look() -> EscrowState | None:
        state, _ = await by_events(running)
        ours = [it for (of, _), it in state.channels.items() if of == job]
        idle = all(it.stake == 0 and it.limit == max(it.claimed, it.earned) for it in ours)
        return state if idle and not state.budgets[job].free else None

    return await until(running, "free again", look, within=times.tail + 60)


async def until_said(running: Stack, provider: str, words: str, *, within: float = 60.0) -> str:
    """The line of a provider's agent that holds these words."""
    log = running.folder / f"provider-{provider}.log"

    async def look() -> str | None:
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return next((line for line in lines if words in line), None)

    return await until(running, f"{provider} says {words!r}", look, within=within)


# ---------------------------------------------------------------------------------------- people


def account_of(running: Stack, name: str) -> Address:
    """A provider's wallet."""
    return load_or_create_wallet(running.folder / name / "wallet.json").account


def start_all(running: Stack, *names: str, slowdown: float = 1.0) -> dict[str, Address]:
    """Providers, and their accounts."""
    for name in names:
        running.start_provider(name, slowdown=slowdown)
    return {name: account_of(running, name) for name in names}


@contextlib.asynccontextmanager
async def stranger(running: Stack) -> AsyncIterator[OnChain]:
    """Somebody with gas and without any part in a job."""
    folder = running.folder / "stranger"
    folder.mkdir(exist_ok=True)
    network = await running.client.call(GET_NETWORK)
    async with on_chain(
        network, load_or_create_wallet(folder / "wallet.json"), folder, print
    ) as own:
        await own.fund(running.client, BaseUnits(0), f"gas-{own.wallet.account.hex()}-0")
        yield own


async def sent(own: OnChain, *calls: Call) -> Receipt:
    """Calls in one transaction of this person, which were run."""
    number = await own.contracts.chain.nonce(own.wallet.account)
    return await own.sender.send(f"test-{number}", own.contracts.escrow.together(calls))


async def closed(running: Stack, job: JobId) -> JobMoney:
    """The job after its poster's close."""
    await close(running.client, running.poster, await told_job(running.client, job))
    return await until_closed(running.client, job)


async def taken_back(running: Stack, job: JobId) -> Reclaimed:
    """What the poster takes of a job by its own transaction: all that is not committed."""
    known: Known = await told_job(running.client, job)
    folder = running.folder / "poster"
    return await reclaim(running.client, running.poster, known, None, folder=folder, say=print)


async def emptied(running: Stack, job: JobId) -> Told:
    """The job as all agree, once the poster has the rest of it and nobody has a stake there."""
    await taken_back(running, job)
    await until_free(running, job)
    return await agreed(running, job)


async def spent(running: Stack, job: JobId) -> int:
    """What a poster of one job has less than it was given, all that it can have back at once."""
    state, head = await by_events(running)
    account, token = running.poster.account, running.contracts.token
    here = await token.balance(account, head) + state.balances.get(account, 0)
    return await token.given(account, head) - here - state.budgets[job].free


async def lag_pay(running: Stack, job: JobId, account: Address) -> tuple[int, int]:
    """What an account earns in a round, as the job's plan has it, and in LAG.

    So much it may lose when no seal comes any more: that of LAG, and the round in work.
    """
    view = await running.job(job)
    spec = expect(decode_signed(view.signed), JobSpec).message
    one = planned_round(spec, [each.price for each in view.leases if each.account == account])
    return one, lag_of(spec) * one


async def released_at(running: Stack, job: JobId, account: Address) -> int:
    """When an account's stake and unspent limit came free."""
    released = await events_of(running, "Released", job)
    (at,) = [log.at for log in released if log.args["account"] == account]
    return at


def newest_pay(running: Stack, job: JobId, names: Iterable[str]) -> Mapping[Address, PayLeaf]:
    """By the newest seal that a provider keeps: the market may never have seen it."""
    kept = [load_pay(running.lease_folder(name, job)) for name in names]
    newest = max((pay for pay in kept if pay is not None), key=lambda pay: pay.seal.message.step)
    return {leaf.account: leaf for leaf in newest.pay}


# ---------------------------------------------------------------------------------------- losses


@dataclass(frozen=True)
class Loss:
    """What an honest party lost, and the most that it may by the specification, section 5."""

    who: str
    lost: int
    allowed: int


def loss_of(told: Told, who: str, account: Address, *, allowed: int = 0) -> Loss:
    """What an account has earned by the newest seal and was not paid."""
    return Loss(who, told.leaf(account).earned - told.channel(account).claimed, allowed)


async def losses_of(
    running: Stack, told: Told, accounts: Mapping[str, Address], **allowed: int
) -> list[Loss]:
    """Of providers, and of the poster for whom nobody worked; `allowed` by name, else nothing."""
    found = [
        loss_of(told, name, each, allowed=allowed.get(name, 0)) for name, each in accounts.items()
    ]
    lost = await spent(running, told.job) - told.earned
    return [*found, Loss("poster", lost, allowed.get("poster", 0))]


def tell(scenario: str, losses: Iterable[Loss]) -> None:
    """Print a line; fail where somebody lost more than is allowed."""
    all_losses = list(losses)
    words = "; ".join(
        f"{each.who} lost {_tokens(each.lost)} of at most {_tokens(each.allowed)}"
        for each in all_losses
    )
    print(f"LOSSES {scenario}: {words}")
    assert all(each.lost <= each.allowed for each in all_losses)


def _tokens(amount: int) -> str:
    sign = "-" if amount < 0 else ""
    return sign + format_tokens(BaseUnits(abs(amount)))
