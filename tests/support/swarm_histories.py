"""A whole swarm in one thread: the real machine, simulated peers and trainers, faults by seed.

Nothing is computed: a unit's gradient in a stage is a known vector of integers, a tensor is the
digest of who made it from what, so that two peers never make the same one. What is real: the state
machine with its journal, duties, caps, quotas and the balancer, GradCommits and leaves, and
`derive_seal` over them. Time goes in ticks. After `quiet_from` nothing new goes wrong, and whatever
is down comes back, so every job has to end.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import count
from random import Random
from typing import Any, TypeAlias

from contracts.governance.seals import UnderSeal, derive_seal
from contracts.terms.chunks import Chunk
from contracts.terms.digest import digest
from contracts.terms.history import unit_leaves_root
from contracts.terms.ids import (
    ZERO_DIGEST,
    ChunkIndex,
    Digest,
    PeerId,
    StageIndex,
    StepNumber,
    UnitId,
)
from contracts.terms.messages import (
    AveragedChunk,
    AverageSet,
    GradCommit,
    Message,
    PartDigest,
    StepClose,
    UnitLeaf,
)
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from tests.support.history import MODEL, JobMaker, Member, make_members
from training.swarm.caps import quotas_for_trainer
from training.swarm.closing import assigned_units
from training.swarm.duties import (
    ApplySeal,
    Commit,
    Duty,
    FetchParts,
    HoldChunks,
    SumChunks,
    copies_known,
    duties_of,
    missing_places,
    next_deadline,
    workers_of,
)
from training.swarm.events import (
    BuildSeal,
    ChunkAveraged,
    ChunksHeld,
    Effect,
    Event,
    GradCommitted,
    KeepChunks,
    LinkBroken,
    PartsDenied,
    PartsHeld,
    PeerJoined,
    PeerLeaving,
    PeerLost,
    PeerReturned,
    Resumed,
    SealApplied,
    SealStored,
    SendAverageSet,
    SendNotice,
    SendStepClose,
    Ticked,
    UnitsDone,
    UnitsLacked,
    UnitsLost,
)
from training.swarm.journaled import decode_event, encode_event, replay
from training.swarm.membership import stage_for_newcomer
from training.swarm.routing import BACKWARD, FORWARD, Balancer, Listed
from training.swarm.state import (
    Averaging,
    Closed,
    Copy,
    Finished,
    Part,
    Place,
    SwarmState,
    Working,
    at_work,
    terms_of,
)

Advance: TypeAlias = Callable[[SwarmState, Event], tuple[SwarmState, tuple[Effect, ...]]]

TICK = 20  # ms
PATIENCE = 120_000  # ms in which a job has to end
NUM_CHUNKS, ROWS = 3, 4
TIED_EVERY = 4  # history whose first and last stage share a matrix
TIME_TO_SUM = 333  # ms after which who sums nothing is replaced: a third of the deadline
LOST_SUMS = 0.15  # of all AverageSets: somebody who sums, and an owner of his parts, go for good
FAULTS = (
    "kill", "kill", "wipe", "wipe", "destroy", "destroy", "freeze", "cut", "part", "lose_parts",
    "deny", "leave", "join", "restart", "trainer", "trainer",
)  # fmt: skip


class Unreached(Exception):
    """A simulated call did not come back."""


def tensor(*names: object) -> Digest:
    """The digest of what this peer made of these tensors."""
    return digest("made", repr(names).encode())


def gradient(stage: int, step: int, unit: int, num_parts: int) -> list[int]:
    """What a unit adds to the gradient of a stage: one number a part."""
    return [Random(f"{stage}/{step}/{unit}/{part}").randint(-99, 99) for part in range(num_parts)]


def norm_squared(value: Fraction) -> int:
    """In 1e-12, rounded down."""
    return int(value * value * 10**12)


@dataclass
class Peer:
    """One provider: what a process forgets when it dies, and what its disk keeps."""

    member: Member
    rate: int
    bandwidth: int
    alive: bool = True
    frozen: bool = False  # reachable, and answers nothing
    connected: bool = False  # has a session with the coordinator
    gone: bool = False  # for good
    denies: bool = False  # as a summing peer
    applied: int = 0
    copies: dict[UnitId, Copy] = field(default_factory=dict)  # counted; memory
    inputs: dict[UnitId, tuple[Digest, Digest, int]] = field(default_factory=dict)  # x, y, attempt
    tensors: set[Digest] = field(default_factory=set)  # disk, until the step is sealed
    commits: list[tuple[GradCommit, tuple[UnitLeaf, ...]]] = field(default_factory=list)  # disk
    parts: dict[Part, Fraction] = field(default_factory=dict)  # disk: own and fetched
    step: int = 0  # that memory and disk are of

    def __post_init__(self) -> None:
        self.peer: PeerId = self.member.session.peer

    @property
    def stage(self) -> StageIndex:
        """Where it works."""
        return self.member.stage

    def turn_to(self, step: int) -> None:
        """Forget what belongs to steps before."""
        if step != self.step:
            self.copies, self.inputs, self.tensors, self.commits = {}, {}, set(), []
            self.parts, self.step = {}, step

    @property
    def bound(self) -> set[UnitId]:
        """Units that it has committed to."""
        return {leaf.unit for _, leaves in self.commits for leaf in leaves}


class World:
    """One job under faults that a seed chooses. `run` plays it to its end and checks it."""

    def __init__(self, seed: int, advance: Advance, *, num_faults: int | None = None) -> None:
        self.chance = Random(seed)
        self.advance = advance
        per_stage = self.chance.choice((2, 2, 3, 4))
        self.num_units = self.chance.choice((4, 6))
        names = [f"peer {number}" for number in range(3 * per_stage)]
        members = make_members(names, stages=3, seed=str(seed))
        if self.chance.random() < 0.3:  # some of them have one owner
            members = [replace(m, wallet=members[n // 6 * 6].wallet) for n, m in enumerate(members)]
        changes: dict[str, Any] = {
            "steps": 3, "units_per_step": self.num_units, "rows_per_unit": ROWS,
            "chunks": NUM_CHUNKS, "peers_per_stage": per_stage, "checkpoint_every": 2,
            "layer_ends": (1, 2, 3),
            "model": MODEL.model_copy(update={"tied_head": seed % TIED_EVERY == 0}),
        }  # fmt: skip
        self.maker = JobMaker(name=f"history {seed}", members=members, spec_changes=changes)
        self.record = self.maker.record
        terms = replace(
            terms_of(self.maker.spec),
            commit_timeout=1000,
            exchange_timeout=1000,
            redo_after=self.chance.choice((200, 3000)),
            lease_grace=3000,
        )
        self.state = SwarmState(terms)
        self.now = 1000
        self.journal: list[bytes] = []
        self.peers = {m.session.peer: self._machine(m) for m in members}
        self.newcomers = 0
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.order = count()
        self.busy: set[PeerId] = set()
        self.trainers = [Trainer(self, number) for number in range(2)]
        self.cuts: set[frozenset[PeerId]] = set()
        self.messages: list[Message] = []
        self.leaves: dict[Digest, tuple[UnitLeaf, ...]] = {}
        self.means: dict[tuple[StageIndex, ChunkIndex], Fraction] = {}
        self.seen: Counter[str] = Counter()
        self.coordinator_up = True
        self.fate = Random(f"sums {seed}")  # of its own, so that all else stays as it was
        wanted = self.chance.randint(2, 10) if num_faults is None else num_faults
        self.quiet_from = 5000
        self.may_lose_sums = wanted > 0
        for _ in range(wanted):
            self.at(self.chance.randrange(100, 3000), self._fault)
        self.at(self.quiet_from, self._calm)
        for each in self.peers.values():
            self.at(self.chance.randrange(200), partial(self._join, each))

    def _machine(self, member: Member) -> Peer:
        return Peer(member, self.chance.choice((5, 10, 20)) * 10**6, self.chance.choice((1, 2, 5)))

    # ------------------------------------------------------------------------------- the clock

    def at(self, delay: int, action: Callable[[], None]) -> None:
        """Do this after so many milliseconds."""
        heapq.heappush(self.queue, (self.now + delay, next(self.order), action))

    def run(self) -> None:
        """Play the job to its end."""
        while not isinstance(self.state.phase, Finished):
            assert self.now < PATIENCE, f"the job does not end: {self.state.phase!r:.300}"
            while self.queue and self.queue[0][0] <= self.now:
                heapq.heappop(self.queue)[2]()
            if self.coordinator_up:
                due = next_deadline(self.state)
                if due is not None and due <= self.now:
                    self.tell(Ticked(UnixMillis(self.now)))
                self._serve()
                for trainer in self.trainers:
                    trainer.pump()
            self.now += TICK
        self._check_replay()
        assert self.record.ended

    # ------------------------------------------------------------------------- the coordinator

    def tell(self, event: Event) -> None:
        """An event reaches the coordinator, is stored and followed."""
        before = self.state
        self.state, effects = self.advance(before, event)
        check_transition(before, self.state)
        if not effects and replace(self.state, at=before.at) == before:
            self.state = before
            return
        self.journal.append(encode_event(event))
        self.seen[type(event).__name__] += 1
        match event:
            case GradCommitted(commit=commit):
                self.messages.append(commit)
        for effect in effects:
            self._follow(effect)

    def _follow(self, effect: Effect) -> None:
        self.seen[type(effect).__name__] += 1
        match effect:
            case SendNotice(message):
                self.messages.append(message)
            case SendAverageSet(message):
                self.messages.append(message)
                if message.members and self.may_lose_sums and self.fate.random() < LOST_SUMS:
                    self.at(0, self._lose_a_sum)
            case KeepChunks(chunks):
                self.messages += [chunk for chunk, _ in chunks]
            case SendStepClose(message):
                self._check_close(message)
                self.messages.append(message)
            case BuildSeal(step, last):
                self._seal(step, last)

    def _check_close(self, close: StepClose) -> None:
        """The same units in all stages, each once, and nobody who is too late already."""
        assert isinstance(self.state.phase, Closed)
        per_stage = [
            sorted(unit for each in close.assignments if each.stage == stage for unit in each.units)
            for stage in self.state.terms.stages
        ]
        struck = self.state.phase.draft.struck_units
        expected = [unit for unit in range(self.num_units) if unit not in struck]
        assert all(units == expected for units in per_stage)
        assert self.state.phase.draft.struck.isdisjoint(each.peer for each in close.assignments)

    def _seal(self, step: StepNumber, last: bool) -> None:
        under = UnderSeal(tuple(Signed(each, b"") for each in self.messages), self.leaves)
        before = sum(self.record.pay.earned.values())
        derived = derive_seal(self.record, under, last=last)
        earned = sum(derived.record.pay.earned.values()) - before
        self._check_step(earned)
        self.record, self.messages, self.leaves, self.means = derived.record, [], {}, {}
        self.tell(SealStored(step, last, UnixMillis(self.now)))

    def _check_step(self, earned: int) -> None:
        """Pay is what was sealed, and the means are those of an undisturbed step."""
        averages = [each for each in self.messages if isinstance(each, AverageSet)]
        closes = [each for each in self.messages if isinstance(each, StepClose)]
        if not averages or not averages[0].members:
            return
        units = sorted({unit for each in closes[-1].assignments for unit in each.units})
        assert earned == sum(len(units) * flops for flops in self.maker.spec.unit_flops)
        if len(self.means) < len(self.state.terms.chunks):
            self.seen["lapsed"] += 1
            return
        for name in self.state.terms.chunks:
            total = sum(
                self._gradient(stage, unit)[name[1]]
                for stage in self.state.terms.chunking.stages_of(name)
                for unit in units
            )
            assert self.means[name] == Fraction(total, len(units))
        self.seen["updates"] += 1

    def _gradient(self, stage: StageIndex, unit: UnitId) -> list[int]:
        num_parts = len(self.state.terms.chunking.of_stage(stage))
        return gradient(stage, self.state.step, unit, num_parts)

    def _check_replay(self) -> None:
        assert replay(self.state.terms, map(decode_event, self.journal)) == self.state

    def _serve(self) -> None:
        duties = duties_of(self.state)
        for peer in list(self.state.members):
            machine = self.peers[peer]
            if peer in duties and peer not in self.busy and self.reaches(machine):
                duty = duties[peer]
                self.busy.add(peer)
                self.at(self._latency(machine, duty), partial(self._do, machine, duty))

    def reaches(self, machine: Peer) -> bool:
        """Whether calls of the coordinator to it get through."""
        return machine.alive and machine.connected

    def _latency(self, machine: Peer, duty: Duty) -> int:
        patience = TIME_TO_SUM if isinstance(duty, SumChunks) else 1500
        return self.chance.randrange(10, 80) + (patience if machine.frozen else 0)

    def _do(self, machine: Peer, duty: Duty) -> None:
        self.busy.discard(machine.peer)
        if not self.coordinator_up or not self.reaches(machine):
            return
        if machine.frozen:
            if isinstance(duty, SumChunks):
                step, at = StepNumber(duty.average.step), UnixMillis(self.now)
                self.tell(PartsDenied(step, machine.peer, at))
            return
        if isinstance(duty, ApplySeal):
            self._told(SealApplied(machine.peer, duty.step, UnixMillis(self.now)))
            machine.applied = max(machine.applied, duty.step)
            return
        if self.state.step != machine.applied + 1:
            return
        machine.turn_to(self.state.step)
        match duty:
            case Commit(close):
                self._commit(machine, close)
            case FetchParts(parts):
                self._fetch(machine, parts)
            case SumChunks(average, chunks) if isinstance(self.state.phase, Averaging):
                self._sum(machine, average, chunks)
            case HoldChunks() if isinstance(self.state.phase, Averaging):
                self._hold(machine, duty)

    def _told(self, event: Event) -> None:
        """The answer may be lost, or come twice; what the peer did stays done."""
        luck = self.chance.random() if self.now < self.quiet_from else 1.0
        if luck < 0.05:
            return
        self.tell(event)
        if luck < 0.12:
            self.at(self.chance.randrange(5, 700), lambda: self.tell_again(event))

    def tell_again(self, event: Event) -> None:
        """A repeated message, if its coordinator is there to hear it."""
        if self.coordinator_up:
            self.tell(replace(event, at=UnixMillis(self.now)))

    def _commit(self, machine: Peer, close: StepClose) -> None:
        step, at = StepNumber(close.step), UnixMillis(self.now)
        given = assigned_units(close, machine.stage, machine.peer)
        units = tuple(unit for unit in given if unit not in machine.bound)
        if lacked := tuple(unit for unit in units if unit not in machine.copies):
            places = tuple((machine.stage, unit) for unit in lacked)
            self._told(UnitsLacked(step, machine.peer, places, at))
            return
        if units:
            machine.commits.append(self._bind(machine, close, units))
        for commit, leaves in machine.commits:
            own = tuple(leaf.unit for leaf in leaves)
            if not self._links_hold(machine, leaves):
                self.tell(LinkBroken(step, machine.peer, at))
                return
            before = self.state
            self.tell(GradCommitted(commit, own, at))
            if self.state is not before:
                self.leaves[commit.digest()] = leaves

    def _bind(
        self, machine: Peer, close: StepClose, units: tuple[UnitId, ...]
    ) -> tuple[GradCommit, tuple[UnitLeaf, ...]]:
        is_last = machine.stage == 2
        copies = [(unit, machine.copies[unit]) for unit in units]
        leaves = tuple(
            UnitLeaf(unit=u, x=c.x, y=c.y, dy=c.dy, dx=c.dx, loss=1 if is_last else None)
            for u, c in copies
        )
        totals = [self._gradient(machine.stage, unit) for unit in units]
        mean = [Fraction(sum(column), len(units)) for column in zip(*totals, strict=True)]
        parts = tuple(
            PartDigest(
                chunk=ChunkIndex(chunk),
                digest=tensor("part", machine.peer, units, chunk),
                norm_squared=norm_squared(value),
            )
            for chunk, value in enumerate(mean)
        )
        commit = GradCommit(
            job=close.job,
            step=close.step,
            round=len(machine.commits),
            stage=machine.stage,
            peer=machine.peer,
            step_close=close.digest(),
            previous_seal=self.record.previous,
            state_root=tensor("state", machine.stage, close.step),
            units_root=unit_leaves_root(leaves),
            num_units=len(units),
            num_samples=len(units) * ROWS,
            parts=parts,
            reports=(),
        )
        for chunk, value in enumerate(mean):
            machine.parts[commit.digest(), ChunkIndex(chunk)] = value
        return commit, leaves

    def _links_hold(self, machine: Peer, leaves: Iterable[UnitLeaf]) -> bool:
        """Whether it commits to the copies that trainers reported."""
        match self.state.phase:
            case Working(draft) | Closed(draft):
                for leaf in leaves:
                    copy = draft.done.get((machine.stage, leaf.unit))
                    if copy is not None and copy.peer == machine.peer and not _tells(leaf, copy):
                        return False
        return True

    def _fetch(self, machine: Peer, parts: Iterable[Part]) -> None:
        """Straight from the owner, else relayed by the coordinator; who denies it says so."""
        held: list[Part] = []
        for part in parts:
            owner = next((p for p in self.peers.values() if part in p.parts and p.alive), None)
            if part in machine.parts:
                held.append(part)
            elif owner is None or owner.frozen or not self._reached(owner, machine):
                continue
            elif machine.denies:
                self.tell(PartsDenied(self.state.step, machine.peer, UnixMillis(self.now)))
                return
            else:
                machine.parts[part] = owner.parts[part]
                held.append(part)
        if held:
            at = UnixMillis(self.now)
            self._told(PartsHeld(self.state.step, machine.peer, tuple(held), at))

    def _reached(self, owner: Peer, by: Peer) -> bool:
        return self.linked(owner, by) or owner.connected

    def linked(self, one: Peer, other: Peer) -> bool:
        """Whether two peers reach each other."""
        return frozenset((one.peer, other.peer)) not in self.cuts

    def _sum(
        self, machine: Peer, average: AverageSet, chunks: Iterable[tuple[StageIndex, ChunkIndex]]
    ) -> None:
        weights = {each.grad_commit: each.weight for each in average.members}
        commits = [m for m in self.messages if isinstance(m, GradCommit) and m.digest() in weights]
        for stage, chunk in chunks:
            givers = self.state.terms.chunking.stages_of((stage, chunk))
            of_stages = [[c.digest() for c in commits if c.stage == giver] for giver in givers]
            parts = [(name, chunk) for own in of_stages for name in own]
            for part in parts:
                holders = [p for p in self.peers.values() if p.alive and part in p.parts]
                if part not in machine.parts and holders:
                    machine.parts[part] = holders[0].parts[part]
            if any(part not in machine.parts for part in parts):
                continue
            mean = sum(
                (
                    sum((weights[name] * machine.parts[name, chunk] for name in own), Fraction())
                    / sum(weights[name] for name in own)
                    for own in of_stages
                ),
                Fraction(),
            )
            message = AveragedChunk(
                job=average.job,
                step=average.step,
                stage=stage,
                peer=machine.peer,
                average_set=average.digest(),
                chunk=chunk,
                chunk_digest=tensor("mean", stage, chunk),
                norm_squared=norm_squared(mean),
            )
            phase = self.state.phase
            if isinstance(phase, Averaging) and (stage, chunk) not in phase.chunks:
                self.means[stage, chunk] = mean
                self.tell(ChunkAveraged(message, UnixMillis(self.now)))

    def _hold(self, machine: Peer, duty: HoldChunks) -> None:
        """Straight from a holder, or through the coordinator, else summed again."""
        held = tuple(each for each in duty.chunks if self._has_mean(machine, duty, each))
        if held:
            at = UnixMillis(self.now)
            self._told(ChunksHeld(self.state.step, machine.peer, held, at))

    def _has_mean(self, machine: Peer, duty: HoldChunks, chunk: Chunk) -> bool:
        assert isinstance(self.state.phase, Averaging)
        holders = [self.peers[p] for p, own in self.state.phase.held.items() if chunk in own]
        if any(p.alive and not p.frozen and self._reached(p, machine) for p in holders):
            return True
        parts = self._parts_of(duty.average, chunk)
        return all(self._has_part(machine, part) for part in parts)

    def _parts_of(self, average: AverageSet, chunk: Chunk) -> list[Part]:
        names = {each.grad_commit for each in average.members}
        givers = self.state.terms.chunking.stages_of(chunk)
        commits = (m for m in self.messages if isinstance(m, GradCommit) and m.stage in givers)
        return [(m.digest(), chunk[1]) for m in commits if m.digest() in names]

    def _has_part(self, machine: Peer, part: Part) -> bool:
        return part in machine.parts or any(
            p.alive and part in p.parts for p in self.peers.values()
        )

    # ------------------------------------------------------------------------------ membership

    def _join(self, machine: Peer) -> None:
        if not self.coordinator_up:
            self.at(200, lambda: self._join(machine))
            return
        if isinstance(self.state.phase, Finished) or machine.gone or machine.connected:
            return
        at, member = UnixMillis(self.now), machine.member
        machine.connected = True
        if machine.peer in self.state.members:
            self.tell(PeerReturned(machine.peer, "", StepNumber(machine.applied), at))
            self._lack(machine)
            return
        self.tell(
            PeerJoined(
                machine.peer,
                machine.stage,
                "",
                StepNumber(machine.applied),
                self.maker.lease(member).digest(),
                member.wallet.account,
                machine.rate,
                machine.bandwidth,
                at,
            )
        )

    def _lack(self, machine: Peer) -> None:
        match self.state.phase:
            case Working(draft) | Closed(draft):
                held = {*machine.copies, *machine.bound} if machine.step == self.state.step else {}
                lacked = [
                    place
                    for place, copy in draft.done.items()
                    if copy.peer == machine.peer and place[1] not in held
                ]
                if lacked:
                    places, at = tuple(sorted(lacked)), UnixMillis(self.now)
                    self.tell(UnitsLacked(self.state.step, machine.peer, places, at))

    def _disconnect(self, machine: Peer) -> None:
        if machine.connected:
            machine.connected = False
            if self.coordinator_up:
                self.tell(PeerLost(machine.peer, UnixMillis(self.now)))

    # ---------------------------------------------------------------------------------- faults

    def _fault(self) -> None:
        kind = self.chance.choice(FAULTS)
        self.seen[kind] += 1
        alive = [each for each in self.peers.values() if each.alive and not each.gone]
        if not alive:
            return
        machine, other = self.chance.choice(alive), self.chance.choice(alive)
        back = self.chance.choice((100, 600, 2000, 4500))
        match kind:
            case "kill":
                self._die(machine, back)
            case "destroy" if self._can_spare(machine):
                machine.gone = True
                self._die(machine, None)
            case "wipe":
                machine.tensors.clear()
                self._die(machine, back)
            case "freeze":
                machine.frozen = True
                self.at(back, lambda: setattr(machine, "frozen", False))
            case "cut":
                self._disconnect(machine)
                self.at(back, lambda: self._join(machine))
            case "part":
                pair = frozenset((machine.peer, other.peer))
                self.cuts.add(pair)
                self.at(back, lambda: self.cuts.discard(pair))
            case "lose_parts" if isinstance(self.state.phase, Working | Closed):
                machine.parts.clear()  # of a commit; later ones would be missing in the sums
            case "deny":
                machine.denies = True
            case "leave" if self._can_spare(machine) and self.coordinator_up:
                self.tell(PeerLeaving(machine.peer, UnixMillis(self.now)))
            case "join":
                self._recruit()
            case "restart":
                self._restart(back)
            case "trainer":
                self.chance.choice(self.trainers).die(back)

    def _lose_a_sum(self) -> None:
        """Who is to sum a chunk, and one whose part only these two hold, are gone for good."""
        duties = sorted(duties_of(self.state).items())
        summing = [peer for peer, duty in duties if isinstance(duty, SumChunks)]
        if not summing:
            return
        machine = self.peers[self.fate.choice(summing)]
        owners = {copy.peer for copy in self._draft_of_averaging() if copy.peer != machine.peer}
        mates = [p for p in map(self.peers.get, sorted(owners)) if p and p.stage == machine.stage]
        for victim in (machine, *mates[:1]):
            if victim.alive and not victim.gone and self._can_spare(victim):
                self.seen["lost_sum"] += 1
                victim.gone = True
                self._die(victim, None)

    def _draft_of_averaging(self) -> list[Copy]:
        phase = self.state.phase
        return [*phase.draft.done.values()] if isinstance(phase, Averaging) else []

    def _can_spare(self, machine: Peer) -> bool:
        """Some loss is for good; not of what a stage needs from somebody."""
        lasting = [
            each
            for each in self.peers.values()
            if each.stage == machine.stage
            and not each.gone
            and not (each.peer in self.state.members and self.state.members[each.peer].leaving)
        ]
        return len(lasting) > 1

    def _die(self, machine: Peer, back: int | None) -> None:
        machine.alive, machine.frozen = False, False
        machine.copies, machine.inputs = {}, {}
        self._disconnect(machine)
        if back is not None:
            self.at(back, lambda: self._live(machine))

    def _live(self, machine: Peer) -> None:
        machine.alive = True
        self._join(machine)

    def _recruit(self) -> None:
        self.newcomers += 1
        stage = stage_for_newcomer(self.state)
        (fresh,) = make_members([f"newcomer {self.newcomers}"], seed=str(self.now))
        machine = self._machine(replace(fresh, stage=stage))
        self.record = replace(
            self.record,
            leases={**self.record.leases, machine.peer: self.maker.lease(machine.member)},
        )
        self.peers[machine.peer] = machine
        self._join(machine)

    def _restart(self, back: int) -> None:
        if not self.coordinator_up:
            return
        self.coordinator_up = False
        self._check_replay()
        for machine in self.peers.values():
            machine.connected = False
        self.at(back, self._resume)

    def _resume(self) -> None:
        self.coordinator_up = True
        self.tell(Resumed(UnixMillis(self.now)))
        for machine in self.peers.values():
            if machine.alive:
                self.at(self.chance.randrange(20, 300), partial(self._join, machine))

    def _calm(self) -> None:
        """Whatever is down comes back, and a stage that has nobody gets somebody."""
        if not self.coordinator_up:
            self.at(500, self._calm)
            return
        self.cuts.clear()
        for machine in self.peers.values():
            machine.frozen = machine.denies = False
            if not machine.alive and not machine.gone:
                self._live(machine)
        for stage in self.state.terms.stages:
            if not any(not member.leaving for member in at_work(self.state, stage)):
                self._recruit()
        if self.state.paused or not self.state.started:
            self._recruit()
        self.at(3000, self._calm)


def _gives_way(machine: Peer, known: Copy, fresh: Copy, unit: UnitId) -> bool:
    """Whether a peer takes other tensors for a unit that it has counted: only in a later try."""
    if replace(known, attempt=fresh.attempt) == fresh:
        return True
    return unit not in machine.bound and known.attempt < fresh.attempt


def _tells(leaf: UnitLeaf, copy: Copy) -> bool:
    return (leaf.x, leaf.y, leaf.dy, leaf.dx) == (copy.x, copy.y, copy.dy, copy.dx)


def check_transition(before: SwarmState, after: SwarmState) -> None:
    """A copy gives way to a newer one only, fits its neighbours, and is of no late peer."""
    old, new = getattr(before.phase, "draft", None), getattr(after.phase, "draft", None)
    if new is None:
        return
    for (stage, unit), copy in new.done.items():
        beyond = new.done.get((StageIndex(stage + 1), unit))
        assert beyond is None or (copy.y, copy.dy) == (beyond.x, beyond.dx)
        assert copy.peer not in new.struck
        assert unit not in new.struck_units
    if old is not None and before.step == after.step:
        for place in old.done.keys() & new.done.keys():
            first, second = old.done[place], new.done[place]
            assert first == second or first.attempt < second.attempt


@dataclass
class Task:
    """One unit on its way through the stages that miss it."""

    step: StepNumber
    unit: UnitId
    attempt: int
    known: dict[StageIndex, Copy]  # of stages that have it
    doers: dict[StageIndex, PeerId] = field(default_factory=dict)
    passed: dict[StageIndex, tuple[Digest, Digest]] = field(default_factory=dict)  # x, y
    made: dict[StageIndex, Copy] = field(default_factory=dict)


class Trainer:
    """Routes units with the real balancer; forgets everything when it dies."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number, self.alive = world, number, True
        self.life = 0
        self._forget()

    def _forget(self) -> None:
        self.flying: set[UnitId] = set()
        self.balancers = {stage: Balancer(self.number) for stage in self.world.state.terms.stages}
        self.version = 0
        self.step = StepNumber(0)
        self.attempts: Counter[UnitId] = Counter()

    def die(self, back: int) -> None:
        """Lose every unit that is out, and start again later.

        One that only seemed dead goes on with them, beside whoever routes them in its place.
        """
        self.alive = False
        self.life += self.world.chance.choice((0, 1))
        self._forget()
        self.world.at(back, lambda: setattr(self, "alive", True))

    def pump(self) -> None:
        """Send out what is missing, and mine."""
        world = self.world
        if not self.alive:
            return
        if self.step != world.state.step:
            self.step, self.flying, self.attempts = world.state.step, set(), Counter()
        missing = missing_places(world.state)
        alive = [trainer for trainer in world.trainers if trainer.alive]
        mine, num = alive.index(self), len(alive)
        units = sorted({unit for _, unit in missing if unit % num == mine} - self.flying)
        if not units:
            return
        self._announce(missing, mine, num)
        known = copies_known(world.state)
        for unit in units:
            self.attempts[unit] += 1
            attempt = world.now * 100 + self.attempts[unit]
            own = {stage: copy for (stage, each), copy in known if each == unit}
            self.flying.add(unit)
            self._next(Task(world.state.step, unit, attempt, own), self.life)

    def _announce(self, missing: Iterable[Place], mine: int, num: int) -> None:
        self.version = max(self.version + 1, len(self.world.journal))
        state, parts = self.world.state, quotas_for_trainer(self.world.state, mine, num)
        for stage, balancer in self.balancers.items():
            listed = [Listed(m.peer, m.rate, *parts[m.peer]) for m in workers_of(state, stage)]
            own = [unit for each, unit in missing if each == stage]
            self.balancers[stage] = balancer.announced(
                listed, step=state.step, version=self.version, missing=own
            )

    def _next(self, task: Task, life: int) -> None:
        """One call further, or the end of it."""
        if life != self.life:
            return
        try:
            call = self._call(task)
        except Unreached:
            self._give_up(task)
            return
        if call is None:
            self._report(task)
            return
        peer, samples, action = call
        seconds = self.world.chance.randrange(5, 40)

        def arrive() -> None:
            if life != self.life:
                return
            machine = self.world.peers[peer]
            try:
                if not machine.alive or machine.frozen:
                    raise Unreached
                machine.turn_to(max(machine.step, task.step))
                if machine.step != task.step or machine.applied != task.step - 1:
                    raise Unreached
                action(machine)
            except Unreached:
                balancer = self.balancers[machine.stage]
                self.balancers[machine.stage] = balancer.failed(task.unit, peer)
                task.doers.pop(machine.stage, None)
                self._give_up(task)
                return
            balancer = self.balancers[machine.stage].answered(peer, samples, seconds / 1000)
            self.balancers[machine.stage] = balancer
            self._next(task, life)

        self.world.at(seconds, arrive)

    def _call(self, task: Task) -> tuple[PeerId, float, Callable[[Peer], None]] | None:
        """The next call of a unit: forward up its missing stages, then backward down them."""
        segment = self._segment(task)
        if segment is None:
            return None
        stages = [StageIndex(stage) for stage in range(segment[0], segment[1] + 1)]
        for stage in stages:
            if stage not in task.passed:
                forward = partial(self._forward, task, stage)
                return self._choose(task, stage), FORWARD, forward
        stage = next(stage for stage in reversed(stages) if stage not in task.made)
        peer = task.doers.get(stage) or self._choose(task, stage)
        return peer, BACKWARD, partial(self._backward, task, stage)

    def _segment(self, task: Task) -> tuple[int, int] | None:
        """The first run of stages that miss the unit."""
        have = {**task.known, **task.made}
        open_stages = [s for s in range(3) if StageIndex(s) not in have]
        started = [s for s in task.passed if s not in task.made]
        if not open_stages:
            return None
        first = min([*started, open_stages[0]])
        last = first
        while last + 1 in open_stages:
            last += 1
        return first, last

    def _choose(self, task: Task, stage: StageIndex) -> PeerId:
        balancer, peer = self.balancers[stage].choose(task.unit)
        self.balancers[stage] = balancer
        if peer is None:
            raise Unreached
        return peer

    def _neighbour(self, task: Task, stage: int) -> Copy | None:
        return task.known.get(StageIndex(stage)) or task.made.get(StageIndex(stage))

    def _fetch(self, machine: Peer, task: Task, name: Digest) -> None:
        """Take a tensor from whoever holds it; a unit whose tensors nobody has is lost."""
        holders = [p for p in self.world.peers.values() if name in p.tensors]
        if not any(p.alive and self.world.linked(p, machine) for p in holders):
            if not any(p.alive for p in holders) and task.known:
                self._tell_lost(task)
            raise Unreached
        machine.tensors.add(name)

    def _tell_lost(self, task: Task) -> None:
        if self.world.coordinator_up:
            at = UnixMillis(self.world.now)
            self.world.tell(UnitsLost(task.step, (task.unit,), at))

    def _forward(self, task: Task, stage: StageIndex, machine: Peer) -> None:
        if stage == 0:
            x = tensor("rows", task.step, task.unit)
        else:
            before = self._neighbour(task, stage - 1)
            x = before.y if before else task.passed[StageIndex(stage - 1)][1]
            self._fetch(machine, task, x)
        known = machine.copies.get(task.unit)
        if known is not None and known.x == x:
            y = known.y
        elif task.unit in machine.bound:
            raise Unreached  # Conflict
        else:
            old = machine.inputs.get(task.unit)
            if known is not None and known.attempt >= task.attempt:
                raise Unreached  # Conflict
            y = old[1] if old and old[0] == x else self._made("y", machine, task, x)
            machine.inputs[task.unit] = (x, y, task.attempt)
        y = ZERO_DIGEST if stage == 2 else y
        machine.tensors.add(y)
        task.passed[stage], task.doers[stage] = (x, y), machine.peer

    def _made(self, kind: str, machine: Peer, task: Task, *of: Digest) -> Digest:
        return tensor(kind, machine.peer, task.unit, *of)

    def _backward(self, task: Task, stage: StageIndex, machine: Peer) -> None:
        x, y = task.passed[stage]
        above, below = self._neighbour(task, stage + 1), task.known.get(StageIndex(stage - 1))
        dy = ZERO_DIGEST
        if stage < 2:
            assert above is not None
            dy, y = above.dx, above.x
            self._fetch(machine, task, dy)
        if stage and x not in machine.tensors:
            self._fetch(machine, task, x)
        known = machine.copies.get(task.unit)
        again = known is not None and (known.x, known.dy) == (x, dy)
        if stage == 0:
            dx = ZERO_DIGEST
        elif below is not None:
            dx = below.dy
        else:
            dx = known.dx if known and again else self._made("dx", machine, task, x, dy)
        copy = Copy(machine.peer, task.attempt, x, y, dy, dx)
        if known is not None and not _gives_way(machine, known, copy, task.unit):
            raise Unreached  # Conflict
        if task.unit not in machine.bound:
            machine.copies[task.unit] = copy
        machine.tensors.update((dx, dy))
        task.made[stage] = copy

    def _give_up(self, task: Task) -> None:
        self.flying.discard(task.unit)
        for stage, balancer in self.balancers.items():
            peer = task.doers.get(stage)
            if peer is not None:
                self.balancers[stage] = balancer.released(task.unit, peer)

    def _report(self, task: Task) -> None:
        world, life = self.world, self.life
        copies = tuple(((stage, task.unit), copy) for stage, copy in sorted(task.made.items()))
        event = UnitsDone(task.step, copies, UnixMillis(world.now))

        def deliver() -> None:
            if not world.coordinator_up:
                world.at(100, deliver)  # it insists, unless it dies
                return
            if life == self.life:
                world.tell(replace(event, at=UnixMillis(world.now)))
                self.flying.discard(task.unit)
                if world.now < world.quiet_from and world.chance.random() < 0.5:
                    world.at(world.chance.randrange(10, 2500), lambda: world.tell_again(event))

        slow = world.now < world.quiet_from and world.chance.random() < 0.15
        world.at(world.chance.randrange(1, 30) + (800 if slow else 0), deliver)
