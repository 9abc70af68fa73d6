"""A whole job in one event loop: coordinator, trainer and workers over the in-memory transport.

Parties are started, killed at a line of their log, and started again on the same folder; nothing
sleeps. Workers compute with `CountingCompute` unless a test brings another arithmetic.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.governance.job import JobHistory, follow
from contracts.keys.wallet import Session, Wallet
from contracts.terms.errors import Refused
from contracts.terms.history import Kept, decode_kept
from contracts.terms.ids import ZERO_DIGEST, JobId
from contracts.terms.messages import GradCommit, JobOpening, JobSpec, LeaseAccept, Seal
from contracts.terms.signatures import Signed
from tests.support.history import (
    DOMAIN,
    Member,
    make_members,
    make_session,
    make_spec,
    make_wallet,
)
from training.coordinator.book import Opening
from training.coordinator.ports import MemoryFeed, MemoryRoster
from training.coordinator.run import run_coordinator
from training.trainer.run import run_trainer
from training.transport.calls import METHODS
from training.transport.memory_adapter import MemoryNetwork, MemoryTransport
from training.transport.port import Transport
from training.worker.counting import CountingCompute
from training.worker.ports import Compute
from training.worker.run import run_worker

COORDINATOR, TRAINER = "coordinator", "trainer"
Line = dict[str, Any]
Wrap = Callable[[str, Transport], Transport]


@dataclass(frozen=True)
class Papers:
    """Who signs a job of `workers`, and what they have signed before it begins."""

    spec: Signed[JobSpec]
    opening: Opening
    coordinator: Wallet
    session: Session
    trainer: Session
    members: Mapping[str, Member]
    leases: Mapping[str, Signed[LeaseAccept]]

    @property
    def job(self) -> JobId:
        """The job's id."""
        return self.spec.message.job()


def make_papers(*workers: str, **changed: Any) -> Papers:
    """Papers of a job with one stage; `changed` as in `history.make_spec`."""
    poster, coordinator = make_wallet("poster"), make_wallet("coordinator")
    changed = {"peers_per_stage": len(workers), "stages": 1} | changed
    spec = make_spec(poster, coordinator, **changed)
    members = dict(zip(workers, make_members(workers), strict=True))
    trainer = make_session("trainer")
    leases = {
        name: member.wallet.sign(
            LeaseAccept(
                job=spec.job(),
                account=member.wallet.account,
                session_key=member.session.key,
                offer=spec.digest(),
                price=member.price,
                stake=spec.min_stake,
                device_class="cpu",
            ),
            DOMAIN,
        )
        for name, member in members.items()
    }
    return Papers(
        poster.sign(spec, DOMAIN),
        Opening(make_wallet("anchorer").account, 7, (trainer.key,)),
        coordinator,
        make_session("coordinator"),
        trainer,
        members,
        leases,
    )


@dataclass
class Party:
    """One process, as far as one event loop has processes."""

    name: str
    task: asyncio.Task[None]
    transport: Transport
    dead: bool = False


@dataclass
class MemorySwarm:
    """All parties of one job, their log, and what the market has heard."""

    papers: Papers
    folder: Path
    make_compute: Callable[[], Compute] = lambda: CountingCompute(num_chunks=2)
    wrap: Wrap = lambda _name, transport: transport
    feed: MemoryFeed = field(default_factory=MemoryFeed)
    log: list[tuple[str, Line]] = field(default_factory=list)
    deadly: dict[tuple[str, str, int], str] = field(default_factory=dict)
    """(party that tells, event, step) -> party that dies at this line, once."""
    for_good: frozenset[str] = frozenset()
    """Parties that are not started again."""
    late: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """Worker -> (party that tells, event, step) that it waits for before its first start."""

    def __post_init__(self) -> None:
        self._network = MemoryNetwork()
        self._address: str | None = None
        self._opened: asyncio.Event = asyncio.Event()
        self.parties: dict[str, Party] = {}
        self.roster = MemoryRoster(tuple(self.papers.leases.values()))
        self.computes: dict[str, Compute] = {}
        self.restarts = 0
        self.refused: dict[str, Refused] = {}
        self._told: dict[tuple[str, str, int], asyncio.Event] = {}

    # ---------------------------------------------------------------------------------- running

    async def run(self, *, timeout: float = 20.0) -> None:
        """Start everybody, start again whoever dies, until all have ended by themselves."""
        names = [COORDINATOR, TRAINER, *self.papers.members]
        async with asyncio.timeout(timeout):
            try:
                await asyncio.gather(*(self._keep_alive(name) for name in names))
            finally:
                for party in self.parties.values():
                    party.task.cancel()
                    with suppress(asyncio.CancelledError):
                        await party.transport.close()

    async def _keep_alive(self, name: str) -> None:
        while True:
            party = self._start(name)
            try:
                await party.task
                await party.transport.close()
                return
            except Refused as error:
                self.refused[name] = error
                await party.transport.close()
                return
            except asyncio.CancelledError:
                if not party.dead:
                    raise
            await party.transport.close()
            if name in self.for_good:
                del self.computes[name]
                return
            self.restarts += 1

    def _start(self, name: str) -> Party:
        run = {COORDINATOR: self._coordinator, TRAINER: self._trainer}.get(name)
        key = {COORDINATOR: self.papers.session, TRAINER: self.papers.trainer}.get(name)
        session = key or self.papers.members[name].session
        transport = MemoryTransport(self._network, session.key, METHODS)
        wrapped = self.wrap(name, transport)
        work = run(wrapped) if run else self._worker(name, wrapped)
        party = Party(name, asyncio.ensure_future(work), wrapped)
        self.parties[name] = party
        return party

    def kill(self, name: str) -> None:
        """End a party without a word; `run` starts it again."""
        party = self.parties[name]
        party.dead = True
        party.task.cancel()

    def _awaited(self, line: tuple[str, str, int]) -> asyncio.Event:
        return self._told.setdefault(line, asyncio.Event())

    def _tell(self, name: str) -> Callable[..., None]:
        def tell(event: str, **fields: Any) -> None:
            if self.parties[name].dead:
                raise asyncio.CancelledError
            self.log.append((name, {"event": event, **fields}))
            self._awaited((name, event, fields.get("step", 0))).set()
            victim = self.deadly.pop((name, event, fields.get("step", 0)), None)
            if victim is not None:
                self.kill(victim)
                if victim == name:
                    raise asyncio.CancelledError

        return tell

    async def _locate(self) -> str | None:
        await self._opened.wait()
        return self._address

    def _announce(self, address: str) -> None:
        self._address = address
        self._opened.set()

    async def _coordinator(self, transport: Transport) -> None:
        await run_coordinator(
            self.folder / COORDINATOR,
            self.papers.spec,
            self.papers.opening,
            domain=DOMAIN,
            wallet=self.papers.coordinator,
            session=self.papers.session,
            transport=transport,
            listen="memory:0",
            feed=self.feed,
            roster=self.roster,
            announce=self._announce,
            tell=self._tell(COORDINATOR),
            pause=_short,
        )

    async def _trainer(self, transport: Transport) -> None:
        await run_trainer(
            self.papers.job,
            self.papers.session.key,
            transport=transport,
            locate=self._locate,
            tell=self._tell(TRAINER),
            pause=_short,
        )

    async def _worker(self, name: str, transport: Transport) -> None:
        await self._opened.wait()
        if name in self.late:
            await self._awaited(self.late[name]).wait()
        self.computes[name] = self.make_compute()
        await run_worker(
            self.folder / name,
            self.papers.spec,
            self.opening(),
            self.papers.leases[name],
            domain=DOMAIN,
            session=self.papers.members[name].session,
            transport=transport,
            listen="memory:0",
            locate=self._locate,
            compute=self.computes[name],
            tell=self._tell(name),
            pause=_short,
        )

    # ---------------------------------------------------------------------------------- results

    def opening(self) -> Signed[JobOpening]:
        """The coordinator's JobOpening, made again: signatures are deterministic."""
        message = JobOpening(
            job=self.papers.job,
            job_spec=self.papers.spec.message.digest(),
            session_key=self.papers.session.key,
            trainers=self.papers.opening.trainers,
            anchorer=self.papers.opening.anchorer,
            opening_block=self.papers.opening.opening_block,
            outside_auditors=ZERO_DIGEST,
        )
        return self.papers.coordinator.sign(message, DOMAIN)

    def lines(self, event: str, *, of: str | None = None) -> list[Line]:
        """Log lines of one event."""
        return [line for name, line in self.log if line["event"] == event and of in (None, name)]

    def items(self) -> list[Kept]:
        """What the market has."""
        return [decode_kept(item) for item in self.feed.items]

    def history(self) -> JobHistory:
        """What the market derives from it."""
        history = JobHistory(DOMAIN)
        for item in self.items():
            history = follow(history, item)
        return history

    def seals(self) -> list[Seal]:
        """All seals, in order."""
        messages = (item.message for item in self.items() if isinstance(item, Signed))
        return [message for message in messages if isinstance(message, Seal)]

    def commits(self) -> list[GradCommit]:
        """All GradCommits, in order."""
        messages = (item.message for item in self.items() if isinstance(item, Signed))
        return [message for message in messages if isinstance(message, GradCommit)]

    def losses(self) -> dict[int, int]:
        """Loss of every step."""
        return {report.step: report.loss_millionths for report in self.feed.reports}

    def weights_roots(self) -> set[bytes]:
        """Roots of the weights that the workers ended with."""
        return {compute.roots().weights for compute in self.computes.values()}


async def _short(_seconds: float) -> None:
    """A pause that only lets the others run."""
    await asyncio.sleep(0.001)
