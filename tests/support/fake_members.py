"""A coordinator of the new round over the in-memory transport, and members that compute nothing.

A fake member speaks all calls of a member, follows every seal with the rules of governance, and
makes real bytes for shards and buckets; boundary tensors are digests alone. What members would send
each other they find in one table. Its mood says what it does wrong.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Buffer

from contracts.governance.job import JobHistory, follow
from contracts.governance.record import JobRecord
from contracts.terms import errors
from contracts.terms.history import (
    Kept,
    Leaves,
    claim_leaves_root,
    decode_kept,
    encode_kept,
    kept_digest,
)
from contracts.terms.ids import (
    ZERO_DIGEST,
    ChunkIndex,
    Digest,
    SessionKey,
    StageIndex,
    StepNumber,
)
from contracts.terms.items import ItemNumber, numbers_of, ranges_of
from contracts.terms.messages import Message, Seal
from contracts.terms.signatures import Signed, decode_signed
from contracts.terms.work import Leaf, Output, RoundClosed, WorkClaim, leaf_names
from tests.support.fakes.coordinator import MemoryFeed, MemoryLimits, MemoryRoster, MemoryWishes
from tests.support.fakes.memory_transport import MemoryNetwork, MemoryTransport
from tests.support.history import DOMAIN, make_digest
from tests.support.papers import Papers
from tests.support.simulated_time import loop_clock
from training.averaging.norms import norm_squared
from training.averaging.slices import slice_digest
from training.coordinator.run import Clocks, CoordinatedJob, Signer, World, run_coordinator
from training.strategies.every_step.rules import EveryStep
from training.strategies.port import Bucket, Layout
from training.tasks import end
from training.transport import calls
from training.transport.calls import METHODS
from training.transport.dispatch import Dispatcher, Tensors
from training.transport.wire import ask

ELEMENTS = 4
RULES = EveryStep()
Line = dict[str, Any]


def output_of(number: ChunkIndex, data: bytes) -> Output:
    """What a claim says of these bytes."""
    return Output(bucket=number, digest=slice_digest(data), norm_squared=norm_squared(data))


@dataclass
class FakeMember:
    """One member of a `FakeJob`, by the name of its lease."""

    job: "FakeJob"
    name: str
    moods: set[str] = field(default_factory=set)
    """`mute`: claims nothing; `lying`: its leaves are not its results; `keeping`: gives its shards
    to nobody; `false`: shards of other bytes; `idle`: reduces nothing; `lazy`: makes no item;
    `deaf`: fetches nothing."""
    group: StageIndex = field(default=StageIndex(0))
    results: dict[ItemNumber, calls.TaskResult] = field(default_factory=dict)
    own: dict[Digest, bytes] = field(default_factory=dict)  # what others may fetch
    known: dict[Digest, Kept] = field(default_factory=dict)
    heard: list[tuple[int, Message]] = field(default_factory=list)  # by `round.claims`, and when
    early: list[int] = field(default_factory=list)
    """How many claims were stored whenever it heard of one and had not claimed."""
    claimed: list[tuple[Signed[WorkClaim], Leaves]] = field(default_factory=list)
    tasks: list[calls.Task] = field(default_factory=list)
    seals: int = 0
    sent: int = 0  # items under seals that came with them

    def __post_init__(self) -> None:
        member = self.job.papers.members[self.name]
        self.session, self.peer = member.session, member.session.peer
        self.history = JobHistory(DOMAIN)
        for signed in (self.job.papers.spec, self.job.papers.signed_opening()):
            self.history = follow(self.history, Signed[Message](signed.message, signed.signature))
        self._reduced: dict[Bucket, Signed[WorkClaim]] = {}
        self._loops: list[asyncio.Task[None]] = []

    @property
    def record(self) -> JobRecord:
        """What it knows to be sealed."""
        assert self.history.record is not None
        return self.history.record

    @property
    def round(self) -> int:
        """That it works on."""
        return self.record.step + 1

    # ------------------------------------------------------------------------------------- calls

    async def come(self) -> None:
        """Connect and join."""
        self.transport = MemoryTransport(
            self.job.network, self.session.key, METHODS, clock=loop_clock
        )
        self.transport.set_members([self.job.papers.session.key])
        serve = Dispatcher(clock=loop_clock)
        serve.on(calls.MEASURE, self._measure)
        serve.on(calls.COMMIT, self._commit)
        serve.on(calls.REDUCE, self._reduce)
        serve.on(calls.TAKE_SEAL, self._take_seal)
        serve.on(calls.GET_BYTES, self._get_bytes)
        await self.transport.serve(serve)
        coordinator = self.job.papers.session.key
        self._to = await self.transport.dial(coordinator, [self.job.address], deadline=5.0)
        lease = self.job.papers.leases[self.name]
        request = calls.Join(
            job=self.job.papers.job, address="", bandwidth=1000, applied=self.record.step
        )
        answer, _ = await self._ask(calls.JOIN, request, [lease.encoded()])
        self.group = answer.group
        self._loops = [asyncio.create_task(self._work()), asyncio.create_task(self._listen())]

    async def get(self, digest: Digest) -> bytes:
        """Bytes from the coordinator."""
        request = calls.GetBytes(job=self.job.papers.job, digest=digest)
        _, tensors = await self._ask(calls.GET_BYTES, request)
        return bytes(tensors[0])

    async def go(self) -> None:
        """Vanish; what is in memory and not claimed stays."""
        await end(self._loops)
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._loops = []
        await self.transport.close()

    async def _ask(self, method: Any, request: Any, tensors: Sequence[Buffer] = ()) -> Any:
        return await ask(self._to, method, request, tensors, deadline=60.0)

    async def _work(self) -> None:
        made: list[calls.TaskResult] = []
        is_first = True
        while True:
            request = calls.NextItem(
                job=self.job.papers.job,
                is_first=is_first,
                results=tuple(self.results.values()) if is_first else tuple(made),
                failed=(),
                holding=tuple(map(_name, self.tasks)),
            )
            answer, _ = await self._ask(calls.NEXT_ITEM, request)
            is_first = False
            self.tasks = [each for each in self.tasks if _name(each) not in answer.drops]
            self.tasks += answer.tasks
            made = [] if "lazy" in self.moods else [self.make(task) for task in self.tasks]
            if "lazy" not in self.moods:
                self.tasks = []

    def make(self, task: calls.Task) -> calls.TaskResult:
        """What comes of a task."""
        stages = self.record.spec.batch.stages
        names = leaf_names(self.group, stages, task.item)
        wanted = {
            "forward": (names.x, names.y),
            "evaluate": (names.x, names.y),
        }.get(task.direction, names.all)
        own = {name: make_digest(name) for name in wanted if name}
        own |= {each.name: each.digest for each in task.inputs}
        is_last = self.group == stages - 1
        result = calls.TaskResult(
            direction=task.direction,
            round=task.round,
            item=task.item,
            tensors=tuple(sorted((own | dict(task.used)).items())),
            loss=3_000_000 + task.item if is_last else None,
            given=any(own.get(name) != digest for name, digest in task.used),
        )
        if task.direction in ("backward", "whole"):
            self.results[task.item] = result
        return result

    async def _listen(self) -> None:
        seen = seen_of = 0
        while True:
            if seen_of != self.round:
                seen, seen_of, self._reduced = 0, self.round, {}
            request = calls.GetClaims(job=self.job.papers.job, round=seen_of, seen=seen)
            answer, tensors = await self._ask(calls.GET_CLAIMS, request)
            if answer.round != seen_of or self.round != seen_of:
                await asyncio.sleep(0.01)
                continue
            seen = answer.seen
            for tensor in tensors:
                signed = decode_signed(bytes(tensor))
                self.known[kept_digest(signed)] = signed
                self.heard.append((seen_of, signed.message))
                if not any(own.message.round == seen_of for own, _ in self.claimed):
                    self.early.append(len(self.job.told("claim_stored", step=seen_of)))
            await self._tell_held(seen_of, set(answer.reduces), set(answer.holds))

    async def _tell_held(self, round: int, reduces: set[ChunkIndex], holds: set[Digest]) -> None:
        """Everything that it is to have, and that can be had."""
        if "deaf" in self.moods:
            return
        claims = [m for r, m in self.heard if r == round and isinstance(m, WorkClaim)]
        outputs = self.job.layout.outputs
        mine = {(self.group, number) for number in reduces}
        wanted = {
            output.digest
            for claim in claims
            for bucket, output in zip(
                outputs[claim.group] if claim.what == "work" else [(claim.group, claim.bucket)],
                claim.outputs,
                strict=True,
            )
            if (bucket in mine if claim.what == "work" else bucket in outputs[self.group])
        }
        held = (wanted | holds) & self.job.bytes.keys()
        self.own |= {digest: self.job.bytes[digest] for digest in held}
        if held:
            request = calls.Held(job=self.job.papers.job, round=round, digests=tuple(held))
            await self._ask(calls.HELD, request)

    # ---------------------------------------------------------------------------------- answers

    async def _measure(self, _c: SessionKey, _r: calls.Measure, _t: Tensors) -> Any:
        return calls.Done(), ()

    async def _commit(self, _c: SessionKey, request: calls.Commit, _t: Tensors) -> Any:
        if "mute" in self.moods:
            raise errors.Overloaded("not now")
        items = numbers_of(request.items)
        lacks = [item for item in items if item not in self.results]
        if lacks:
            return calls.Committed(lacks=ranges_of(lacks), num_reports=0), ()
        for signed, leaves in self.claimed:
            is_of_round = signed.message.round == request.round
            if is_of_round and not set(signed.message.numbers).isdisjoint(items):
                return _committed(signed, leaves)
        signed, leaves = self.claim(request.round, items)
        self.claimed.append((signed, leaves))
        for item in (Signed[Message](signed.message, signed.signature), leaves):
            self.known[kept_digest(item)] = item
        return _committed(signed, leaves)

    def claim(self, round: int, items: Sequence[ItemNumber]) -> tuple[Signed[WorkClaim], Leaves]:
        """A claim of items that it has done."""
        lie = make_digest("lie") if "lying" in self.moods else None
        leaves = tuple(self._leaf(round, self.results[item], lie) for item in items)
        outputs = []
        for place, _ in enumerate(self.job.layout.outputs[self.group]):
            values = np.full(ELEMENTS, 1 + place + len(items) / 8, np.float32)
            values[0] = int.from_bytes(self.peer[:2]) / 2**16
            data = values.tobytes()
            output = output_of(ChunkIndex(place), data)
            outputs.append(output)
            self.own[output.digest] = b"\0" * len(data) if "false" in self.moods else data
            if not self.moods & {"keeping", "false"}:
                self.job.bytes[output.digest] = data
        seq = sum(each.message.round == round for each, _ in self.claimed)
        message = WorkClaim(
            job=self.record.job,
            peer=self.peer,
            previous=self.record.previous,
            round=StepNumber(round),
            what="work",
            group=self.group,
            seq=seq,
            attempt=0,
            base=make_digest("base", self.group, self.record.updates),
            items=ranges_of(items),
            subject=ZERO_DIGEST,
            leaves=claim_leaves_root(leaves),
            outputs=tuple(outputs),
            reports=(),
        )
        return self.session.sign(message), Leaves(message.digest(), leaves)

    def _leaf(self, round: int, result: calls.TaskResult, lie: Digest | None) -> Leaf:
        tensors = tuple((name, lie or digest) for name, digest in result.tensors)
        numbers = () if result.loss is None else (result.loss,)
        return Leaf(
            item=result.item,
            base_round=round,
            given=result.given,
            tensors=tensors,
            numbers=numbers,
        )

    async def _reduce(self, _c: SessionKey, request: calls.Reduce, tensors: Tensors) -> Any:
        if "idle" in self.moods:
            raise errors.Overloaded("not now")
        closed = decode_signed(bytes(tensors[0])).message
        assert isinstance(closed, RoundClosed)
        bucket = self.group, request.bucket
        if bucket not in self._reduced:
            self._reduced[bucket] = self._sum(closed, bucket)
        return calls.Reduced(), [self._reduced[bucket].encoded()]

    def _sum(self, closed: RoundClosed, bucket: Bucket) -> Signed[WorkClaim]:
        claims = {
            message.digest(): message
            for message in (
                *(m for _, m in self.heard),
                *(signed.message for signed, _ in self.claimed),
                *(each.message for each in self.history.pending.values()),
            )
            if isinstance(message, WorkClaim) and message.what == "work"
        }
        if closed.weights.keys() - claims.keys():
            raise errors.Unavailable("not all claims are here yet")
        mean, total = np.zeros(ELEMENTS, np.float64), 0
        for name, weight in closed.claims:
            place = self.job.layout.outputs[claims[name].group]
            if bucket in place:
                digest = claims[name].outputs[place.index(bucket)].digest
                data = self.own.get(digest) or self.job.bytes.get(digest)
                if data is None:
                    raise errors.Unavailable("a shard is not here")
                mean += weight * np.frombuffer(data, np.float32)
                total += weight
        data = (mean / total).astype(np.float32).tobytes()
        output = output_of(bucket[1], data)
        self.own[output.digest] = self.job.bytes[output.digest] = data
        message = WorkClaim(
            job=self.record.job,
            peer=self.peer,
            previous=self.record.previous,
            round=closed.round,
            what="bucket",
            group=bucket[0],
            seq=0,
            attempt=0,
            base=ZERO_DIGEST,
            items=(),
            subject=closed.digest(),
            leaves=ZERO_DIGEST,
            outputs=(output,),
            reports=(),
        )
        return self.session.sign(message)

    async def _take_seal(self, _c: SessionKey, request: calls.TakeSeal, tensors: Tensors) -> Any:
        given = [decode_kept(bytes(tensor)) for tensor in tensors]
        self.sent += len(given)
        self.known |= {kept_digest(item): item for item in given}
        lacks = any(name not in self.known for name in request.names)
        if not lacks:
            for name in request.names:
                self.history = follow(self.history, self.known[name])
            self.seals += 1
            self.results = {}
        root = make_digest("base", self.group, self.record.updates)
        return calls.SealTaken(round=self.record.step, state_root=root, lacks=lacks), ()

    async def _get_bytes(self, _c: SessionKey, request: calls.GetBytes, _t: Tensors) -> Any:
        if request.digest not in self.own or "keeping" in self.moods:
            raise errors.NotFound("it is not here")
        return calls.Done(), [self.own[Digest(request.digest)]]


@dataclass
class FakeJob:
    """A coordinator, its fake members, and its log."""

    papers: Papers
    folder: Path
    max_items: int | None = None

    def __post_init__(self) -> None:
        self.network, self.feed = MemoryNetwork(), MemoryFeed()
        self.lines: list[Line] = []
        self.bytes: dict[Digest, bytes] = {}  # that members would send each other
        self.layout: Layout = RULES.layout(self.papers.spec.message)
        self.members = {name: FakeMember(self, name) for name in self.papers.members}
        self._news = asyncio.Event()
        self.address = ""
        self.task: asyncio.Task[None] | None = None
        self.limits, self.wishes = MemoryLimits(), MemoryWishes()

    def tell(self, event: str, **fields: object) -> None:
        """See `Tell`."""
        self.lines.append({"event": event, **fields})
        self._news.set()

    def told(self, event: str, **fields: object) -> list[Line]:
        """Lines of one event, with these fields."""
        return [
            line
            for line in self.lines
            if line["event"] == event and all(line.get(k) == v for k, v in fields.items())
        ]

    async def until_told(self, event: str, number: int = 1, **fields: object) -> None:
        """Wait for so many lines; the coordinator may not end before."""
        while len(self.told(event, **fields)) < number:
            self._news.clear()
            news = asyncio.create_task(self._news.wait())
            assert self.task is not None
            await asyncio.wait({news, self.task}, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
            if self.task.done() and len(self.told(event, **fields)) < number:
                self.task.result()
                raise AssertionError(f"the job has ended before {event}")

    async def start(self) -> None:
        """Start the coordinator, again on the same folder."""
        self.transport = MemoryTransport(
            self.network, self.papers.session.key, METHODS, clock=loop_clock
        )
        started = asyncio.Event()

        def announce(address: str) -> None:
            self.address = address
            started.set()

        job = CoordinatedJob(
            self.papers.spec,
            self.papers.opening,
            Signer(self.papers.coordinator, self.papers.session, DOMAIN),
            RULES,
            {bucket: ELEMENTS for bucket in self.layout.buckets},
            max_items=self.max_items,
        )
        world = World(
            transport=self.transport,
            listen="memory:0",
            announce=announce,
            feed=self.feed,
            roster=MemoryRoster([*self.papers.leases.values()]),
            wishes=self.wishes,
            limits=self.limits,
        )
        clocks = Clocks(clock=loop_clock)
        task = asyncio.create_task(run_coordinator(self.folder, job, world, self.tell, clocks))
        self.task = task
        waiting = asyncio.create_task(started.wait())
        await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if task.done():
            task.result()

    async def stop(self) -> None:
        """End the coordinator in the middle of whatever it does."""
        if self.task is not None:
            await end([self.task])
            await self.transport.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FakeJob"]:
        """With the coordinator and all members."""
        await self.start()
        try:
            await asyncio.gather(*(member.come() for member in self.members.values()))
            yield self
        finally:
            for member in self.members.values():
                with suppress(AttributeError):
                    await member.go()
            await self.stop()

    def seals_known(self) -> list[Seal]:
        """That some member has been told of."""
        known = {**{k: v for m in self.members.values() for k, v in m.known.items()}}
        messages = [each.message for each in known.values() if isinstance(each, Signed)]
        return sorted((m for m in messages if isinstance(m, Seal)), key=lambda each: each.step)

    def seals(self) -> list[Seal]:
        """That were posted."""
        items = (decode_kept(item) for item in self.feed.items)
        messages = [each.message for each in items if isinstance(each, Signed)]
        return [message for message in messages if isinstance(message, Seal)]


def _name(task: calls.TaskName) -> calls.TaskName:
    return calls.TaskName(direction=task.direction, round=task.round, item=task.item)


def _committed(signed: Signed[WorkClaim], leaves: Leaves) -> Any:
    return calls.Committed(lacks=(), num_reports=0), [signed.encoded(), encode_kept(leaves)]
