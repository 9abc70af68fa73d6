"""A whole job in one event loop: coordinator and workers over the in-memory transport.

Parties are started, killed at a line of their log, and started again on the same folder; nothing
sleeps. Workers compute with `CountingStrategy` unless a test brings another arithmetic. Who gets
which stage is the coordinator's to say; `stage_of` tells it from the seals.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import accumulate, count
from pathlib import Path
from typing import Any, TypeVar

from contracts.governance.checking import Begin, Reported
from contracts.governance.job import JobHistory, follow
from contracts.keys.wallet import Session
from contracts.terms.beacons import Beacons
from contracts.terms.errors import Refused
from contracts.terms.history import Kept, Leaves, decode_kept
from contracts.terms.ids import Digest, PeerId, SessionKey, StageIndex, StepNumber
from contracts.terms.messages import JobSpec, Message, Notice, Seal
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from contracts.terms.work import RoundClosed, WorkClaim, findings_of
from tests.support.checked_swarm import MadeUpBeacons, by_bytes
from tests.support.dockets import begin_checked
from tests.support.fakes.coordinator import MemoryFeed, MemoryLimits, MemoryRoster, MemoryWishes
from tests.support.fakes.counting import CountingStrategy, elements_of, rows_for
from tests.support.fakes.memory_transport import MemoryNetwork, MemoryTransport
from tests.support.history import DOMAIN, messages_of
from tests.support.lying import Answer, AnsweringTransport
from tests.support.papers import Papers as Papers
from tests.support.papers import make_papers as make_papers
from tests.support.papers import patient_rules as patient_rules
from tests.support.patience import patience
from tests.support.simulated_time import loop_clock
from training.changes import Changes
from training.coordinator.driver import Pause
from training.coordinator.ports import Wish
from training.coordinator.rebalancing import PERIOD
from training.coordinator.run import Clocks, CoordinatedJob, Signer, World, run_coordinator
from training.stages.torch_free import chunk_elements
from training.strategies.registry import rules_of
from training.transport.calls import METHODS, NEXT_ITEM, NextItem
from training.transport.port import Handler, Limits, Transport
from training.worker.checking import Checking
from training.worker.ports import HONEST, Arithmetic, Behaviour
from training.worker.run import Connection, Membership, run_worker
from verification.auditing.outside import FollowedJob, audit_outside
from verification.auditing.program import Auditing, Comparing
from verification.docket import Docket

M = TypeVar("M", bound=Message)
COORDINATOR = "coordinator"
Line = dict[str, Any]
Wrap = Callable[[str, Transport], Transport]
When = tuple[str, str, int]  # who tells, of which event, in which step


class _Together:
    """A coordinator's handler that hears of nothing done before everybody may be given items."""

    def __init__(self, swarm: "MemorySwarm", handler: Handler) -> None:
        self._swarm, self._handler = swarm, handler
        self._begun = 0  # the step of which results were let through

    async def handle(
        self, caller: SessionKey, method: str, header: bytes, tensors: tuple[memoryview, ...]
    ) -> Answer:
        if method == NEXT_ITEM.name:
            said = NextItem.decoded(header, max_bytes=NEXT_ITEM.max_header_bytes)
            step = max((result.round for result in said.results), default=0)
            if step > self._begun:
                await self._swarm.all_listed()
                self._begun = max(self._begun, step)
        return await self._handler.handle(caller, method, header, tensors)


def counting(spec: JobSpec) -> Arithmetic:
    """What the parties of a swarm compute with that counts."""
    return Arithmetic(partial(CountingStrategy, spec), rows_for(spec), elements_of(spec))


@dataclass
class Party:
    """One process, as far as one event loop has processes."""

    name: str
    task: asyncio.Task[None]
    transport: Transport
    dead: bool = False


async def _short(seconds: float) -> None:
    """A pause that lets the others run: several tries are no single moment, as in a process."""
    await asyncio.sleep(max(0.001, min(seconds, 1.0) / 50))


@dataclass
class MemorySwarm:
    """All parties of one job, their log, and what the market has heard."""

    papers: Papers
    folder: Path
    arithmetic: Callable[[JobSpec], Arithmetic] = counting
    rebalance_every: int = PERIOD
    wrap: Wrap = lambda _name, transport: transport
    feed: MemoryFeed = field(default_factory=MemoryFeed)
    log: list[tuple[str, Line]] = field(default_factory=list)
    deadly: dict[When, str] = field(default_factory=dict)
    """Line -> party that dies at it, once."""
    dies_at: Callable[[str, Line], str | None] = lambda _name, _line: None
    """Who dies when a party tells a line, where it takes more than `deadly` to know which."""
    leaving: dict[When, str] = field(default_factory=dict)
    """Line -> worker that is asked to leave in order at it."""
    for_good: frozenset[str] = frozenset()
    """Parties that are not started again."""
    late: dict[str, When] = field(default_factory=dict)
    """Party -> line that it waits for before each start."""
    wishes: MemoryWishes = field(default_factory=MemoryWishes)
    wished: dict[When, Wish] = field(default_factory=dict)
    """Line -> what the poster wants from then on."""
    jumps: dict[When, int] = field(default_factory=dict)
    """Line -> milliseconds that the coordinator's clock jumps ahead at it."""
    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    """Worker -> where it lies."""
    beacons: Beacons = field(default_factory=lambda: MadeUpBeacons())
    begin: Begin = begin_checked
    compare: Comparing = by_bytes
    """How draws are folded, and work compared."""
    limits: Limits = field(default_factory=Limits)
    """Of all sessions."""
    watch: Callable[[str, Line], None] = lambda _name, _line: None
    """Hears every line as it is told."""
    together: bool = False
    """Each step begins when all workers may be given items of it, so that everybody has some."""
    pause: Pause = _short
    """How they wait between two tries, and two looks."""
    in_order: bool = False
    """Workers join one after the other, as they are named: so their stages are known before."""

    def __post_init__(self) -> None:
        self.network = MemoryNetwork()
        self._ahead = 0  # ms, of the coordinator's clock
        self._ticks = count(0, 10**6)  # ns: every peer is measured as equally fast
        self._address: str | None = None
        self._opened: asyncio.Event = asyncio.Event()
        self.parties: dict[str, Party] = {}
        self.roster = MemoryRoster(tuple(self.papers.leases.values()))
        self.escrow = MemoryLimits()
        self.restarts = 0
        self.published = list[tuple[str, int, int]]()
        """By whom, after which step, in which turn."""
        self.refused: dict[str, Refused] = {}
        self._ended = set[str]()
        self._told: dict[When, asyncio.Event] = {}
        self._leave = {name: asyncio.Event() for name in self.papers.members}
        self._listed: dict[PeerId, StepNumber] = {}  # by the coordinator that lives: applied
        self._newest = StepNumber(0)  # sealed
        self._changed = Changes()

    # ---------------------------------------------------------------------------------- running

    async def run(self, *, timeout: float = 110.0) -> None:
        """Start everybody, start again whoever dies, until all have ended by themselves."""
        papers = self.papers
        names = [COORDINATOR, *papers.members, *papers.outside]
        async with asyncio.timeout(patience(timeout)):
            try:
                await asyncio.gather(*(self._keep_alive(name) for name in names))
            except asyncio.CancelledError:
                print("no end; what was told last:", *self.log[-60:], sep="\n")
                raise
            finally:
                for party in self.parties.values():
                    party.task.cancel()
                    with suppress(asyncio.CancelledError):
                        await party.transport.close()

    async def _keep_alive(self, name: str) -> None:
        while not await self._has_ended(self._start(name)):
            self.restarts += 1
        self._ended.add(name)
        self._changed.mark()

    async def _has_ended(self, party: Party) -> bool:
        """Whether a process has ended and is not to be started again."""
        try:
            await party.task
        except Refused as error:
            self.refused[party.name] = error
        except asyncio.CancelledError:
            if not party.dead:
                raise
            return party.name in self.for_good
        finally:
            await party.transport.close()
        return True

    def _start(self, name: str) -> Party:
        key = self.session_of(name).key
        transport = MemoryTransport(self.network, key, METHODS, limits=self.limits)
        wrapped = self.wrap(name, transport)
        party = Party(name, asyncio.ensure_future(self._live(name, wrapped)), wrapped)
        self.parties[name] = party
        return party

    async def _live(self, name: str, transport: Transport) -> None:
        if name in self.late:
            await self._awaited(self.late[name]).wait()
        if name == COORDINATOR:
            self._listed.clear()
            if self.together:
                transport = AnsweringTransport(transport, partial(_Together, self))
            await self._coordinator(transport)
        elif name in self.papers.outside:
            await self._outside(name, transport)
        else:
            if self.in_order:
                await self._all_joined_before(name)
            await self._worker(name, transport)

    def session_of(self, name: str) -> Session:
        """Session key of a party."""
        if name == COORDINATOR:
            return self.papers.session
        return self.papers.outside.get(name) or self.papers.members[name].session

    def kill(self, name: str) -> None:
        """End a party without a word; `run` starts it again."""
        party = self.parties[name]
        party.dead = True
        party.task.cancel()

    def _awaited(self, line: When) -> asyncio.Event:
        return self._told.setdefault(line, asyncio.Event())

    def _tell(self, name: str) -> Callable[..., None]:
        def tell(event: str, **fields: Any) -> None:
            if self.parties[name].dead:
                raise asyncio.CancelledError
            self.log.append((name, {"event": event, **fields}))
            if name == COORDINATOR:
                self._note_listed(self.log[-1][1])
            self.watch(name, self.log[-1][1])
            line = (name, event, fields.get("step", 0))
            self._awaited(line).set()
            self._ahead += self.jumps.pop(line, 0)
            self.wishes.wish = self.wished.pop(line, self.wishes.wish)
            if line in self.leaving:
                self._leave[self.leaving.pop(line)].set()
            victim = self.deadly.pop(line, None) or self.dies_at(name, self.log[-1][1])
            if victim is not None:
                self.kill(victim)
                if victim == name:
                    raise asyncio.CancelledError

        return tell

    def _note_listed(self, line: Line) -> None:
        match line:
            case {"event": "seal_stored", "step": step}:
                self._newest = step
            case {"event": "peer_joined", "peer": peer}:
                self._listed[peer] = StepNumber(0)
            case {"event": "seal_applied", "peer": peer, "step": applied}:
                self._listed[peer] = applied
            case {"event": "peer_returned", "peer": peer, "applied": applied}:
                self._listed[peer] = applied
            case {"event": "peer_lost", "peer": peer}:
                self._listed.pop(peer, None)
            case _:
                return
        self._changed.mark()

    async def _all_joined_before(self, name: str) -> None:
        names = list(self.papers.members)
        peers = {self.session_of(each).peer for each in names[: names.index(name)]}
        while True:
            version = self._changed.version
            if peers <= {line["peer"] for line in self.lines("peer_joined", of=COORDINATOR)}:
                return
            await self._changed.beyond(version)

    async def all_listed(self) -> None:
        """Wait until everybody who still works has applied the newest seal, and is connected."""
        while True:
            version = self._changed.version
            names = self.papers.members.keys() - self._ended
            peers = [self.session_of(name).peer for name in names]
            if all(self._listed.get(peer, -1) >= self._newest for peer in peers):
                return
            await self._changed.beyond(version)

    def _clock(self) -> UnixMillis:
        """The coordinator's. One that is dead records nothing more: every event has its moment.

        Its other tasks hear of its end one turn later, and its last line was told by a book that
        had stored an event and not moved on.
        """
        if self.parties[COORDINATOR].dead:
            raise asyncio.CancelledError
        return UnixMillis(loop_clock() + self._ahead)

    async def _locate(self) -> str | None:
        await self._opened.wait()
        return self._address

    def _announce(self, address: str) -> None:
        self._address = address
        self._opened.set()

    async def _coordinator(self, transport: Transport) -> None:
        spec = self.papers.spec.message
        await run_coordinator(
            self.folder / COORDINATOR,
            CoordinatedJob(
                self.papers.spec,
                self.papers.opening,
                Signer(self.papers.coordinator, self.papers.session, DOMAIN),
                rules_of(spec),
                self.arithmetic(spec).elements or chunk_elements(spec),
                self.begin,
                rebalance_every=self.rebalance_every,
            ),
            World(
                transport=transport,
                listen="memory:0",
                announce=self._announce,
                feed=self.feed,
                roster=self.roster,
                wishes=self.wishes,
                limits=self.escrow,
                beacons=self.beacons,
            ),
            self._tell(COORDINATOR),
            Clocks(self._clock, self._ticks.__next__, self.pause),
        )

    async def _worker(self, name: str, transport: Transport) -> None:
        await self._opened.wait()
        await run_worker(
            self.folder / name,
            Membership(
                self.papers.spec, self.papers.signed_opening(), self.papers.leases[name], DOMAIN
            ),
            Connection(
                self.papers.members[name].session,
                transport,
                self._locate,
                listen="memory:0",
                pause=self.pause,
            ),
            self.arithmetic(self.papers.spec.message),
            self._tell(name),
            leave=self._leave[name],
            behaviour=self.behaviours.get(name, HONEST),
            checking=self._checking(),
            published=lambda state: self.published.append((name, state.step, state.turn)),
        )

    async def _outside(self, name: str, transport: Transport) -> None:
        async def items(after: int) -> AsyncIterator[Kept]:
            for item in self.feed.items[after:]:
                yield decode_kept(item)

        await audit_outside(
            self.folder / name,
            FollowedJob(self.papers.job, DOMAIN, self.begin, items, self.beacons),
            Connection(self.papers.outside[name], transport, self._locate, pause=self.pause),
            self.arithmetic,
            Auditing(self.compare, self.pause),
            self._tell(name),
            self.behaviours.get(name, HONEST),
        )

    def _checking(self) -> Checking | None:
        auditors = self.papers.opening.auditors
        if auditors is None:
            return None
        return Checking(auditors, self.begin, self.beacons, Auditing(self.compare, self.pause))

    # ---------------------------------------------------------------------------------- results

    def lines(self, event: str, *, of: str | None = None) -> list[Line]:
        """Log lines of one event."""
        return [line for name, line in self.log if line["event"] == event and of in (None, name)]

    def items(self) -> list[Kept]:
        """What the market has."""
        return [decode_kept(item) for item in self.feed.items]

    def sealed(self) -> list[JobHistory]:
        """What the market derives from it at each seal."""
        items = self.items()
        _, *after = accumulate(items, follow, initial=JobHistory(DOMAIN, self.begin))
        return [
            history
            for item, history in zip(items, after, strict=True)
            if isinstance(item, Signed) and isinstance(item.message, Seal)
        ]

    def history(self) -> JobHistory:
        """The same at the end."""
        return reduce(follow, self.items(), JobHistory(DOMAIN, self.begin))

    def docket(self) -> Docket:
        """What became of the draws of a checked job."""
        record = self.history().record
        assert record is not None and isinstance(record.checking, Docket)
        return record.checking

    def messages(self, kind: type[M]) -> list[M]:
        """All messages of one kind, in order."""
        return messages_of(self.items(), kind)

    def seals(self) -> list[Seal]:
        """All seals, in order."""
        return self.messages(Seal)

    def claims(self, what: str = "work") -> list[WorkClaim]:
        """All claims of one kind, in order."""
        return [claim for claim in self.messages(WorkClaim) if claim.what == what]

    def ahead(self) -> dict[Digest, int]:
        """Of each claim of work, how many of its items were computed ahead of its round."""
        leaves = {each.claim: each.leaves for each in self.items() if isinstance(each, Leaves)}
        return {
            name: sum(leaf.base_round < claim.round for leaf in leaves[name])
            for claim in self.claims()
            if (name := claim.digest()) in leaves
        }

    def merged(self) -> dict[int, list[WorkClaim]]:
        """Claims that the RoundClosed of each round names."""
        claims = {claim.digest(): claim for claim in self.claims()}
        return {
            closed.round: [claims[name] for name in closed.weights]
            for closed in self.messages(RoundClosed)
        }

    def reports(self) -> list[Reported]:
        """All reports with what they say, in order."""
        leaves = {each.claim: each.leaves for each in self.items() if isinstance(each, Leaves)}
        return [
            Reported(claim, findings_of(leaves[claim.digest()])) for claim in self.claims("report")
        ]

    def stage_of(self, name: str) -> StageIndex:
        """Where the coordinator put a worker."""
        peer = self.papers.members[name].session.peer
        joins = [each for each in self.messages(Notice) if each.peer == peer]
        return joins[0].stage

    def mates(self, stage: int) -> list[str]:
        """Workers of a stage."""
        return [name for name in self.papers.members if self.stage_of(name) == stage]

    def losses(self) -> dict[int, int]:
        """Loss of every step."""
        return {report.step: report.loss_millionths for report in self.feed.reports}

    def validation(self) -> dict[int, int]:
        """Loss on validation rows, where one was measured."""
        found = ((each.step, each.validation_millionths) for each in self.feed.reports)
        return {step: loss for step, loss in found if loss is not None}

    def state_roots(self) -> list[set[Digest]]:
        """Roots of the states that the workers of each stage ended with."""
        ended = [(name, line) for name, line in self.log if line["event"] == "finished"]
        return [
            {each["state_root"] for name, each in ended if name in mates}
            for mates in map(self.mates, range(self.papers.spec.message.batch.stages))
        ]
