"""What is known of a running job: its terms, its members, and where its step stands. Pure.

Values only; `step.advance` makes one from another. Units: moments in Unix milliseconds, spans in
milliseconds (as the JobSpec signs them).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from contracts.governance.gates import Gates
from contracts.terms.chunks import Chunk, Chunking
from contracts.terms.ids import (
    ZERO_DIGEST,
    Address,
    ChunkIndex,
    Digest,
    JobId,
    PeerId,
    StageIndex,
    StepNumber,
)
from contracts.terms.items import ItemNumber
from contracts.terms.messages import AveragedChunk, AverageSet, GradCommit, JobSpec, StepClose
from contracts.terms.moments import UnixMillis
from training.swarm.remembering import last_answer

Place: TypeAlias = tuple[StageIndex, ItemNumber]
"""One unit in one stage: what is routed, done and counted."""

Part: TypeAlias = tuple[Digest, ChunkIndex]
"""One chunk of the gradient that a GradCommit bound: what a summing peer fetches."""


@dataclass(frozen=True)
class Copy:
    """A unit in a stage as one peer computed it: whose, which attempt, and between which tensors.

    A digest is zero where a stage has no such tensor, as in `UnitLeaf`.
    """

    peer: PeerId
    attempt: int = 0
    x: Digest = ZERO_DIGEST
    y: Digest = ZERO_DIGEST
    dy: Digest = ZERO_DIGEST
    dx: Digest = ZERO_DIGEST


FIRST_STEP = StepNumber(1)
_NO_UNITS: frozenset[ItemNumber] = frozenset()
LONG_AGO = UnixMillis(0)


@dataclass(frozen=True)
class Terms:
    """The numbers of a JobSpec that a step depends on."""

    job: JobId
    num_steps: int
    units_per_step: int
    num_stages: int
    num_chunks: int
    peers_per_stage: int
    """Members that each stage waits for before the first step; later, one that lives is enough."""
    commit_timeout: int
    exchange_timeout: int
    redo_after: int
    lease_grace: int
    checkpoint_every: int = 1  # steps
    is_checked: bool = False  # work is drawn: the job ends with empty steps
    is_tied: bool = False  # the head is the embedding

    @cached_property
    def chunking(self) -> Chunking:
        """Which chunks a step sums."""
        return Chunking(self.num_stages, self.num_chunks, self.is_tied)

    @cached_property
    def applied_in(self) -> Mapping[StageIndex, frozenset[Chunk]]:
        """Chunks that members of each stage apply."""
        return {stage: frozenset(self.chunking.of_stage(stage)) for stage in self.stages}

    @cached_property
    def stages(self) -> tuple[StageIndex, ...]:
        """All stages."""
        return tuple(StageIndex(stage) for stage in range(self.num_stages))

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Every unit of a step in every stage, units ascending."""
        units = range(self.units_per_step)
        return tuple((stage, ItemNumber(unit)) for unit in units for stage in self.stages)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """Every chunk of every stage."""
        return self.chunking.all


def terms_of(spec: JobSpec) -> Terms:
    """The terms that a poster signed."""
    return Terms(
        job=spec.job(),
        num_steps=spec.batch.steps,
        units_per_step=spec.batch.units_per_step,
        num_stages=spec.batch.stages,
        num_chunks=spec.batch.chunks,
        peers_per_stage=spec.batch.peers_per_stage,
        commit_timeout=spec.rules.commit_timeout,
        exchange_timeout=spec.rules.exchange_timeout,
        redo_after=spec.rules.redo_after,
        lease_grace=spec.rules.lease_grace,
        checkpoint_every=spec.batch.checkpoint_every,
        is_checked=spec.rules.audit is not None,
        is_tied=spec.model.tied_head,
    )


MOST_DOUBLINGS = 10
NO_STEP = StepNumber(0)


@dataclass(frozen=True)
class Failings:
    """In how many steps an owner's members have failed at a duty, and in which one last.

    Of an owner, not of a member: who leaves and comes under another lease is the same owner.
    """

    number: int = 0
    last: StepNumber = NO_STEP

    @property
    def until(self) -> StepNumber:
        """The first step in which its members are counted on again for that duty.

        Each failing is remembered for twice as many steps as the one before.
        """
        return StepNumber(self.last + 1 + 2 ** min(self.number, MOST_DOUBLINGS))

    def and_one(self, step: StepNumber) -> "Failings":
        """One more, in `step`; several in one step are one."""
        return self if self.last == step else Failings(self.number + 1, step)


Remembered: TypeAlias = Mapping[Address, Failings]
"""Of the owners that have failed at a duty."""


def with_failing(known: Remembered, owners: Iterable[Address], step: StepNumber) -> Remembered:
    """One failing more for each of `owners`."""
    fresh = {owner: known.get(owner, Failings()).and_one(step) for owner in owners}
    return {**known, **fresh} if fresh else known


def has_failed(known: Remembered, owner: Address, step: StepNumber) -> bool:
    """Whether an owner's members are not counted on in `step`."""
    return owner in known and known[owner].until > step


@dataclass(frozen=True)
class Member:
    """A peer with a sealed or soon to be sealed join notice."""

    peer: PeerId
    stage: StageIndex
    address: str  # where it can be dialled; empty: through the coordinator
    applied: StepNumber  # the last step whose seal it has applied; 0 before the first
    owner: Address  # the account of its lease: several peers of one account count as one owner
    rate: int  # units per 1e6 seconds, measured when it joined
    bandwidth: int  # bytes per second, its own word
    lost_at: UnixMillis | None = None  # since when its session is gone; None while it is here
    leaves_by: UnixMillis | None = None  # at the latest, as far as nobody needs it; None: it stays

    @property
    def is_here(self) -> bool:
        """Whether the coordinator has a session with it."""
        return self.lost_at is None

    @property
    def leaving(self) -> bool:
        """Whether it gets no more units, and leaves when none of its work is open."""
        return self.leaves_by is not None


@dataclass(frozen=True)
class Draft:
    """A step until its AverageSet: whose work there is, and what was said about it."""

    done: Mapping[Place, Copy] = field(default_factory=dict)
    closes: tuple[StepClose, ...] = ()
    commits: tuple[tuple[GradCommit, tuple[ItemNumber, ...]], ...] = ()  # in, and still counting
    struck: frozenset[PeerId] = frozenset()  # too late in this step: their work is done again
    strikes: int = 0  # how often a deadline passed
    denied: frozenset[PeerId] = frozenset()  # said that they lack a part that was relayed to them
    struck_units: frozenset[ItemNumber] = frozenset()  # cannot be completed: they count in no stage

    def units_of(self, stage: StageIndex, peer: PeerId) -> tuple[ItemNumber, ...]:
        """Units of a stage that count as done by `peer`, ascending."""
        return self.doers.get((stage, peer), ())

    @cached_property
    def doers(self) -> Mapping[tuple[StageIndex, PeerId], tuple[ItemNumber, ...]]:
        """Whose units count in which stage, both ascending."""
        units: defaultdict[tuple[StageIndex, PeerId], list[ItemNumber]] = defaultdict(list)
        for (stage, unit), copy in self.done.items():
            units[stage, copy.peer].append(unit)
        return {name: tuple(sorted(units[name])) for name in sorted(units)}

    def committed(self, stage: StageIndex, peer: PeerId) -> frozenset[ItemNumber]:
        """Units of a stage that `peer` has bound itself to, in any round."""
        return self._bound.get((stage, peer), _NO_UNITS)

    @cached_property
    def owing(self) -> frozenset[tuple[StageIndex, PeerId]]:
        """Whom the newest StepClose gives units to which they are not bound yet."""
        assigned = ((each.stage, each.peer, each.units) for each in self.closes[-1].assignments)
        return frozenset(
            (stage, peer)
            for stage, peer, units in assigned
            if self.committed(stage, peer) != frozenset(units)
        )

    @cached_property
    def _bound(self) -> Mapping[tuple[StageIndex, PeerId], frozenset[ItemNumber]]:
        bound: dict[tuple[StageIndex, PeerId], frozenset[ItemNumber]] = {}
        for commit, units in self.commits:
            name = commit.stage, commit.peer
            bound[name] = bound.get(name, _NO_UNITS) | frozenset(units)
        return bound


@dataclass(frozen=True)
class Working:
    """Units go out and come back. `ends`: until when work that was lost may be done again."""

    draft: Draft = field(default_factory=Draft)
    ends: UnixMillis | None = None


@dataclass(frozen=True)
class Closed:
    """A StepClose is out; GradCommits come in until `ends`."""

    draft: Draft
    ends: UnixMillis

    @property
    def close(self) -> StepClose:
        """The StepClose that counts."""
        return self.draft.closes[-1]


@dataclass(frozen=True)
class Committed:
    """Every GradCommit is in; summing peers fetch the parts until `ends`."""

    draft: Draft
    held: Mapping[PeerId, frozenset[Part]]  # by whom, also what is not wanted of it any more
    ends: UnixMillis


@dataclass(frozen=True)
class Averaging:
    """The AverageSet is out; averaged chunks come in until `ends`, and are held: see `securing`."""

    draft: Draft
    average: AverageSet
    ends: UnixMillis
    dealt: Mapping[Chunk, PeerId] = field(default_factory=dict)  # who held all parts of it first
    chunks: Mapping[Chunk, tuple[AveragedChunk, bytes]] = field(default_factory=dict)  # signed
    held: Mapping[PeerId, frozenset[Chunk]] = field(default_factory=dict)  # of those, by whom
    kept: frozenset[Chunk] = frozenset()  # by the coordinator, for whoever lacks them
    averaged_at: UnixMillis | None = None  # when the last of them was
    is_telling: bool = False  # an owner is blamed that was not since the last update


@dataclass(frozen=True)
class Sealing:
    """Everything under the seal is there; the seal is not stored yet."""

    has_update: bool
    is_empty: bool = False  # a step without work, by which draws go on
    is_barren: bool = False  # work without an update, and nobody new to blame


@dataclass(frozen=True)
class Finished:
    """The last seal is stored."""


Phase: TypeAlias = Working | Closed | Committed | Averaging | Sealing | Finished


@dataclass(frozen=True)
class SwarmState:
    """A job between two events."""

    terms: Terms
    step: StepNumber = FIRST_STEP  # the one that is worked on; the last one when finished
    phase: Phase = field(default_factory=Working)
    members: Mapping[PeerId, Member] = field(default_factory=dict)
    owners: Mapping[PeerId, Address] = field(default_factory=dict)  # of all that ever joined
    holding: Remembered = field(default_factory=dict)  # failings at holding means, by owner
    summing: Remembered = field(default_factory=dict)  # failings at summing, by owner
    gates: Gates = field(default_factory=Gates)
    at: UnixMillis = LONG_AGO  # of the last event
    started: bool = False  # every stage has once had all its peers
    standing_since: UnixMillis | None = None  # deadlines do not run while a stage has nobody
    returning_until: UnixMillis = LONG_AGO  # after a restart: members are on their way back
    next_notice: int = 0
    barren: int = 0  # steps since the last update that ended without one, and blamed nobody new
    blamed: frozenset[Address] = frozenset()  # since then: what was dealt to them was not summed
    paused: bool = False
    hold_from: StepNumber | None = None  # the poster's pause: no units of it, or of later steps
    idle: int = 0  # steps that were sealed without work in pauses: none of `num_steps`
    stopping: bool = False  # the step in work is the last one with work
    draining: bool = False  # all work is sealed; steps are empty until no draw is open
    takes_work: bool = True  # enough steps are drawn for one more to be closed
    is_clear: bool = True  # no draw is open, by the newest seal
    to_seal: int = 0  # what was said that only a seal makes count
    seal_due: bool = False  # by an empty one, while no work goes out

    @property
    def is_held(self) -> bool:
        """Whether the poster's pause has begun."""
        return self.hold_from is not None and self.step >= self.hold_from

    @property
    def is_idle(self) -> bool:
        """Whether no step with work is begun: draws go on by empty ones."""
        return self.draining or self.paused or self.is_held


def at_work(state: SwarmState, stage: StageIndex) -> tuple[Member, ...]:
    """Members of a stage that the coordinator reaches, in ascending order of ids."""
    return here_by_stage(state.members).get(stage, ())


@last_answer
def here_by_stage(members: Mapping[PeerId, Member]) -> Mapping[StageIndex, tuple[Member, ...]]:
    """Those that the coordinator reaches, by stage, in ascending order of ids."""
    here: defaultdict[StageIndex, list[Member]] = defaultdict(list)
    for member in sorted(members.values(), key=lambda member: member.peer):
        if member.is_here:
            here[member.stage].append(member)
    return {stage: tuple(own) for stage, own in here.items()}
