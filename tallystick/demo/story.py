"""The demo: one job from offer to audit, on real services, in phases that are timed and told.

One provider wins over a dearer one, trains the job, is paid over several epochs and claims; the
poster gets the rest back; a fresh process audits it all. Beside it the plain reference runs on the
same job. Every figure of the report is read from the API, the chain or another process's output.

A home holds one demo: interrupted, the same command with the same --home goes on with its job.
"""

import asyncio
import contextlib
import json
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from contracts.chain.connection import ChainConnection
from contracts.chain.contracts import Contracts, bind
from contracts.chain.deployment import load_deployment
from contracts.keys.store import load_or_create_wallet
from contracts.terms.errors import DeadlineExceeded, Refused
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import decode_signed, expect
from market.api import schemas
from tallystick.demo.report import ProcessRow, Report, Settled
from tallystick.sdk.client import MarketClient, retrying
from tallystick.sdk.job_file import JobFile, parse_job_file
from tallystick.sdk.submit import Submitted, shard, submit
from tallystick.up import child as children
from tallystick.up.child import Child
from tallystick.up.ports import ports_of
from tallystick.up.processes import RUN_ID, SERVICE, environment_of, running
from tallystick.up.settings import read_settings
from tallystick.up.stack import Services
from training.data.corpus import unigram_perplexity

ASKS = {"winner": "1000", "dearer": "1300"}  # tokens per PFLOP
JOB: Mapping[str, object] = {
    "name": "demo: a small Llama learns Python's standard library",
    "recipe": "tiny_llama",
    "data": "builtin",
    "budget": 10,
    "price_ceiling": 2000,
    "deadline": "1h",
    "checking": "off",
    "min_stake": 5,
}

_ROOT = Path(__file__).resolve().parents[2]  # of the checkout, or site-packages
_JOB_PROCESSES = {
    "tallystick.coordinator": "coordinator",
    "tallystick.trainer": "trainer",
    "tallystick.provider.peer": "peer of the winner",
}
_STARTED = ("running", "finished", "closed", "refunded")
_POLL_SECONDS = 0.25
_MATCH_PATIENCE = timedelta(minutes=2)
_JOB_PATIENCE = timedelta(minutes=20)
_MONEY_PATIENCE = timedelta(minutes=4)

Say = Callable[[str], None]


@dataclass
class Story:
    """A running demo."""

    home: Path
    say: Say
    run_id: str = field(default_factory=lambda: secrets.token_hex(16))
    _phases: dict[str, float] = field(default_factory=dict)
    _children: list[Child] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def _phase(self, name: str) -> AsyncIterator[None]:
        began = time.monotonic()
        self.say(f"== {name}")
        yield
        self._phases[name] = time.monotonic() - began

    async def run(self, services: Services) -> Report:
        """From the first offer to the audit; `services` are up."""
        async with MarketClient(services.addresses.api) as client:
            async with self._phase("two providers offer"):
                await self._offer(client)
            async with self._phase("the job is posted and matched"):
                submitted = await self._post(client)
                job = submitted.job
                await self._reach(client, job, _STARTED, _MATCH_PATIENCE)
            plain = await self._start_plain(submitted)
            async with self._phase("training"):
                rows = await self._watch(client, job)
            async with self._phase("last epoch, claims, refund"):
                settled = await self._settle(client, job, services)
            async with self._phase("audit in a fresh process"):
                verdict = await self._audit(services, job, settled)
            reference = await self._plain_losses(plain)
            view = await client.job(job)
        return self._report(submitted, view, settled, verdict, rows, reference)

    async def stop(self) -> None:
        """Stop the providers and whatever else the demo started."""
        for child in self._children:
            if not child.ended.is_set():
                await child.stop(signal.SIGTERM, grace=15.0)

    def leftovers(self) -> list[int]:
        """Pids that carry this run's id, without the caller's."""
        return [
            one.pid
            for one in running()
            if one.pid != os.getpid() and environment_of(one.pid).get(RUN_ID) == self.run_id
        ]

    # --------------------------------------------------------------------------------- phases

    async def _offer(self, client: MarketClient) -> None:
        for name, ask in ASKS.items():
            options = ("--market", client.url, "--ask", ask, "--home", str(self.home / name))
            self._start(f"provider-{name}", "tallystick", "provider", "start", *options)
        ends = time.monotonic() + _MATCH_PATIENCE.total_seconds()
        while len((await client.offers()).offers) < len(ASKS):
            self._check_alive()
            if time.monotonic() > ends:
                raise DeadlineExceeded("the providers did not offer in time: see their logs")
            await asyncio.sleep(_POLL_SECONDS)
        for offer in (await client.offers()).offers:
            self.say(f"   0x{offer.account.hex()} asks {offer.price} base units per PFLOP")

    async def _post(self, client: MarketClient) -> Submitted:
        poster = load_or_create_wallet(self.home / "poster.json")
        posted = [one for one in (await client.jobs()).jobs if one.poster == poster.account]
        if posted:
            self.say(f"   job {posted[0].job.hex()} of this home goes on")
            return await self._found(client, posted[0].job)
        submitted = await submit(
            client,
            poster,
            demo_job(),
            drafts=self.home / "drafts",
            now=UnixSeconds(int(time.time())),
            say=lambda line: self.say(f"   {line}"),
        )
        self.say(f"   job {submitted.job.hex()}")
        return submitted

    async def _found(self, client: MarketClient, job: JobId) -> Submitted:
        """The job that an interrupted demo posted from this home.

        Raises:
            Refused: this Python has another standard library, so another corpus.
        """
        spec = expect(decode_signed((await client.job(job)).signed), JobSpec).message
        corpus = shard(demo_job())
        if corpus.manifest.digest() != spec.data.manifest:
            raise Refused(f"{self.home} was begun with another Python: choose another --home")
        return Submitted(job, spec, corpus)

    async def _reach(
        self, client: MarketClient, job: JobId, states: tuple[str, ...], patience: timedelta
    ) -> schemas.JobView:
        ends = time.monotonic() + patience.total_seconds()
        seen = ""
        while time.monotonic() < ends:
            self._check_alive()
            view = await retrying(lambda: client.job(job), patience=timedelta(minutes=1))
            if view.state != seen:
                self.say(f"   {view.state}")
                seen = view.state
            if view.state == "failed":
                raise Refused(f"the job failed: {view.failure}; choose another --home")
            if view.state in states:
                return view
            await asyncio.sleep(_POLL_SECONDS)
        raise DeadlineExceeded(f"the job is still {seen} after {patience}")

    async def _watch(self, client: MarketClient, job: JobId) -> list[ProcessRow]:
        """Tell of each step; returns the processes that were there after the first one."""
        rows: list[ProcessRow] = []
        ends = time.monotonic() + _JOB_PATIENCE.total_seconds()
        told = 0
        while time.monotonic() < ends:
            self._check_alive()
            view = await retrying(lambda: client.job(job), patience=timedelta(minutes=1))
            for report in view.reports[told:]:
                self.say(
                    f"   step {report.step:3}/{view.progress.steps}  "
                    f"loss {report.loss_millionths / 1e6:.4f}  {report.tokens_per_second} tokens/s"
                )
            told = len(view.reports)
            if told and not rows:
                rows = self._processes()
            if view.state not in ("matched", "running"):
                return rows
            await asyncio.sleep(_POLL_SECONDS)
        raise DeadlineExceeded(f"the job did not end within {_JOB_PATIENCE}")

    async def _settle(self, client: MarketClient, job: JobId, services: Services) -> Settled:
        view = await self._reach(client, job, ("refunded",), _MONEY_PATIENCE)
        providers = [lease.account for lease in view.leases if lease.accept]
        async with ChainConnection(services.addresses.rpc) as chain:
            contracts = bind(chain, load_deployment(Path(services.addresses.contracts)))
            ends = time.monotonic() + _MONEY_PATIENCE.total_seconds()
            while time.monotonic() < ends:
                settled = await self._money(client, contracts, job, providers)
                if settled.claimed == view.earned:
                    return settled
                self._check_alive()
                await asyncio.sleep(_POLL_SECONDS)
        raise DeadlineExceeded(f"claimed {settled.claimed} of {view.earned} base units in time")

    async def _money(
        self, client: MarketClient, contracts: Contracts, job: JobId, providers: list[Address]
    ) -> Settled:
        head = await contracts.chain.head()
        funds = await contracts.escrow.funds(job, head)
        logs = await contracts.escrow.events(contracts.deployment.block, head.number)
        mine = [log for log in logs if log.args.get("job") == job]
        deposited = sum(log.args["amount"] for log in mine if log.event == "JobOpened")
        refunded = sum(log.args["amount"] for log in mine if log.event == "Refunded")
        epochs = [epoch for epoch in (await client.epochs()).epochs if epoch.state == "final"]
        # More than one worked for it when the first was away for too long.
        claimed = [await contracts.settlement.claimed(each, head) for each in {*providers}]
        return Settled(
            escrowed=deposited,
            claimed=sum(claimed),
            refunded=refunded,
            remaining=funds.deposited - funds.debited,
            epochs=len(epochs),
            provider=providers[-1],
            block=head.number,
            block_hash=head.hash,
            settlement=contracts.deployment.settlement,
        )

    async def _audit(self, services: Services, job: JobId, settled: Settled) -> str:
        file = self.home / "audit.tally"
        market = services.addresses.api
        export = ("audit", "export", job.hex(), "--market", market, "-o", str(file))
        exported = await self._run("audit-export", "tallystick", *export)
        if exported.exit_status != 0:
            raise Refused(f"audit export failed: {exported.last_words()}")
        anchor = exported_anchor(exported.last_words())
        async with ChainConnection(services.addresses.rpc) as chain:
            if await chain.request("eth_getBlockByHash", [anchor, False]) is None:
                raise Refused(f"our own node does not know the exported block {anchor}")
        verify = ("audit", "verify", str(file), "--anchor", anchor)
        settlement = ("--settlement", f"0x{settled.settlement.hex()}")
        verified = await self._run("audit-verify", "tallystick", *verify, *settlement)
        self.say(f"   {verified.last_words().strip()}")
        if verified.exit_status != 0:
            raise Refused(f"audit verify ended with {verified.exit_status}")
        return verified.last_words().strip().splitlines()[-1]

    # ------------------------------------------------------------------------ the plain twin

    async def _start_plain(self, submitted: Submitted) -> Child | None:
        """The reference run, where this is a checkout (it is no part of the package)."""
        if not (_ROOT / "tests" / "numerics" / "plain.py").exists():
            self.say("   no plain run: this is an installation without the tests")
            return None
        folder = self.home / "plain"
        submitted.corpus.write(folder / "blobs")
        (folder / "job.msgpack").write_bytes(submitted.spec.encoded())
        options = ("--job", "job.msgpack", "--blobs", "blobs", "--out", "losses.json")
        return self._start("plain", "tests.numerics.plain", *options, folder=folder)

    async def _plain_losses(self, plain: Child | None) -> list[float] | None:
        if plain is None:
            return None
        if not plain.ended.is_set():
            self.say("== waiting for the plain run")
        await plain.ended.wait()
        if plain.exit_status != 0:
            raise Refused(f"the plain run {plain.how_it_ended()}: {plain.last_words()}")
        losses: list[float] = json.loads((self.home / "plain" / "losses.json").read_text())[
            "losses"
        ]
        return losses

    # --------------------------------------------------------------------------------- report

    def _report(
        self,
        submitted: Submitted,
        view: schemas.JobView,
        settled: Settled,
        verdict: str,
        rows: list[ProcessRow],
        reference: list[float] | None,
    ) -> Report:
        validation = [r.validation_millionths for r in view.reports if r.validation_millionths]
        blobs = _CorpusBlobs(submitted.corpus.blobs)
        lease = [lease for lease in view.leases if lease.accept][-1]
        return Report(
            losses=[report.loss_millionths / 1e6 for report in view.reports],
            reference=reference,
            validation_perplexity=math.exp(validation[-1] / 1e6) if validation else math.inf,
            unigram_perplexity=unigram_perplexity(submitted.corpus.manifest, blobs),
            units=submitted.spec.batch.units_per_step * submitted.spec.batch.steps,
            unit_flops=sum(submitted.spec.unit_flops),
            price=lease.price,
            ceiling=submitted.spec.price_ceiling,
            earned=view.earned,
            settled=settled,
            verdict=verdict,
            processes=rows,
            phases=self._phases,
        )

    def _processes(self) -> list[ProcessRow]:
        rows = []
        for one in running():
            about = environment_of(one.pid)
            if about.get(RUN_ID) != self.run_id:
                continue
            with contextlib.suppress(OSError):  # it may end while it is looked at
                rows.append(_row(one.pid, about.get(SERVICE, "")))
        return sorted(rows, key=lambda row: row.pid)

    # ------------------------------------------------------------------------------- children

    def _environment(self, name: str) -> dict[str, str]:
        return {
            **os.environ,
            RUN_ID: self.run_id,
            SERVICE: name,
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(_ROOT),
        }

    def _start(self, name: str, module: str, *options: str, folder: Path | None = None) -> Child:
        child = children.start(
            (sys.executable, "-m", module, *options),
            environment=self._environment(name),
            log=self.home / "logs" / f"{name}.log",
            working_folder=folder,
        )
        self._children.append(child)
        return child

    async def _run(self, name: str, module: str, *options: str) -> Child:
        child = self._start(name, module, *options)
        await child.ended.wait()
        return child

    def _check_alive(self) -> None:
        for child in self._children:
            if child.ended.is_set() and child.exit_status != 0:
                raise Refused(f"{child.log.stem} {child.how_it_ended()}: {child.last_words()}")


@dataclass(frozen=True)
class _CorpusBlobs:
    blobs: Mapping[Digest, bytes]

    def fetch(self, digest: Digest) -> bytes:
        return self.blobs[digest]


def _row(pid: int, service: str) -> ProcessRow:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    module = words[words.index("-m") + 1] if "-m" in words else ""
    name = _JOB_PROCESSES.get(module, service)
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return ProcessRow(name, pid, int(stat[1]), ports_of(pid))


def demo_job() -> JobFile:
    """The job that the demo posts."""
    return parse_job_file(JOB, source="demo")


def exported_anchor(words: str) -> str:
    """The block hash that `audit export` printed; our own node is asked whether it knows it."""
    return next(word for word in reversed(words.split()) if len(word.removeprefix("0x")) == 64)


async def demo(home: Path, *, keep: bool, say: Say) -> int:
    """Run the demo in `home`.

    Returns:
        Exit status: 0 if everything that the report promises holds.
    """
    story = Story(home, say)
    os.environ[RUN_ID] = story.run_id  # children of `up` inherit it
    services = Services(
        read_settings(home / "market"),
        api_port=None if keep else 0,  # a port that people know matters when it stays
        report=lambda line: say(f"   {line}"),
    )
    (home / "logs").mkdir(parents=True, exist_ok=True)
    report = None
    try:
        async with story._phase("services start"):
            await services.start()
        report = await story.run(services)
        if keep:
            for line in report.lines():
                say(line)
            say(f"kept running: API {services.addresses.api}/docs  RPC {services.addresses.rpc}")
            await asyncio.Event().wait()
    finally:
        await asyncio.shield(story.stop())
        await asyncio.shield(services.stop())
    left = story.leftovers()
    for line in report.lines():
        say(line)
    say(f"processes left that carry the run's id: {left or 'none'}")
    problems = [*report.problems(), *([f"left running: {left}"] if left else [])]
    for problem in problems:
        say(f"FAILED: {problem}")
    return 1 if problems else 0
