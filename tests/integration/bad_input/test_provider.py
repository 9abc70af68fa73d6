"""`provider start` where it cannot work, and stopped while it does: one line, nothing left running.

The market is the real API over the memory twins; the node is one on which everybody is rich.
"""

import asyncio
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch

from contracts.keys.store import load_or_create_wallet, load_wallet
from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from contracts.terms.typed_data import Domain
from market.bodies.routes import GET_NETWORK
from market.service.rows import OfferRow
from tallystick.chains import NOTE, chain_name
from tallystick.cli.main import EXIT_CODES
from tallystick.gym.registry import MODULE
from tallystick.provider.folder import DRAIN_SIGNAL, ProviderFolder, agent_pid
from tallystick.provider.measured import Measured, dependencies
from tallystick.resources import Resources
from tallystick.sdk.client import MarketClient
from tallystick.up.processes import RUN_ID, environment_of, running
from tests.integration.bad_input.servers import (
    NODE_HASH,
    empty_world,
    market_at_url,
    market_in_a_thread,
    wealthy_node,
)
from tests.integration.bad_input.verbs import Said, call, complaint
from tests.integration.up.running import eventually
from tests.support.history import DOMAIN
from tests.support.market_world import SIGNED_SECONDS, World, market_spec
from tests.support.patience import patience
from tests.support.stack import ROOT
from training.stages.exact import device_class

PEER, PROBE_MODULE = "tallystick.provider.peer", "tallystick.provider.probe"
OURS = secrets.token_hex(4)  # in the run ids: other runs of these tests have their own


def now() -> int:
    return int(time.time())


def measured(home: Path) -> Path:
    """A provider's home on a machine that was measured before."""
    home.mkdir(parents=True)
    write_probe(home)
    return home


def write_probe(home: Path) -> None:
    found = Measured(
        device="cpu",
        device_class=device_class(torch.device("cpu")),
        memory_bytes=2**40,
        flops_per_second=10**10,
        depends_on=dependencies(Resources()),
    )
    (home / "probe.json").write_text(found.model_dump_json())


def account_of(home: Path) -> Address:
    """The account of a home."""
    return load_or_create_wallet(home / "wallet.json").account


def free_spec() -> JobSpec:
    """A job that asks for no stake, as on the node's chain nobody has bonded any."""
    return market_spec(
        deadline=UnixSeconds(now() + 3600),
        open_by=UnixSeconds(now() + SIGNED_SECONDS),
        min_stake=BaseUnits(0),
    )


def line_of(home: Path, market: str) -> list[str]:
    return ["provider", "start", "--ask", "1000", "--home", str(home), "--market", market]


def start_here(home: Path, market: str) -> Said:
    return call(line_of(home, market), {})


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    with wealthy_node(DOMAIN) as url:
        yield url


# ----------------------------------------------------------------------------------- cannot start


ELSEWHERE = Domain(DOMAIN.chain_id + 1, DOMAIN.escrow)


@pytest.mark.parametrize(
    ("apart", "chain", "more", "code", "words"),
    [
        (-3600, DOMAIN, (), "expired", "set the clock (NTP)"),
        (3600, DOMAIN, (), "expired", "set the clock (NTP)"),
        (0, ELSEWHERE, (), "refused", f"a node of chain {ELSEWHERE.chain_id}"),
        (0, ELSEWHERE, (), "refused", f"the contracts are on chain {DOMAIN.chain_id}"),
        (0, DOMAIN, ("--audit",), "insufficient_stake", ""),  # the market knows of no deposit
        (
            0,
            DOMAIN,
            ("--stake", "5000000"),
            "insufficient_stake",
            "4000000.000000 more are to be deposited: send tokens",
        ),
    ],
)
def test_start__clock_chain_or_deposit_is_wrong__is_one_line_that_says_what_to_do(
    apart: int, chain: Domain, more: tuple[str, ...], code: str, words: str, tmp_path: Path
) -> None:
    with (
        wealthy_node(chain) as node,
        market_in_a_thread(empty_world(now() + apart, node)) as market,
    ):
        said = call([*line_of(measured(tmp_path / "home"), market), *more], {})

    assert said.exit_code == EXIT_CODES[code]
    assert words in complaint(said)


@pytest.mark.parametrize(
    ("words", "hooks", "problem"),
    [
        ("--ask 1000 --behaviour stale", "0", "TALLYSTICK_HOOKS="),
        ("--ask 1000 --behaviour lame", MODULE, "lame"),
        ("", MODULE, "--ask PRICE for this machine, --audit, or both"),
    ],
)
def test_start__adversary_that_cannot_be_played_or_nothing_offered__makes_nothing(
    words: str, hooks: str, problem: str, tmp_path: Path
) -> None:
    line = ["provider", "start", "--home", str(tmp_path / "home"), *words.split()]

    said = call(line, {"TALLYSTICK_HOOKS": hooks})

    assert said.exit_code == EXIT_CODES["refused"]
    assert problem in complaint(said)
    assert not (tmp_path / "home").exists()


def test_start__home_of_another_agent__is_a_conflict_that_names_its_pid(tmp_path: Path) -> None:
    folder = ProviderFolder(measured(tmp_path / "home"))
    try:
        said = start_here(folder.home, "http://127.0.0.1:1")
    finally:
        folder.close()

    assert said.exit_code == EXIT_CODES["conflict"]
    assert f"pid {os.getpid()} already uses" in complaint(said)


TRANSACTIONS = f"transactions-{DOMAIN.chain_id}-{NODE_HASH.hex()[:16]}.db"


async def chain_of(market: str) -> str:
    """Name of the chain of a market."""
    async with MarketClient(market) as client:
        return chain_name(await client.call(GET_NETWORK))


@pytest.mark.parametrize("name", ["wallet.json", "agent.key", TRANSACTIONS, "offer.msgpack"])
def test_start__file_of_its_home_is_damaged__is_named_and_kept(
    name: str, tmp_path: Path, node: str
) -> None:
    home = measured(tmp_path / "home")
    (home / name).write_bytes(b"damaged")
    with market_in_a_thread(empty_world(now(), node)) as market:
        (home / NOTE).write_text(asyncio.run(chain_of(market)))
        said = start_here(home, market)

    assert said.exit_code == EXIT_CODES["refused"]
    assert name in complaint(said)
    assert (home / name).read_bytes() == b"damaged"


# -------------------------------------------------------------------------------------- is stopped


class Agent:
    """A running `provider start`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[str] = []

    async def until(self, words: str, times: int = 1) -> None:
        """Wait until lines with these words were said so often."""
        assert self.process.stderr is not None
        async with asyncio.timeout(patience(60)):
            while sum(words in line for line in self.said) < times:
                line = await self.process.stderr.readline()
                assert line, self.said
                self.said.append(line.decode().strip())

    async def end(self, number: signal.Signals) -> int:
        """Signal it and wait for its end; its exit code."""
        self.process.send_signal(number)
        async with asyncio.timeout(patience(30)):
            _, rest = await self.process.communicate()
        self.said += rest.decode().splitlines()
        assert self.process.returncode is not None
        return self.process.returncode


@asynccontextmanager
async def agent(
    home: Path, market: str, run_id: str, *more: str, prefix: tuple[str, ...] = ()
) -> AsyncIterator[Agent]:
    process = await asyncio.create_subprocess_exec(
        *(*prefix, sys.executable, "-m", "tallystick", *line_of(home, market), *more),
        cwd=ROOT,
        env={
            **os.environ,
            RUN_ID: f"{run_id}-{OURS}",
            "TALLYSTICK_HOME": str(home.parent),  # shares the machine with nobody else's agents
        },
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        # These tests may run under nohup(1), which an agent would heed.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    try:
        yield Agent(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@asynccontextmanager
async def working(world: World) -> AsyncIterator[None]:
    """The market clears, settles and so on meanwhile, and its clock runs."""

    async def work() -> None:
        while True:
            world.chain.now = now()
            await world.tick()
            await asyncio.sleep(0.05)

    task = asyncio.create_task(work())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def offers(world: World) -> list[OfferRow]:
    return await world.rows(OfferRow)


def left(run_id: str) -> list[int]:
    """Processes that carry a run's id."""
    ours = f"{run_id}-{OURS}"
    return [one.pid for one in running() if environment_of(one.pid).get(RUN_ID) == ours]


async def child_of(run_id: str, module: str = PEER) -> None:
    """Wait until the agent of this run has a child, which has become what it is to run.

    Stopped before that it has not asked the kernel yet to die with its parent.
    """
    async with asyncio.timeout(patience(60)):
        while not any(_words(pid)[1:3] == ["-m", module] for pid in left(run_id)):
            await asyncio.sleep(0.02)


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


async def test_start__ctrl_c_with_a_peer_at_work__leaves_nothing_and_the_next_resumes(
    tmp_path: Path, node: str
) -> None:
    home, world = measured(tmp_path / "home"), empty_world(now(), node)
    account = account_of(home)
    await world.register()

    async with market_at_url(world) as market, working(world):
        async with agent(home, market, "ctrl-c") as first:
            await first.until("offering at 1000.000000 tokens/PFLOP")
            await world.post(free_spec())
            await first.until("peer of lease")
            await child_of("ctrl-c")
            assert await first.end(signal.SIGINT) == 0
        assert first.said[-1].endswith("Z stopped; the same command resumes")
        assert left("ctrl-c") == []

        async with agent(home, market, "again", "--ask", "2000") as second:  # for the next job
            await second.until("peer of lease")
            assert [line for line in second.said if "accepted" in line] == []
            assert await second.end(signal.SIGTERM) == 0
        assert left("again") == []

        [key] = home.glob("leases/*/session.key")
        key.write_bytes(b"damaged")
        async with agent(home, market, "damaged") as third:
            await third.until("a session key has 32 bytes")  # told once; other leases go on
            assert await third.end(signal.SIGHUP) == 0  # its terminal was closed
        assert len([line for line in third.said if "session key" in line]) == 1
        assert "terminal was closed (SIGHUP)" in third.said[-2]
        assert "terminal was closed" in (home / "logs" / "agent.log").read_text()

    peers = [[line[21:] for line in each.said if "peer of" in line] for each in (first, second)]
    assert peers[0] == peers[1]  # of the same lease
    assert [row.account for row in await offers(world)] == [account]
    assert load_wallet(home / "wallet.json").account == account


async def test_start__ctrl_c_twice_and_a_peer_that_hangs__ends_at_once_with_its_peer(
    tmp_path: Path, node: str
) -> None:
    home, world = measured(tmp_path / "home"), empty_world(now(), node)
    await world.register()
    async with (
        market_at_url(world) as market,
        working(world),
        agent(home, market, "hangs", "--drain", "1h") as first,
    ):
        await first.until("offering at")
        await world.post(free_spec())
        await child_of("hangs")
        [peer] = [pid for pid in left("hangs") if pid != first.process.pid]
        os.kill(peer, signal.SIGSTOP)

        first.process.send_signal(signal.SIGINT)
        await first.until("peers leave their jobs, within 3600 s")
        assert await first.end(signal.SIGINT) == 0

    assert first.said[-1].endswith("Z stopped; the same command resumes")
    eventually(lambda: left("hangs") == [], within=5, what="nothing is left")


@pytest.mark.nightly
async def test_start__offer_half_over_or_asked_otherwise__is_taken_back_for_a_new_one(
    tmp_path: Path, node: str
) -> None:
    home, world = measured(tmp_path / "home"), empty_world(now(), node)

    async with market_at_url(world) as market, working(world):
        async with agent(home, market, "short", "--window", "2s") as first:
            await first.until("offering at 1000.000000", times=2)
            assert await first.end(signal.SIGINT) == 0
        async with agent(home, market, "dearer", "--ask", "2000") as second:
            await second.until("offering at 2000.000000")
            assert await second.end(signal.SIGINT) == 0
        await _goes_on_without_its_starter(home, market)

    told = sorted(await offers(world), key=lambda row: row.expires_at)
    assert [row.withdrawn for row in told] == [True] * (len(told) - 1) + [False]
    assert told[-1].price == 2 * told[0].price


async def _goes_on_without_its_starter(home: Path, market: str) -> None:
    """The same with --detach: the command ends, its agent offers until it is drained."""
    line = (*line_of(home, market), "--ask", "2000", "--detach")
    variables = {**os.environ, "TALLYSTICK_HOME": str(home.parent)}
    starting = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tallystick", *line, "-o", "json"),
        cwd=ROOT,
        env=variables,
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await starting.communicate()
    pid = json.loads(said)["pid"]
    try:
        assert agent_pid(home) == pid and os.getsid(pid) == pid != os.getsid(0)
        assert "offering at 2000.000000" in (home / "logs" / "agent.log").read_text()
    finally:
        os.kill(pid, DRAIN_SIGNAL)
    async with asyncio.timeout(patience(30)):
        while agent_pid(home) is not None:
            await asyncio.sleep(0.02)


@pytest.mark.nightly  # it measures, with torch
async def test_start__ctrl_c_while_it_measures__is_a_clean_end(tmp_path: Path) -> None:
    async with (
        market_at_url(empty_world(now())) as market,
        agent(tmp_path / "home", market, "measuring") as first,
    ):
        await child_of("measuring", PROBE_MODULE)
        assert await first.end(signal.SIGINT) == 0

    assert [line[21:] for line in first.said] == ["stopped; the same command resumes"]
    assert left("measuring") == []
