"""A whole market for tests: `up`, providers as processes, jobs through the SDK, kills by name.

Everything is in the test's folder and carries its run id; leaving the block leaves no process.
Nothing sleeps to be on time: a test waits for a line in a log, an answer of the API, or the chain.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from contracts.chain.connection import ChainConnection
from contracts.chain.contracts import Contracts, bind
from contracts.chain.deployment import load_deployment
from contracts.keys.store import load_or_create_session, load_or_create_wallet
from contracts.keys.wallet import Wallet
from contracts.terms.errors import NotFound, Unavailable
from contracts.terms.ids import JobId, PeerId
from contracts.terms.messages import Offer, Seal
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import decode_signed, expect
from contracts.terms.typed_data import Domain
from market.bodies.jobs import JobView
from market.bodies.offers import Withdrawal
from market.bodies.routes import DELETE_OFFER, GET_JOB, GET_NETWORK, GET_PAY
from market.bodies.signing import withdrawal_digest
from tallystick.demo.shares import JobWork, read_work
from tallystick.gym.registry import MODULE
from tallystick.provider.folder import agent_session, load_signed
from tallystick.sdk.client import MarketClient
from tallystick.sdk.job_file import parse_job_file
from tallystick.sdk.submit import Consent, Submitted, submit
from tallystick.up import child as children
from tallystick.up.child import Child, Start
from tallystick.up.data_folder import DataFolder
from tallystick.up.forkserver import launch
from tallystick.up.processes import (
    RUN_ID,
    SERVICE,
    Identity,
    environment_of,
    is_alive,
    running,
    send,
)
from tallystick.up.settings import UpSettings
from tallystick.up.stack import Services
from tests.support.anvil import FAST_TIMES
from tests.support.corpora import write_blobs
from tests.support.patience import patience

ROOT = Path(__file__).resolve().parents[2]
HOOKS = "TALLYSTICK_HOOKS"
MICRO_JOB: dict[str, Any] = {
    "name": "micro",
    "recipe": "micro",
    "budget": 10,
    "price_ceiling": 2_000_000,
    "deadline": "1h",
    "checking": "off",
    "checkpoint_every": 4,
    "rate": 100_000,  # it is over in seconds, and often posted before anybody offers
}
ASK = "1000000"  # tokens per PFLOP: a micro job is small, its amounts should not be
_POLL_SECONDS = 0.05


@dataclass
class Stack:
    """A running market and its people."""

    folder: Path
    services: Services
    client: MarketClient
    contracts: Contracts
    run_id: str
    providers: dict[str, Child] = field(default_factory=dict)
    start: Start = children.start  # of agents

    @property
    def home(self) -> Path:
        """Data folder of `up`."""
        return self.folder / "market"

    @property
    def poster(self) -> Wallet:
        """Who posts the jobs."""
        return load_or_create_wallet(self.folder / "poster.json")

    def start_provider(
        self,
        name: str,
        *,
        ask: str | None = ASK,
        stake: str = "10",
        claim_at: str = "10",
        slowdown: float = 1.0,
        memory: int = 1024,
        lie: str = "",
    ) -> Child:
        """Start (or start again) a provider agent with a wallet of its own.

        Without `ask` it only audits, from outside. `memory`: what it offers, in MiB. `claim_at`:
        what is worth a transaction while a job goes on. `lie`: what its peers play.
        """
        environment = self.environment(f"provider-{name}")
        environment["TALLYSTICK_PEER_SLOWDOWN"] = str(slowdown)
        environment["TALLYSTICK_PEER_BEHAVIOUR"] = lie
        self.providers[name] = self.start(
            (
                *(sys.executable, "-m", "tallystick", "provider", "start"),
                *("--market", self.client.url, "--home", str(self.folder / name)),
                # A cap: else each that comes makes all others offer anew.
                *(("--audit",) if ask is None else ("--ask", ask, "--memory", str(memory))),
                *("--stake", stake, "--claim-at", claim_at),
            ),
            environment=environment,
            log=self.folder / f"provider-{name}.log",
        )
        return self.providers[name]

    async def retire(self, name: str) -> None:
        """Stop a provider and take its offer back, so that no job is matched with it any more."""
        await self.providers.pop(name).stop(signal.SIGTERM, grace=45.0)
        home = self.folder / name
        offer, session = load_signed(home, Offer), agent_session(home)
        if offer is not None:
            digest = offer.message.digest()
            signature = session.private_key.sign(withdrawal_digest(digest))
            with contextlib.suppress(NotFound):  # it was stopped before the market had it
                await self.client.call(DELETE_OFFER, Withdrawal(signature=signature), offer=digest)

    def lease_folder(self, name: str, job: JobId) -> Path:
        """What a provider keeps of its lease in `job`; there once its peer was started."""
        for file in (self.folder / name / "leases").glob("*/lease.json"):
            if json.loads(file.read_text())["job"] == job.hex():
                return file.parent
        raise AssertionError(f"{name} has no lease in {job.hex()}: {self.tails()}")

    def peer_log(self, name: str, job: JobId) -> Path:
        """Log of a provider's peer."""
        return self.folder / name / "logs" / f"peer-{self.lease_folder(name, job).name[:12]}.log"

    def audit_log(self, name: str, job: JobId) -> Path:
        """Log of the process with which a provider audits a job from outside."""
        return self.folder / name / "logs" / f"audit-{job.hex()[:12]}.log"

    def peer_of(self, name: str, job: JobId) -> PeerId:
        """Id of a provider's peer."""
        return load_or_create_session(self.lease_folder(name, job) / "session.key").peer

    def environment(self, service: str) -> dict[str, str]:
        """What a process of a person in this test is started with."""
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith("TALLYSTICK_")},
            RUN_ID: self.run_id,
            SERVICE: service,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "TALLYSTICK_HOME": str(self.folder / "person"),
            HOOKS: MODULE,
        }

    async def submit(self, **changes: Any) -> Submitted:
        """Post a micro job with these changes, once more if it was posted before."""
        return await submit(
            self.client,
            self.poster,
            parse_job_file(MICRO_JOB | changes),
            orders=self.folder / "orders",
            data=self.folder / "data",
            now=UnixSeconds(int(time.time())),
            consent=Consent(again=True),
        )

    async def job(self, job: JobId) -> JobView:
        """The job as the API shows it; waits while the API is down."""
        while True:
            with contextlib.suppress(Unavailable):
                return await self.client.call(GET_JOB, job=job)
            await asyncio.sleep(_POLL_SECONDS)

    async def until(
        self, job: JobId, holds: Callable[[JobView], bool], *, within: float
    ) -> JobView:
        """Wait until `holds` of the job."""
        view = await self.job(job)
        try:
            async with asyncio.timeout(patience(within)):
                while not holds(view):
                    assert view.state != "failed", view.failure
                    await asyncio.sleep(_POLL_SECONDS)
                    view = await self.job(job)
        except TimeoutError:
            raise AssertionError(
                f"job is {view.state} at {view.progress}: {self.tails()}"
            ) from None
        return view

    async def settled(self, job: JobId, *, within: float) -> JobView:
        """Wait until the last seal is there, and all that it vests is claimed."""
        await self.until(job, lambda view: view.state in ("finished", "closed"), within=within)
        async with asyncio.timeout(patience(within)):
            while not await self._is_sealed(job):
                await asyncio.sleep(_POLL_SECONDS)
        return await self.until(job, lambda view: view.claimed == view.vested, within=within)

    async def _is_sealed(self, job: JobId) -> bool:
        with contextlib.suppress(Unavailable):
            signed = (await self.client.call(GET_PAY, job=job)).seal
            return signed is not None and expect(decode_signed(signed), Seal).message.last
        return False

    async def work(self, job: JobId) -> JobWork:
        """Who did what in a job, from its sealed messages."""
        network = await self.client.call(GET_NETWORK)
        domain = Domain(network.chain_id, network.contracts.escrow)
        return read_work([item async for _, item in self.client.messages(job)], domain)

    def job_folder(self, job: JobId) -> Path:
        """What the host keeps of a job."""
        return self.home / "jobs" / job.hex()

    async def pid_of(self, module: str, *, mentions: str = "") -> Identity:
        """The one process of this run that runs `module`; waits until there is one."""
        ends = time.monotonic() + patience(30)
        while len(found := self.find(module, mentions)) != 1:
            assert time.monotonic() < ends, f"{module} {mentions}: {found}: {self.tails()}"
            await asyncio.sleep(_POLL_SECONDS)
        return found[0]

    async def peer_process(self, name: str) -> Identity:
        """The one peer of a provider; waits until there is one."""
        service, ends = f"provider-{name}", time.monotonic() + patience(30)
        while True:
            found = self.find("tallystick.provider.peer")
            own = [one for one in found if environment_of(one.pid).get(SERVICE) == service]
            if len(own) == 1:
                return own[0]
            assert time.monotonic() < ends, f"peer of {name}: {own}: {self.tails()}"
            await asyncio.sleep(_POLL_SECONDS)

    def find(self, module: str, mentions: str = "") -> list[Identity]:
        """All processes of this run that run `module`."""
        fits = []
        for one in running():
            about = environment_of(one.pid)
            if about.get(RUN_ID) != self.run_id or one.pid == os.getpid():
                continue
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{one.pid}/cmdline").read_bytes().decode(errors="replace")
                if module in words.split("\0") and mentions in words:
                    fits.append(one)
        return fits

    def tails(self) -> str:
        """The last words of everybody, for a failed assertion."""
        logs = [*self.home.glob("logs/*.log"), *self.folder.glob("**/provider-*.log")]
        logs += self.folder.glob("*/logs/*-*.log")
        return "\n".join(
            f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-4:])
            for log in sorted(logs)
        )

    def lines(self, log: Path, event: str) -> list[dict[str, Any]]:
        """The JSON lines of an event in a log."""
        return [line for line in self.events(log) if line["event"] == event]

    def events(self, log: Path) -> list[dict[str, Any]]:
        """All events in a log, in order."""
        return [line for line in _json_lines(log) if "event" in line]

    def coordinator_log(self, job: JobId) -> Path:
        """Log of a hosted coordinator."""
        return self.home / "logs" / f"coordinator-{job.hex()[:12]}.log"

    async def wait_line(
        self, log: Path, event: str, *, within: float = 60.0, **fields: object
    ) -> dict[str, Any]:
        """Wait until an event with these fields stands in a log."""
        try:
            async with asyncio.timeout(patience(within)):
                while True:
                    for line in self.lines(log, event):
                        if all(line.get(name) == value for name, value in fields.items()):
                            return line
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise AssertionError(f"no {event} {fields} in {log.name}: {self.tails()}") from None


def _json_lines(log: Path) -> Iterator[dict[str, Any]]:
    if not log.exists():
        return
    for line in log.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                yield value


async def plain_curve(submitted: Submitted, folder: Path) -> list[float]:
    """Losses of a job's plain twin, in nats per token: one process, torch's own optimiser."""
    write_blobs(submitted.corpus, folder / "blobs")
    (folder / "job.msgpack").write_bytes(submitted.spec.encoded())
    options = ("--job", "job.msgpack", "--blobs", "blobs", "--out", "losses.json")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.numerics.plain", *options),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    losses: list[float] = json.loads((folder / "losses.json").read_text())["losses"]
    return losses


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


async def verified(running: Stack, job: JobId) -> Any:
    """What `audit verify` finds in the job's audit file, by contracts and a block of the chain.

    The storage of that block is proved, or the file would lead to nothing.
    """
    file, where = str(running.folder / "audit.tally"), running.contracts.deployment
    market = ("--market", running.client.url)
    exported = await asyncio.to_thread(  # whoever makes the chain's blocks goes on
        said, running, "audit", "export", job.hex(), *market, "--to", file
    )
    number, anchor = exported["block_number"], exported["block_hash"]
    block = await running.contracts.chain.request("eth_getBlockByNumber", [hex(number), False])
    assert block["hash"] == f"0x{anchor.removeprefix('0x')}" and exported["proved"]
    pins = ("--escrow", f"0x{where.escrow.hex()}", "--seals", f"0x{where.seals.hex()}")
    anchored = ("--anchor", block["hash"], *pins)
    return await asyncio.to_thread(said, running, "audit", "verify", file, *anchored)


def is_stopped(pid: int) -> bool:
    """Whether a process stands still; raises if it is gone."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def restarted(folder: DataFolder, name: str, killed: Identity) -> Identity:
    """The process that is ready as a service of `up`, once it is another than `killed`."""
    async with asyncio.timeout(patience(30)):
        while True:
            rows = json.loads(folder.processes.read_bytes())["services"]
            row = next(each for each in rows if each["name"] == name)
            found = Identity(row["pid"], row["start_time"])
            if row["state"] == "ready" and found != killed:
                return found
            await asyncio.sleep(_POLL_SECONDS)


async def kill_and_see(identity: Identity) -> None:
    """SIGKILL a process and return when it is gone."""
    assert send(identity, signal.SIGKILL), f"pid {identity.pid} was dead already"
    async with asyncio.timeout(patience(10)):
        while is_alive(identity):
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def stack(
    folder: Path, *, forked: bool = False, rpc_url: str = "", hooks: str = MODULE, **times: int
) -> AsyncIterator[Stack]:
    """A market in `folder`, with a fast escrow (`times`); `forked`: agents and peers are forked.

    With `rpc_url` on that chain, where `market/deployment.json` says. `hooks`: of its services.
    """
    run_id = secrets.token_hex(16)
    marks = {RUN_ID: run_id, HOOKS: hooks, "PYTHONPATH": str(ROOT)}
    before = {name: os.environ.get(name) for name in marks}
    os.environ.update(marks)
    settings = UpSettings(home=folder / "market", escrow_times=FAST_TIMES | times)
    if rpc_url:
        outside = {"rpc_url": SecretStr(rpc_url), "contracts": settings.home / "deployment.json"}
        settings = settings.model_copy(update=outside)
    try:
        async with Services(settings, api_port=0) as services:
            deployment = load_deployment(Path(services.addresses.contracts))
            async with (
                MarketClient(
                    services.addresses.api, timeout=timedelta(seconds=patience(5))
                ) as client,
                ChainConnection(services.addresses.rpc) as chain,
            ):
                running_stack = Stack(folder, services, client, bind(chain, deployment), run_id)
                server = None
                if forked:
                    server = await launch(
                        environment=running_stack.environment("forkserver"),
                        log=folder / "provider-forkserver.log",
                    )
                    running_stack.start = server.start
                try:
                    yield running_stack
                finally:
                    living = [p for p in running_stack.providers.values() if not p.ended.is_set()]
                    await asyncio.gather(*(p.stop(signal.SIGTERM, grace=15.0) for p in living))
                    if server is not None:
                        await server.stop()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    left = [one for one in running() if environment_of(one.pid).get(RUN_ID) == run_id]
    assert not left, f"left running: {left}"
