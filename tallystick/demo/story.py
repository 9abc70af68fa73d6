"""The demo: one job from offer to audit, on real services, in phases that are timed and told.

Nine providers of unequal speed train a model, in three stages or by local steps; an eleventh is
outbid, one is killed part-way, a tenth comes late. What they do is drawn and done again by others:
one of the nine is lazy and one accuses falsely, until both are convicted; three staked providers
outside the job have the last word, and stake is burned. All who worked are paid while they work,
and within seconds of the last seal; the poster closes the job and takes back what is free; a fresh
process audits it all. Beside a job of stages, once all nine are at work, the plain reference runs
on the same job. Every figure of the report is read from the API, the chain, or another process's
output.

A home holds one demo: interrupted, the same command with the same --home goes on with its job.
"""

import asyncio
import contextlib
import json
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from contracts.chain.connection import ChainConnection
from contracts.chain.contracts import Contracts, bind
from contracts.chain.deployment import load_deployment
from contracts.governance.escrow import EscrowState, differences, held
from contracts.keys.store import load_or_create_wallet
from contracts.keys.wallet import Wallet
from contracts.terms.amounts import in_tokens
from contracts.terms.auditors import AuditorList
from contracts.terms.digest import peer_id
from contracts.terms.errors import DeadlineExceeded, Refused
from contracts.terms.history import Kept
from contracts.terms.ids import Address, JobId, PeerId
from contracts.terms.messages import Seal
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.signatures import decode_signed, expect
from contracts.terms.typed_data import Domain
from market.bodies.jobs import JobView
from market.bodies.routes import (
    GET_AUDITORS,
    GET_CHECKS,
    GET_JOB,
    GET_JOBS,
    GET_MONEY,
    GET_NETWORK,
    GET_OFFERS,
    GET_PAY,
    GET_SLASHES,
)
from market.bodies.slashes import SlashView
from tallystick.demo.cast import (
    ACCUSER,
    AUDITORS,
    KILLED_AFTER,
    LATE,
    LATE_AFTER,
    LAZINESS,
    LAZY,
    MACHINES,
    OUTBID,
    Machine,
    Notes,
    choose_victim,
    demo_job,
    load_notes,
    save_notes,
)
from tallystick.demo.checked import Checked
from tallystick.demo.crowd import ROOT, Crowd
from tallystick.demo.report import Money, Report, Swarm
from tallystick.demo.shares import LogLine, read_work
from tallystick.demo.verdicts import Verdicts, read_verdicts
from tallystick.sdk.client import MarketClient, retrying
from tallystick.sdk.convictions import ENDED
from tallystick.sdk.escrow import close, reclaim, told_job, until_closed, until_quit
from tallystick.sdk.job_file import Strategy
from tallystick.sdk.plan import Plan
from tallystick.sdk.submit import Consent, Submitted, submit
from tallystick.up.child import Child
from tallystick.up.processes import RUN_ID
from tallystick.up.settings import read_settings
from tallystick.up.stack import Services
from training.data.corpus import unigram_perplexity
from training.data.prepare import FolderBlobs
from training.tasks import first_error

_WORKED = ("matched", "running")
_OVER = ("finished", "closed")
_STARTED = ("running", *_OVER)
_POLL_SECONDS = 0.25
_WATCH_SECONDS = 1.0  # a job's view is long, and the machine has better things to do
_MATCH_PATIENCE = timedelta(minutes=2)
_JOB_PATIENCE = timedelta(minutes=20)
_MONEY_PATIENCE = timedelta(minutes=4)
_SLASH_PATIENCE = timedelta(minutes=2)
_API_PATIENCE = timedelta(minutes=1)

Say = Callable[[str], None]


@dataclass
class Story:
    """A running demo."""

    home: Path
    say: Say
    crowd: Crowd
    notes: Notes
    _client: MarketClient = field(init=False)
    _job: JobId = field(init=False)  # once it is posted
    _phases: dict[str, float] = field(default_factory=dict)
    _told: str = ""  # state of the job
    _plain: Child | None = None

    @contextlib.asynccontextmanager
    async def phase(self, name: str) -> AsyncIterator[None]:
        """Time a part of the story under its name."""
        began = time.monotonic()
        self.say(f"== {name}")
        yield
        self._phases[name] = time.monotonic() - began

    async def run(self, services: Services) -> Report:
        """From the first offer to the audit; `services` are up."""
        self.crowd.market = services.addresses.api
        async with MarketClient(services.addresses.api) as self._client:
            posted = await self._posted()  # by a demo that was interrupted
            is_matched = posted is not None and bool(posted.leases)
            cast = self.notes.on_stage() if is_matched else (*self.notes.on_stage(), OUTBID)
            async with self.phase(f"{len(cast)} providers offer, a job is posted and matched"):
                submitted = await self._match(cast, posted)
            async with self.phase("training"):
                await self._watch(submitted)
            async with ChainConnection(services.addresses.rpc) as chain:
                contracts = bind(chain, load_deployment(Path(services.addresses.contracts)))
                async with self.phase("last claims"):
                    paid_at = await self._pay(contracts)
                async with self.phase("slash"):
                    slashes = await self._slashes()
                async with self.phase("close, and what is free back"):
                    await self._close()
                lines = self._log_lines(services)
                sealed = max(each["at"] for each in lines if each["event"] == "seal_stored")
                money = await self._money(contracts, (paid_at - sealed) / 1000)
            async with self.phase("audit in a fresh process"):
                verdict = await self._audit(services, money)
            reference = await self._plain_losses()
            view, fallen = await self._view(), self.notes.fallen()
            items, domain = await self._items(), await self._domain()
            swarm = Swarm(
                work=read_work(items, domain),
                lines=lines,
                notes=self.notes,
                machines={self._account(machine): machine for machine in (*MACHINES, LATE)},
                victim=None if fallen is None else _peer_of(view, self._account(fallen)),
            )
            checked = await self._checked(view, slashes, read_verdicts(items, domain))
        validations = (
            (each.step, each.validation_millionths / 1e6)
            for each in view.reports
            if each.validation_millionths is not None
        )
        validated_step, nats = max(validations, default=(0, math.inf))
        blobs = FolderBlobs(submitted.corpus)
        return Report(
            losses=[report.loss_millionths / 1e6 for report in view.reports],
            reference=reference,
            checked=checked,
            validation_perplexity=math.exp(nats),
            validated_step=validated_step,
            unigram_perplexity=unigram_perplexity(submitted.corpus.manifest, blobs),
            flops=sum(row.units * submitted.spec.item_flops[row.stage] for row in swarm.shares),
            price=view.leases[0].price,
            ceiling=submitted.spec.price_ceiling,
            vested=view.vested,
            money=money,
            swarm=swarm,
            verdict=verdict,
            phases=self._phases,
        )

    # --------------------------------------------------------------------------------- phases

    async def _until(
        self,
        found: Callable[[], Awaitable[bool]],
        patience: timedelta,
        what: str,
        *,
        pause: float = _POLL_SECONDS,
    ) -> None:
        """Ask again and again until `found`; whoever ends meanwhile and should not is an error.

        Raises:
            DeadlineExceeded: it is not so within `patience`; the message says `what` is missing.
        """
        ends = time.monotonic() + patience.total_seconds()
        while not await found():
            self.crowd.check_alive()
            if time.monotonic() > ends:
                raise DeadlineExceeded(f"not within {patience}: {what}")
            await asyncio.sleep(pause)

    async def _offer(self, cast: Sequence[Machine], *, is_matched: bool) -> None:
        """Start everybody; who works already need not offer again, and may not."""
        self._note(begun_at=self.notes.begun_at or _now())
        wanted = {self._account(machine) for machine in cast}  # makes the wallets of a new home
        for machine in cast:
            self.crowd.start_provider(machine)
        for name in AUDITORS:
            self.crowd.start_auditor(name)

        async def have_offered() -> bool:
            offers = (await self._client.whole(GET_OFFERS)).offers
            return wanted <= {offer.account for offer in offers}

        if not is_matched:
            await self._until(have_offered, _MATCH_PATIENCE, "all offers; see the providers' logs")
        for name in AUDITORS:  # who is not known yet is not on the job's list
            await self.crowd.until_said(name, "auditing from outside")
        for machine in cast:
            self.say(
                f"   {machine.name} asks {machine.ask} tokens per PFLOP, computes "
                f"{machine.slowdown:g} times as slowly as this machine"
            )

    async def _match(self, cast: Sequence[Machine], posted: JobView | None) -> Submitted:
        """Have everybody offer and the job posted, and wait until it runs."""
        is_matched = OUTBID not in cast
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                offering = tasks.create_task(self._offer(cast, is_matched=is_matched))
                posting = tasks.create_task(self._post(offering, posted))
        submitted = posting.result()
        self._job = submitted.job
        await self._reach(lambda view: bool(view.leases), _MATCH_PATIENCE, "a match")
        if not is_matched:
            await self.crowd.stop_one(OUTBID.name)
            # Or it could replace the provider that is killed.
            where = ("--market", self.crowd.market, "--home", str(self.home / OUTBID.name))
            await self.crowd.run("withdraw", "tallystick", "provider", "withdraw-offer", *where)
            self.say(f"   {OUTBID.name} lost, and takes its offer back")
        await self._reach(lambda view: view.state in _STARTED, _MATCH_PATIENCE, "the job's start")
        return submitted

    async def _posted(self) -> JobView | None:
        """The job that an interrupted demo posted from this home."""
        poster, jobs = self._poster().account, (await self._client.call(GET_JOBS)).jobs
        found = next((one.job for one in jobs if one.poster == poster), None)
        return None if found is None else await self._client.call(GET_JOB, job=found)

    async def _post(self, offering: "asyncio.Task[None]", posted: JobView | None) -> Submitted:
        """Post the job, or find the one that was posted from this home.

        Raises:
            Refused: this Python has another standard library, so another corpus.
        """

        def agree(plan: Plan) -> None:
            if posted is not None:
                raise Refused(f"{self.home} was begun with another Python: choose another --home")

        submitted = await submit(
            self._client,
            self._poster(),
            demo_job(self.notes.strategy, self.crowd.device_class),
            orders=self.home / "orders",
            data=self.home / "data",
            now=UnixSeconds(int(time.time())),
            consent=Consent(agree),
            offered=lambda: offering,
            say=lambda line: self.say(f"   {line}"),
        )
        goes_on = "" if submitted.is_new else " of this home goes on"
        self.say(f"   job {submitted.job.hex()}{goes_on}")
        return submitted

    async def _view(self) -> JobView:
        """The job as the market shows it now.

        Raises:
            Refused: it failed.
        """
        view = await retrying(
            lambda: self._client.call(GET_JOB, job=self._job), patience=_API_PATIENCE
        )
        if view.state != self._told:
            self.say(f"   {view.state}")
            self._told = view.state
        if view.state == "failed":
            raise Refused(f"the job failed: {view.failure}; choose another --home")
        return view

    async def _reach(
        self, holds: Callable[[JobView], bool], patience: timedelta, what: str
    ) -> None:
        async def does_hold() -> bool:
            return holds(await self._view())

        await self._until(does_hold, patience, what)

    async def _watch(self, submitted: Submitted) -> None:
        """Tell of each step and play the scenes, until the job is over."""
        told = 0

        async def is_over() -> bool:
            nonlocal told
            view = await self._view()
            steps = view.progress.steps
            for report in view.reports[told:]:
                # Work that rounds lack comes later, so there may be more of them.
                of_all = f"/{steps}" if report.step <= steps else ""
                loss, speed = report.loss_millionths / 1e6, report.tokens_per_second
                self.say(f"   step {report.step:3}{of_all}  loss {loss:.4f}  {speed} tokens/s")
            if view.reports and not told:
                self._start_plain(submitted)  # not earlier: it would slow down who gets ready
            told = len(view.reports)
            if view.state not in _WORKED:
                return True
            await self._play(told)
            return False

        await self._until(is_over, _JOB_PATIENCE, "the job's end", pause=_WATCH_SECONDS)

    async def _play(self, num_steps: int) -> None:
        """One provider dies with work in its hands, a tenth comes."""
        if num_steps >= KILLED_AFTER and self.notes.victim is None:
            victim = choose_victim(await self._stages()).name
            victims = self.crowd.processes_of(victim)  # to find them takes a while
            await self.crowd.until_it_works(victim)
            self._note(victim=victim, killed_at=_now())
            self.crowd.kill(victim, victims)
            self.say(f"   SIGKILL to {victim}, agent and peer")
        if num_steps >= LATE_AFTER and self.notes.late_at is None:
            self._account(LATE)
            self._note(late_at=_now())
            self.crowd.start_provider(LATE)
            self.say(f"   {LATE.name} starts")

    async def _pay(self, contracts: Contracts) -> UnixMillis:
        """Wait until all that the last seal vests is claimed; when that was seen."""
        await self._reach(lambda view: view.state in _OVER, _MONEY_PATIENCE, "the job's end")

        async def is_paid() -> bool:
            pay = await retrying(
                lambda: self._client.call(GET_PAY, job=self._job), patience=_API_PATIENCE
            )
            if pay.seal is None or not expect(decode_signed(pay.seal), Seal).message.last:
                return False
            head = await contracts.chain.head()
            places = [(self._job, leaf.account) for leaf in pay.leaves]
            channels = await contracts.escrow.channels(places, head)
            return all(
                leaf.vested == channels[self._job, leaf.account].claimed for leaf in pay.leaves
            )

        await self._until(is_paid, _MONEY_PATIENCE, "claims of all that has vested")
        return _now()

    async def _close(self) -> None:
        """The poster closes the job, and takes back what is free by then."""
        client, job, poster = self._client, self._job, self._poster()
        known = await told_job(client, job)
        await until_quit(client, job)
        if (await client.call(GET_MONEY, job=job)).closed_at is None:
            await close(client, poster, known)
        if (await until_closed(client, job)).free:
            folder = self.home / "poster"
            found = await reclaim(client, poster, known, None, folder=folder, say=self.say)
            self.say(f"   {in_tokens(found.amount)} tokens are back with the poster")

    async def _slashes(self) -> tuple[SlashView, ...]:
        """What became of each case, once all have ended or patience has."""
        slashes: tuple[SlashView, ...] = ()

        async def have_ended() -> bool:
            nonlocal slashes
            slashes = (await self._client.whole(GET_SLASHES, job=self._job)).slashes
            return bool(slashes) and all(each.state in ENDED for each in slashes)

        with contextlib.suppress(DeadlineExceeded):  # the report says which have not
            await self._until(have_ended, _SLASH_PATIENCE, "an end of all slashes")
        return slashes

    async def _checked(
        self, view: JobView, slashes: Sequence[SlashView], verdicts: Verdicts
    ) -> Checked:
        names = {self._account(machine): machine.name for machine in (*MACHINES, LATE)}
        names |= {self._wallet(name).account: name for name in AUDITORS}
        peers = {
            peer_id(lease.session_key): names[lease.account]
            for lease in view.leases
            if lease.session_key is not None
        }
        auditors = await self._client.call(GET_AUDITORS, job=self._job)
        listed = AuditorList.decoded(auditors.encoded).auditors
        peers |= {each.peer: names[each.account] for each in listed if each.account in names}
        lazy, accuser = (_peer_of(view, self._account(each)) for each in (LAZY, ACCUSER))
        if lazy is None or accuser is None:
            raise Refused("who was to lie has no lease; choose another --home")
        return Checked(
            verdicts=verdicts,
            names=peers,
            lazy=lazy,
            accuser=accuser,
            slashes=slashes,
            peers=(await self._client.call(GET_CHECKS, job=self._job)).peers,
        )

    async def _money(self, contracts: Contracts, seal_to_claim: float) -> Money:
        """What the escrow holds, and what its events say that it should."""
        job, head, escrow = self._job, await contracts.chain.head(), contracts.escrow
        times = await escrow.times(head)
        logs = await escrow.events(contracts.deployment.block, head.number)
        state = EscrowState(times.announce)
        moved = Counter[str]()
        for log in logs:
            state.apply(log.event, log.args, log.at)
            if log.args.get("job") == job:
                moved[log.event] += log.args.get("amount", 0)
        wrong = differences(state, await escrow.state(state, head))
        if (owned := await contracts.token.balance(escrow.address, head)) != held(state):
            wrong.append(f"it owns {owned} base units, by its events {held(state)}")
        pay = {leaf.account: leaf for leaf in (await self._client.call(GET_PAY, job=job)).leaves}
        budget = state.budgets[job]
        channels = {who: each for (of, who), each in state.channels.items() if of == job}
        # What a seal says was earned is nobody else's, once it is shown.
        earned = {
            who: min(
                each.limit, max(each.claimed, each.earned, pay[who].earned if who in pay else 0)
            )
            for who, each in channels.items()
        }
        return Money(
            funded=budget.funded + moved["Reclaimed"],
            reclaimed=moved["Reclaimed"],
            free=budget.free,
            unspent=budget.committed - sum(earned.values()),
            claimed={who: each.claimed for who, each in channels.items() if each.claimed},
            unclaimed=sum(earned.values()) - sum(each.claimed for each in channels.values()),
            burned=moved["Burned"],
            bonded=sum(each.stake for each in channels.values()),
            free_at=UnixSeconds(budget.closed_at + times.tail),
            disagreements=wrong,
            seal_to_claim=seal_to_claim,
            block=head.number,
            escrow=escrow.address,
            seals=contracts.seals.address,
        )

    async def _audit(self, services: Services, money: Money) -> str:
        file = self.home / "audit.tally"
        market = services.addresses.api
        export = ("audit", "export", self._job.hex(), "--market", market, "--to", str(file))
        anchor = exported_anchor(await self.crowd.run("audit-export", "tallystick", *export))
        async with ChainConnection(services.addresses.rpc) as chain:
            if await chain.request("eth_getBlockByHash", [anchor, False]) is None:
                raise Refused(f"our own node does not know the exported block {anchor}")
        verify = ("audit", "verify", str(file), "--anchor", anchor)
        where = ("--escrow", f"0x{money.escrow.hex()}", "--seals", f"0x{money.seals.hex()}")
        verified = await self.crowd.run("audit-verify", "tallystick", *verify, *where)
        self.say(f"   {verified}")
        return verified.splitlines()[-1]

    # ------------------------------------------------------------------------ the plain twin

    def _start_plain(self, submitted: Submitted) -> None:
        """The reference run of a job of stages, in a checkout (it is no part of the package)."""
        if self.notes.strategy != "every_step":
            return
        if not (ROOT / "tests" / "numerics" / "plain.py").exists():
            self.say("   no plain run: this is an installation without the tests")
            return
        folder = self.home / "plain"
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        for digest, path in submitted.corpus.files():
            shutil.copy(path, folder / "blobs" / digest.hex())
        (folder / "job.msgpack").write_bytes(submitted.spec.encoded())
        options = ("--job", "job.msgpack", "--blobs", "blobs", "--out", "losses.json")
        self._plain = self.crowd.start("plain", "tests.numerics.plain", *options, folder=folder)

    async def _plain_losses(self) -> list[float] | None:
        plain = self._plain
        if plain is None:
            return None
        if not plain.ended.is_set():
            self.say("== waiting for the plain run")
        await plain.ended.wait()
        if plain.exit_status != 0:
            raise Refused(f"the plain run {plain.how_it_ended()}: {plain.last_words()}")
        told: dict[str, list[float]] = json.loads((self.home / "plain" / "losses.json").read_text())
        return told["losses"]

    async def _stages(self) -> dict[str, int]:
        """Where everybody works."""
        names = {self._account(machine): machine.name for machine in MACHINES}
        workers = read_work(await self._items(), await self._domain()).workers.values()
        return {names[each.account]: each.stage for each in workers if each.account in names}

    # ------------------------------------------------------------------------- what was said

    async def _items(self) -> list[Kept]:
        return [item async for _, item in self._client.messages(self._job)]

    async def _domain(self) -> Domain:
        network = await self._client.call(GET_NETWORK)
        return Domain(network.chain_id, network.contracts.escrow)

    def _log_lines(self, services: Services) -> list[LogLine]:
        """All events of the job's coordinator, by time."""
        logs = services.folder.home / "logs"
        files = logs.glob(f"*-{self._job.hex()[:12]}.log")
        return sorted(
            (line for file in files for line in _events(file)), key=lambda line: line["at"]
        )

    def _account(self, machine: Machine) -> Address:
        return self._wallet(machine.name).account

    def _wallet(self, name: str) -> Wallet:
        return load_or_create_wallet(self.home / name / "wallet.json")

    def _poster(self) -> Wallet:
        return load_or_create_wallet(self.home / "poster.json")

    def _note(self, **changes: str | UnixMillis) -> None:
        for name, value in changes.items():
            setattr(self.notes, name, value)
        save_notes(self.home, self.notes)


def _now() -> UnixMillis:
    return UnixMillis(time.time_ns() // 10**6)


def _events(log: Path) -> list[dict[str, Any]]:
    """The JSON lines of a log; whatever else stands there is no event."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict) and "at" in value and "event" in value:
                found.append(value)
    return found


def _peer_of(view: JobView, account: Address) -> PeerId | None:
    """The peer of an account's first lease in this job."""
    for lease in view.leases:
        if lease.account == account and lease.session_key is not None:
            return peer_id(lease.session_key)
    return None


def exported_anchor(words: str) -> str:
    """The block hash that `audit export` printed; our own node is asked whether it knows it."""
    return next(word for word in reversed(words.split()) if len(word.removeprefix("0x")) == 64)


@dataclass(frozen=True)
class Ended:
    """A demo that came to its end; without problems everything that it promises holds."""

    lines: tuple[str, ...]
    problems: tuple[str, ...]


async def demo(home: Path, strategy: Strategy, *, keep: bool, say: Say) -> Ended:
    """Run the demo in `home`; `say` is told how far it is.

    Raises:
        Refused: the home was begun with another strategy, or its notes are not ours.
    """
    (home / "logs").mkdir(parents=True, exist_ok=True)
    notes = load_notes(home)
    if notes.begun_at is not None and notes.strategy != strategy:
        raise Refused(f"{home} was begun with --strategy {notes.strategy}: choose another --home")
    notes.strategy = strategy
    story = Story(home, say, Crowd(home, LAZINESS[strategy]), notes)
    os.environ[RUN_ID] = story.crowd.run_id  # children of `up` inherit it
    services = Services(
        read_settings(home / "market"),
        api_port=None if keep else 0,  # a port that people know matters when it stays
        report=lambda line: say(f"   {line}"),
    )
    report = None
    try:
        async with story.phase("services start"):
            with first_error():
                async with asyncio.TaskGroup() as starting:
                    starting.create_task(services.start())
                    starting.create_task(story.crowd.start_forkserver())
                    starting.create_task(story.crowd.probe())
        report = await story.run(services)
        if keep:
            for line in report.lines():
                say(line)
            say(f"kept running: API {services.addresses.api}/docs  RPC {services.addresses.rpc}")
            await asyncio.Event().wait()
    finally:
        await asyncio.shield(story.crowd.stop())
        await asyncio.shield(services.stop())
        await asyncio.shield(story.crowd.stop_forkserver())
    left = story.crowd.leftovers()
    lines = (*report.lines(), f"processes left that carry the run's id: {left or 'none'}")
    return Ended(lines, (*report.problems(), *([f"left running: {left}"] if left else [])))
