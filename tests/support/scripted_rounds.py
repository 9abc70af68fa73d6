"""A coordinator that does what a test says, one exchange after the other, and real workers.

It decides nothing: a test deals items, asks for claims, closes, and seals. What it signs comes from
`history.JobMaker`, so a seal over it is valid. Everything passes the in-memory transport.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from contracts.terms.digest import peer_id
from contracts.terms.errors import NotFound, Unavailable
from contracts.terms.history import Kept, Leaves, decode_kept, encode_kept, kept_digest
from contracts.terms.ids import ChunkIndex, Digest, PeerId, StageIndex
from contracts.terms.items import ItemNumber, ranges_of
from contracts.terms.signatures import Signed, decode_signed, expect
from contracts.terms.work import Leaf, RoundClosed, WorkClaim, tensor_name
from tests.support.fakes.counting import CountingStrategy, elements_of, rows_of
from tests.support.fakes.memory_transport import MemoryNetwork, MemoryTransport
from tests.support.history import DOMAIN, JobMaker, Member
from tests.support.patience import patience
from training.changes import Changes
from training.strategies.port import Compute
from training.transport import calls
from training.transport.dispatch import Dispatcher
from training.transport.relay import Relay
from training.transport.wire import RELAY, Answer, Answered, Method, Question, Request, ask
from training.worker.ports import HONEST, Arithmetic, Behaviour
from training.worker.run import Connection, Membership, run_worker

T = TypeVar("T")
WITHIN = 20.0


class ScriptedCoordinator:
    """Of one job; its members are those of `maker`."""

    def __init__(self, maker: JobMaker, network: MemoryNetwork) -> None:
        self.maker = maker
        self.transport = MemoryTransport(network, maker.session.key, calls.METHODS)
        self.address = ""
        self.changes = Changes()
        self.joined: dict[PeerId, calls.MemberView] = {}
        self.tasks: dict[PeerId, list[calls.Task]] = defaultdict(list)
        self.drops: dict[PeerId, list[calls.TaskName]] = defaultdict(list)
        self.results: dict[tuple[PeerId, calls.TaskName], calls.TaskResult] = {}
        self.failures: dict[tuple[PeerId, calls.TaskName], calls.Failure] = {}
        self.holding: dict[PeerId, set[calls.TaskName]] = defaultdict(set)
        self.told: list[bytes] = []
        self.reduces: dict[PeerId, tuple[ChunkIndex, ...]] = {}
        self.holds: dict[PeerId, set[Digest]] = {}
        self.held: dict[PeerId, set[Digest]] = defaultdict(set)
        self.items: list[Kept] = []  # said in the round
        self.claims: dict[PeerId, list[tuple[Signed[WorkClaim], tuple[Leaf, ...]]]]
        self.claims = defaultdict(list)
        self.known: dict[PeerId, int] = {}  # how many members each was told of
        self.state_round = 0
        self.deaf_to_results = 0  # calls with results that fail

    async def serve(self) -> None:
        """Begin to answer."""
        dispatcher = Dispatcher()
        dispatcher.on(calls.JOIN, self._join)
        dispatcher.on(calls.NEXT_ITEM, self._next)
        dispatcher.on(calls.GET_CLAIMS, self._claims)
        dispatcher.on(calls.HELD, self._held)
        dispatcher.on(calls.GET_BYTES, self._bytes)
        dispatcher.on(calls.GET_MEMBERS, self._members)
        relay = Relay(lambda: self.transport.sessions, calls.RELAYED, lambda *_: None)
        dispatcher.on(RELAY, relay.serve)
        self.transport.set_members(each.session.key for each in self.maker.members)
        self.address = await self.transport.serve(dispatcher, listen="coordinator:0") or ""

    @property
    def round(self) -> int:
        """That is worked on."""
        return self.maker.next_step

    # --------------------------------------------------------------------------------- answering

    async def _join(self, asked: Question[calls.Join]) -> Answered[calls.Joined]:
        member = next(each for each in self.maker.members if each.session.key == asked.caller)
        view = calls.MemberView(
            session_key=asked.caller, group=member.stage, address=asked.request.address
        )
        self.joined[peer_id(asked.caller)] = view
        self.changes.mark()
        members = tuple(self.joined.values())
        return calls.Joined(
            group=member.stage, round=self.round, state_round=self.state_round, members=members
        ), ()

    async def _members(self, asked: Question[calls.GetMembers]) -> Answered[calls.MembersView]:
        return calls.MembersView(members=tuple(self.joined.values())), ()

    async def _next(self, asked: Question[calls.NextItem]) -> Answered[calls.ItemTasks]:
        request = asked.request
        peer = peer_id(asked.caller)
        if request.results and self.deaf_to_results:
            self.deaf_to_results -= 1
            raise Unavailable("not now")
        self.results |= {(peer, name_of(each)): each for each in request.results}
        self.failures |= {(peer, name_of(each)): each for each in request.failed}
        self.holding[peer] = set(request.holding)
        self.changes.mark()
        if not (request.results or request.failed):
            await self._until(lambda: bool(self.tasks[peer] or self.drops[peer]))
        tasks, self.tasks[peer] = self.tasks[peer], []
        drops, self.drops[peer] = self.drops[peer], []
        return calls.ItemTasks(tasks=tuple(tasks), drops=tuple(drops)), ()

    async def _claims(self, asked: Question[calls.GetClaims]) -> Answered[calls.Claims]:
        request = asked.request
        peer = peer_id(asked.caller)
        before = self.reduces.get(peer, ())
        if request.round == self.round:
            await self._until(
                lambda: (
                    request.round != self.round
                    or request.seen < len(self.told)
                    or self.reduces.get(peer, ()) != before
                    or not self.holds.get(peer, set()) <= self.held[peer]
                    or len(self.joined) != self.known.get(peer)
                )
            )
        news = self.told[request.seen :] if request.round == self.round else []
        self.known[peer] = len(self.joined)
        self.changes.mark()
        return calls.Claims(
            round=self.round,
            seen=len(self.told),
            reduces=self.reduces.get(peer, ()),
            holds=tuple(sorted(self.holds.get(peer, ()))),
            members=tuple(self.joined.values()),
        ), news

    async def _held(self, asked: Question[calls.Held]) -> Answered[calls.Done]:
        self.held[peer_id(asked.caller)] |= set(asked.request.digests)
        self.changes.mark()
        return calls.Done(), ()

    async def _bytes(self, asked: Question[calls.GetBytes]) -> Answered[calls.Done]:
        raise NotFound("the coordinator has none")

    async def _until(self, is_so: Any) -> None:
        while not is_so():
            await self.changes.beyond(self.changes.version)

    async def until(self, is_so: Any) -> None:
        """Wait until a condition on what was heard holds."""
        async with asyncio.timeout(patience(WITHIN)):
            await self._until(is_so)

    # ----------------------------------------------------------------------------------- leading

    async def ask(
        self, member: Member, method: Method[Request, Answer], request: Request, *tensors: bytes
    ) -> tuple[Answer, tuple[memoryview, ...]]:
        """A call to a member."""
        session = self.transport.sessions[member.session.key]
        return await ask(session, method, request, tensors, deadline=patience(WITHIN))

    async def all_joined(self) -> None:
        """Wait until all members are in, and know each other."""
        wanted = {member.session.peer: len(self.maker.members) for member in self.maker.members}
        await self.until(lambda: self.known == wanted and len(self.joined) == len(wanted))

    def deal(self, member: Member, task: calls.Task) -> None:
        """Give a task to a member."""
        self.tasks[member.session.peer].append(task)
        self.changes.mark()

    async def outcome(self, member: Member, task: calls.Task) -> calls.TaskResult | calls.Failure:
        """Give a task, and wait for what comes of it."""
        key = (member.session.peer, name_of(task))
        self.results.pop(key, None)
        self.failures.pop(key, None)
        self.deal(member, task)
        await self.until(lambda: key in self.results or key in self.failures)
        return self.failures.get(key) or self.results[key]

    async def done(self, member: Member, task: calls.Task) -> calls.TaskResult:
        """As `outcome`, of a pass that can be made."""
        found = await self.outcome(member, task)
        assert isinstance(found, calls.TaskResult), found
        return found

    async def compute(self, *items: ItemNumber) -> dict[PeerId, list[ItemNumber]]:
        """All passes of these items, dealt to the members of each group in turn."""
        found: dict[PeerId, list[ItemNumber]] = defaultdict(list)
        for place, item in enumerate(items):
            path = [
                group[place % len(group)] for group in (self.mates(s) for s in range(self.stages))
            ]
            await self.compute_along(path, item)
            for member in path:
                found[member.session.peer].append(item)
        return found

    async def compute_along(self, path: Sequence[Member], item: ItemNumber) -> None:
        """All passes of an item by these members, one of each group."""
        last, named = len(path) - 1, dict[str, tuple[Digest, PeerId]]()
        for place, member in enumerate(path):
            direction: calls.Direction = "whole" if place == last else "forward"
            x = tensor_name("y", place - 1, item)
            task = self.task(direction, item, {x: named[x]} if place else {})
            result = await self.done(member, task)
            named |= {name: (each, member.session.peer) for name, each in result.tensors}
        for place in reversed(range(last)):
            member, dy = path[place], tensor_name("dx", place + 1, item)
            inputs = {dy: named[dy]}
            if place:
                x = tensor_name("y", place - 1, item)
                inputs = {x: named[x]} | inputs
            result = await self.done(member, self.task("backward", item, inputs))
            named |= {name: (each, member.session.peer) for name, each in result.tensors}

    def task(
        self,
        direction: calls.Direction,
        item: ItemNumber,
        inputs: dict[str, tuple[Digest, PeerId]],
        used: dict[str, Digest] | None = None,
    ) -> calls.Task:
        """A task of the round."""
        return calls.Task(
            direction=direction,
            round=self.round,
            item=item,
            inputs=tuple(
                calls.Input(name=name, digest=each, holders=(holder,))
                for name, (each, holder) in inputs.items()
            ),
            used=tuple(sorted((used or {}).items())),
        )

    @property
    def stages(self) -> int:
        """Of the job."""
        return self.maker.spec.batch.stages

    def mates(self, stage: int) -> list[Member]:
        """Members of a stage."""
        return [each for each in self.maker.members if each.stage == stage]

    async def claim(
        self, member: Member, items: Iterable[ItemNumber], given: Iterable[ItemNumber] = ()
    ) -> WorkClaim | tuple[Any, ...]:
        """Ask for a claim, and tell of it; returns what the member lacks if it has none."""
        request = calls.Commit(
            job=self.maker.spec.job(),
            round=self.round,
            items=ranges_of(items),
            given=ranges_of(given),
        )
        answer, tensors = await self.ask(member, calls.COMMIT, request)
        if answer.lacks:
            return answer.lacks
        signed = expect(decode_signed(bytes(tensors[-2])), WorkClaim)
        leaves = decode_kept(bytes(tensors[-1]))
        assert isinstance(leaves, Leaves)
        for place in range(0, 2 * answer.num_reports, 2):
            report = decode_signed(bytes(tensors[place]))
            self.items += [report, decode_kept(bytes(tensors[place + 1]))]
        self.take(member, signed, leaves.leaves)
        return signed.message

    def take(self, member: Member, signed: Signed[WorkClaim], leaves: tuple[Leaf, ...]) -> None:
        """Have a claim, and tell of it."""
        self.claims[member.session.peer].append((signed, leaves))
        self.items += [signed, Leaves(signed.message.digest(), leaves)]
        self.tell(signed)

    def tell(self, signed: Signed[Any]) -> None:
        """Show members a message of the round."""
        self.told.append(signed.encoded())
        self.changes.mark()

    def deal_buckets(self) -> None:
        """Members hear what they are to reduce."""
        for stage, number in self.maker.spec.chunking.all:
            peer = self.maker.reducer(stage, number).session.peer
            self.reduces[peer] = (*self.reduces.get(peer, ()), number)
        self.changes.mark()

    def signed_closed(self, **changed: Any) -> Signed[RoundClosed]:
        """RoundClosed over all claims."""
        claims = [signed.message for each in self.claims.values() for signed, _ in each]
        bases = {claim.group: claim.base for claim in claims}
        values = {"bases": tuple(bases[StageIndex(stage)] for stage in range(self.stages))}
        return self.maker.session.sign(self.maker.closed(claims, **(values | changed)))

    async def reduce(
        self, closed: Signed[RoundClosed], stage: StageIndex, number: ChunkIndex
    ) -> Signed[WorkClaim]:
        """Ask the dealt reducer for a bucket."""
        member = self.maker.reducer(stage, number)
        request = calls.Reduce(bucket=number)
        _, tensors = await self.ask(member, calls.REDUCE, request, closed.encoded())
        return expect(decode_signed(bytes(tensors[0])), WorkClaim)

    async def exchange(self) -> None:
        """Close the round, have all buckets, tell of all that."""
        self.keep_beginning()
        closed = self.signed_closed()
        self.items.append(closed)
        self.tell(closed)
        for stage, number in self.maker.spec.chunking.all:
            bucket = await self.reduce(closed, stage, number)
            self.items.append(bucket)
            self.tell(bucket)

    def keep_beginning(self) -> None:
        """Everybody joins in the first round."""
        notices: list[Kept] = [self.maker.session.sign(each) for each in self.maker.notices()]
        self.items = notices + self.items

    async def seal(
        self, *, last: bool = False, to: Sequence[Member] | None = None
    ) -> list[calls.SealTaken]:
        """Seal what was said, and hand it to members; what each answers."""
        first = self.maker.history.record is not None and self.maker.record.step == 0
        start = 2 if first else len(self.maker.items)  # leases stand under the first seal
        self.maker.seal(self.items, last=last)
        under = self.maker.items[start:]
        self.told, self.reduces, self.holds, self.items = [], {}, {}, []
        self.claims.clear()
        self.changes.mark()
        members = self.maker.members if to is None else to
        return [await self.give_seal(member, under) for member in members]

    async def give_seal(self, member: Member, under: Sequence[Kept]) -> calls.SealTaken:
        """Hand over a seal: its names first, and all of it if something lacks."""
        request = calls.TakeSeal(
            members=tuple(self.joined.values()),
            names=tuple(kept_digest(item) for item in under),
            all_applied=0,
        )
        untold = [encode_kept(item) for item in under if not is_told(item)]
        answer, _ = await self.ask(member, calls.TAKE_SEAL, request, *untold)
        if answer.lacks:
            everything = [encode_kept(item) for item in under]
            answer, _ = await self.ask(member, calls.TAKE_SEAL, request, *everything)
        return answer


def is_told(item: Kept) -> bool:
    """Whether members hear of it before the seal."""
    return isinstance(item, Signed) and isinstance(item.message, WorkClaim | RoundClosed)


def name_of(task: calls.TaskName) -> calls.TaskName:
    """The name of a task, result or failure alone."""
    return calls.TaskName(direction=task.direction, round=task.round, item=task.item)


@dataclass
class ScriptedJob:
    """A scripted coordinator with workers that count."""

    maker: JobMaker
    folder: Path
    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    log: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.network = MemoryNetwork()
        self.coordinator = ScriptedCoordinator(self.maker, self.network)
        self.strategies: dict[PeerId, CountingStrategy] = {}
        self.tasks: dict[PeerId, asyncio.Task[Any]] = {}
        self.transports: dict[PeerId, MemoryTransport] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ScriptedCoordinator]:
        """The coordinator, while all members work."""
        await self.coordinator.serve()
        for member in self.maker.members:
            self.begin(member)
        try:
            await self.coordinator.all_joined()
            yield self.coordinator
        finally:
            for member in self.maker.members:
                await self.kill(member)
            await self.coordinator.transport.close()

    def begin(self, member: Member) -> None:
        """Start a worker on its folder."""
        peer = member.session.peer
        transport = MemoryTransport(self.network, member.session.key, calls.METHODS)
        self.transports[peer] = transport
        self.tasks[peer] = asyncio.create_task(self._work(member, transport))

    async def kill(self, member: Member) -> None:
        """End a worker without a word."""
        task = self.tasks[member.session.peer]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self.transports[member.session.peer].close()
        self.coordinator.joined.pop(member.session.peer, None)
        self.coordinator.known.pop(member.session.peer, None)

    async def _work(self, member: Member, transport: MemoryTransport) -> Any:
        maker, peer = self.maker, member.session.peer
        membership = Membership(
            maker.poster.sign(maker.spec, DOMAIN),
            maker.coordinator.sign(maker.opening, DOMAIN),
            member.wallet.sign(maker.lease(member), DOMAIN),
            DOMAIN,
        )

        async def locate() -> str:
            return self.coordinator.address

        def strategy_for(compute: Compute) -> CountingStrategy:
            self.strategies[peer] = CountingStrategy(maker.spec, compute)
            return self.strategies[peer]

        def tell(event: str, **fields: object) -> None:
            self.log.append((event, {"process": peer, **fields}))

        return await run_worker(
            self.folder_of(member),
            membership,
            Connection(member.session, transport, locate, listen="worker:0"),
            Arithmetic(strategy_for, rows_of, elements_of(maker.spec)),
            tell,
            behaviour=self.behaviours.get(peer.hex(), HONEST),
        )

    def folder_of(self, member: Member) -> Path:
        """Where a worker keeps its bytes."""
        return self.folder / member.session.peer.hex()[:16]

    def events(self, name: str, member: Member | None = None) -> list[dict[str, Any]]:
        """Lines of one kind."""
        return [
            line
            for event, line in self.log
            if event == name and (member is None or line["process"] == member.session.peer)
        ]
