"""Bad weather around a job's money, and what must be equal when it has passed.

`Sky` makes the blocks of a market's chain, at a base fee that it can change, and takes blocks back.
`agree` compares the escrow's events, its storage, the market's view of the job and the earnings of
accounts. `Losses` says what honest parties lost against what docs/threat-model.md allows.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from contracts.chain.connection import Block, Log
from contracts.governance.escrow import EscrowState, differences, held
from contracts.keys.store import load_wallet
from contracts.terms.amounts import format_tokens
from contracts.terms.errors import ChainUnreachable, RpcFailed, Unavailable
from contracts.terms.ids import Address, JobId
from market.bodies.money import JobMoney
from market.bodies.routes import GET_EARNINGS, GET_MONEY
from tallystick.up import json_rpc
from tallystick.up.processes import Identity, send
from tests.support.patience import patience
from tests.support.stack import Stack, is_stopped

GWEI = 10**9
BLOCK_SECONDS = 0.5
CHAIN = ("anvil", "gateway")
OTHERS = ("postgres", "redis", "api", "worker", "worker-chain", "beat", "host")
"""All services of `up` but the chain."""


# ---------------------------------------------------------------------------------------- weather


class Sky:
    """Makes the blocks of a market's chain, one each half second, at its own base fee."""

    def __init__(self, url: str, fee: int) -> None:
        self._url, self.fee = url, fee
        self.is_still = False  # no blocks are made: what is sent waits

    async def ask(self, method: str, *parameters: object) -> object:
        """Ask the node itself."""
        return await json_rpc.call(self._url, method, *parameters)

    async def blow(self) -> None:
        """Make blocks for ever."""
        while True:
            if not self.is_still:
                with contextlib.suppress(ChainUnreachable, RpcFailed):
                    if self.fee:
                        await self.ask("anvil_setNextBlockBaseFeePerGas", hex(self.fee))
                    await self.ask("evm_mine")
            await asyncio.sleep(BLOCK_SECONDS)

    async def take_back(self, depth: int) -> tuple[int, int]:
        """Replace the newest blocks by empty ones; the numbers of the first and the last."""
        head = int(str(await self.ask("eth_blockNumber")), 16)
        await self.ask("anvil_reorg", depth, [])
        return head - depth + 1, head

    async def has_waiting(self, account: Address) -> bool:
        """Whether an account has sent what no block holds yet."""
        name = f"0x{account.hex()}"
        sent = await self.ask("eth_getTransactionCount", name, "pending")
        ran = await self.ask("eth_getTransactionCount", name, "latest")
        return int(str(sent), 16) > int(str(ran), 16)


@asynccontextmanager
async def sky(running: Stack, fee: int = 0) -> AsyncIterator[Sky]:
    """Make the blocks of a market's chain until the end; 0: at the fee that follows by itself."""
    made = Sky(f"http://127.0.0.1:{running.services.ports['anvil']}", fee)
    await made.ask("evm_setAutomine", False)
    blowing = asyncio.create_task(made.blow())
    try:
        yield made
    finally:
        blowing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await blowing
        await made.ask("evm_setAutomine", True)


@asynccontextmanager
async def held_still(*identities: Identity) -> AsyncIterator[None]:
    """These processes stand still until the end."""
    for each in identities:
        assert send(each, signal.SIGSTOP)
    async with asyncio.timeout(patience(10)):
        while not all(is_stopped(each.pid) for each in identities):
            await asyncio.sleep(0.01)
    try:
        yield
    finally:
        for each in identities:
            send(each, signal.SIGCONT)


async def pass_moment(moment: float) -> None:
    """Wait until the wall's clock, by which signatures expire, is past a moment."""
    await asyncio.sleep(max(0.0, moment - time.time()))


async def end_market(running: Stack) -> None:
    """End every service of `up` but the chain, for good: none is started again."""
    supervisor = running.services._supervisor
    assert supervisor is not None
    for name in OTHERS:
        service = supervisor._services[name]
        if service.keeper:
            service.keeper.cancel()
    for name in OTHERS:
        send(running.services.identity(name), signal.SIGKILL)
    await asyncio.gather(*(supervisor._stop(supervisor._services[name]) for name in OTHERS))


# ------------------------------------------------------------------------------------- what is so


async def events_of(running: Stack, name: str, job: JobId) -> list[Log]:
    """A job's events of one kind, in the order of the chain."""
    escrow, head = running.contracts.escrow, await running.contracts.chain.head()
    logs = await escrow.events(0, head.number)
    return [log for log in logs if log.event == name and log.args.get("job") == job]


async def until_event(running: Stack, name: str, job: JobId, number: int = 1) -> list[Log]:
    """Wait until the chain has so many events of a job."""
    async with asyncio.timeout(patience(120)):
        while True:
            with contextlib.suppress(Unavailable):
                if len(found := await events_of(running, name, job)) >= number:
                    return found
            await asyncio.sleep(0.1)


async def folded(running: Stack) -> tuple[EscrowState, Block]:
    """What the events say that the escrow holds, which is what it stores and owns."""
    contracts = running.contracts
    head = await contracts.chain.head()
    times = await contracts.escrow.times(head)
    state = EscrowState(times.announce)
    for log in await contracts.escrow.events(0, head.number):
        state.apply(log.event, log.args, log.at)
    assert differences(state, await contracts.escrow.state(state, head)) == []
    assert held(state) == await contracts.token.balance(contracts.escrow.address, head)
    return state, head


async def until_money(
    running: Stack, job: JobId, holds: Callable[[JobMoney], bool], *, within: float = 60
) -> JobMoney:
    """Wait until the market says that `holds` of a job's money."""
    money = None
    try:
        async with asyncio.timeout(patience(within)):
            while True:
                with contextlib.suppress(Unavailable):
                    money = await running.client.call(GET_MONEY, job=job)
                    if holds(money):
                        return money
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"money is {money}: {running.tails()}") from None


async def agree(running: Stack, job: JobId) -> EscrowState:
    """Events = storage = the market's money of the job = earnings of its accounts."""
    async with asyncio.timeout(patience(60)):
        while True:
            state, _ = await folded(running)
            money = await running.client.whole(GET_MONEY, job=job)
            if _is_same(state, money, job):
                break
            await asyncio.sleep(0.5)
    for each in money.accounts:
        view = await running.client.call(GET_EARNINGS, account=each.account, job=job, limit=1)
        parts, channel = view.parts, state.channels[job, each.account]
        assert parts.claimed == channel.claimed == each.claimed
        assert parts.claimed + parts.vested + parts.over_limit == each.vested
        rest = parts.waiting + (parts.frozen or 0) + (parts.forfeited or 0)
        assert each.vested + rest == each.earned
    return state


def _is_same(state: EscrowState, money: JobMoney, job: JobId) -> bool:
    budget = state.budgets[job]
    told = {
        each.account: (each.limit, each.claimed, each.stake, each.end or 0)
        for each in money.accounts
    }
    ours = {
        account: (it.limit, it.claimed, it.stake, min(filter(None, (it.end, budget.closed_at)),
                                                      default=0))
        for (of, account), it in state.channels.items()
        if of == job
    }  # fmt: skip
    shown = (money.funded, money.committed, money.free, money.claimed, money.closed_at or 0)
    total = sum(it[1] for it in ours.values())
    held_for = (budget.funded, budget.committed, budget.free, total, budget.closed_at)
    return shown == held_for and {a: v for a, v in told.items() if any(v)} == {
        a: v for a, v in ours.items() if any(v)
    }


# ---------------------------------------------------------------------------------- what was lost


@dataclass(frozen=True)
class Loss:
    """What an honest party lost, against what the specification allows."""

    name: str
    due: int
    got: int
    allowed: int

    def __str__(self) -> str:
        lost, allowed = (format_tokens(each) for each in (self.due - self.got, self.allowed))
        return f"{self.name} lost {lost} of {format_tokens(self.due)} (allowed: {allowed})"


def tell_losses(scenario: str, losses: Iterable[Loss]) -> None:
    """Print one line, and require that nobody lost more than is allowed, or got too much."""
    found = list(losses)
    print(f"\n{scenario}: " + "; ".join(map(str, found)), flush=True)
    for each in found:
        assert 0 <= each.due - each.got <= each.allowed, str(each)


def account_of(running: Stack, name: str) -> Address:
    """A provider's account."""
    return load_wallet(running.folder / name / "wallet.json").account


def worked(
    running: Stack,
    job: JobId,
    state: EscrowState,
    earned: Mapping[Address, int],
    allowed: Mapping[str, int] | None = None,
) -> list[Loss]:
    """What providers were paid of what they earned."""
    found = []
    for name in sorted(running.providers):
        account = account_of(running, name)
        got = state.channels[job, account].claimed
        found.append(Loss(name, earned[account], got, (allowed or {}).get(name, 0)))
    return found


async def earned_by(running: Stack, job: JobId) -> dict[Address, int]:
    """What the sealed work of a job is worth, worked out from its messages."""
    pay = (await running.work(job)).pay
    return {account: leaf.earned for account, leaf in pay.items()}


def said(running: Stack, *words: str) -> Any:
    """What `tallystick WORDS -o json` answers to anybody."""
    done = subprocess.run(
        (sys.executable, "-m", "tallystick", *words, "-o", "json"),
        env=os.environ | running.environment("anyone"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout)
