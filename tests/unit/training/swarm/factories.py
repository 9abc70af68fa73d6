"""Makes jobs, peers and messages of a swarm in few words."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from contracts.terms.digest import digest
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
from contracts.terms.messages import AveragedChunk, AverageSet, GradCommit, PartDigest, StepClose
from contracts.terms.moments import UnixMillis
from training.swarm.duties import Duty, duties_of
from training.swarm.events import (
    ChunkAveraged,
    ChunksHeld,
    Effect,
    Event,
    GradCommitted,
    PartsHeld,
    PeerJoined,
    SealApplied,
    SealStored,
    Ticked,
    UnitsDone,
)
from training.swarm.state import Averaging, Closed, Committed, Copy, Place, SwarmState, Terms
from training.swarm.step import advance, assigned_units

P = TypeVar("P")
STAGE = StageIndex(0)
JOB = JobId(digest("test", b"job"))


def peer(name: str) -> PeerId:
    """A peer whose id sorts as its one-letter name."""
    return PeerId(name.encode().ljust(32, b"."))


A, B, C, D = peer("a"), peer("b"), peer("c"), peer("d")


def terms(
    peers: int = 3, units: int = 6, steps: int = 3, chunks: int = 3, stages: int = 1
) -> Terms:
    """Commit within 1 s, exchange within 2 s, redo after 0.5 s, grace 10 s; a checkpoint in 2."""
    return Terms(JOB, steps, units, stages, chunks, peers, 1000, 2000, 500, 10_000, 2)


def owner_of(who: PeerId) -> Address:
    """The wallet of a peer, another one for each."""
    return Address(who[:1] * 20)


def joining(
    who: PeerId,
    stage: int = 0,
    *,
    applied: int = 0,
    owner: Address | None = None,
    rate: int = 100,
    at: int = 0,
) -> PeerJoined:
    """A peer comes; all are equally fast unless it is said otherwise."""
    return PeerJoined(
        who,
        StageIndex(stage),
        "",
        StepNumber(applied),
        ZERO_DIGEST,
        owner or owner_of(who),
        rate,
        1000,
        UnixMillis(at),
    )


def tensor(*names: object) -> Digest:
    """A digest that stands for the tensor with these names."""
    return digest("tensor", repr(names).encode())


def copy(
    doer: PeerId, stage: int, unit: int, *, attempt: int = 0, stages: int = 1, version: object = 0
) -> tuple[Place, Copy]:
    """A copy that fits those of the same `version` in the stages beside it."""

    def between(kind: str, after: int) -> Digest:
        return tensor(kind, after, unit, version) if 0 < after < stages else ZERO_DIGEST

    place = (StageIndex(stage), ItemNumber(unit))
    return place, Copy(
        doer,
        attempt,
        between("y", stage) if stage else tensor("rows", unit),
        between("y", stage + 1),
        between("dx", stage + 1),
        between("dx", stage),
    )


def duty_of(state: SwarmState, peer: PeerId) -> Duty | None:
    """What is owed to one peer."""
    return duties_of(state).get(peer)


HALVES = {A: (0, 1, 2), B: (3, 4, 5)}
"""The units of a step of two peers."""


class Swarm:
    """Drives the machine by hand; `now` is what events carry."""

    def __init__(self, of: Terms) -> None:
        self.terms, self.state, self.now = of, SwarmState(of), 1000
        self.events: list[Event] = []
        self.effects: list[Effect] = []

    def tell(self, event: Event) -> tuple[Effect, ...]:
        """Apply one event and remember it."""
        self.state, effects = advance(self.state, event)
        self.events.append(event)
        self.effects += effects
        return effects

    def phase(self, kind: type[P]) -> P:
        """The phase of the step, which is of this kind."""
        assert isinstance(self.state.phase, kind)
        return self.state.phase

    @property
    def at(self) -> UnixMillis:
        """The moment of the next event."""
        return UnixMillis(self.now)

    def wait(self, span: int) -> tuple[Effect, ...]:
        """Let milliseconds pass."""
        self.now += span
        return self.tell(Ticked(self.at))

    def join(self, *peers: PeerId, stage: int = 0) -> None:
        """Each peer joins a stage."""
        for each in peers:
            self.tell(joining(each, stage, at=self.now))

    def work(self, doer: PeerId, *units: int, stage: int = 0) -> tuple[Effect, ...]:
        """`doer` computes units of a stage."""
        stages = self.terms.num_stages
        copies = tuple(copy(doer, stage, unit, stages=stages) for unit in units)
        return self.tell(UnitsDone(self.state.step, copies, self.at))

    def work_all(self, shares: Mapping[PeerId, Iterable[int]]) -> None:
        """Each peer computes its units of the first stage."""
        for doer, units in shares.items():
            self.work(doer, *units)

    def commit(self, *peers: PeerId, of: StepClose | None = None) -> None:
        """Each peer commits to what the StepClose gives it and it has not committed to."""
        for each in peers:
            assert isinstance(self.state.phase, Closed)
            self.tell(GradCommitted(*self.commitment(each, of or self.state.phase.close), self.at))

    def commitment(
        self, doer: PeerId, close: StepClose, state_root: Digest = ZERO_DIGEST
    ) -> tuple[GradCommit, tuple[ItemNumber, ...]]:
        """The GradCommit of `doer` under `close`, with its units."""
        assert isinstance(self.state.phase, Closed)
        draft, stage = self.state.phase.draft, self.state.members[doer].stage
        own = draft.committed(stage, doer)
        units = tuple(unit for unit in assigned_units(close, stage, doer) if unit not in own)
        rounds = sum(commit.peer == doer for commit, _ in draft.commits)
        commit = grad_commit(doer, close, units, round=rounds, state_root=state_root, stage=stage)
        return commit, units

    def hold(self, *peers: PeerId) -> None:
        """Each peer holds every part."""
        for each in peers:
            phase = self.state.phase
            if isinstance(phase, Committed):
                parts = tuple(
                    (commit.digest(), ChunkIndex(chunk))
                    for commit, _ in phase.draft.commits
                    for chunk in range(self.terms.num_chunks)
                )
                self.tell(PartsHeld(self.state.step, each, parts, self.at))

    def average(self, *peers: PeerId) -> None:
        """The peers take turns in averaging all chunks, and everybody here holds them."""
        self.average_only(*peers)
        for member in [*self.state.members.values()]:
            if member.is_here:
                self.hold_chunks(member.peer)

    def hold_chunks(self, *peers: PeerId) -> None:
        """Each peer holds every averaged chunk of its stage."""
        for each in peers:
            own = self.terms.chunking.of_stage(self.state.members[each].stage)
            self.tell(ChunksHeld(self.state.step, each, own, self.at))

    def average_only(self, *peers: PeerId) -> None:
        """The peers take turns in averaging all chunks."""
        assert isinstance(self.state.phase, Averaging)
        average = self.state.phase.average
        for stage in self.terms.stages:
            own = [each for each in peers if self.state.members[each].stage == stage]
            for chunk in range(self.terms.num_chunks):
                message = averaged_chunk(own[chunk % len(own)], average, chunk, stage=stage)
                self.tell(ChunkAveraged(message, self.at))

    def seal(self, *, last: bool = False) -> None:
        """The seal is stored, and everybody here applies it."""
        step = self.state.step
        self.tell(SealStored(step, last, self.at))
        for each in [member.peer for member in self.state.members.values() if member.is_here]:
            self.tell(SealApplied(each, step, self.at))

    def whole_step(self, work: Mapping[PeerId, Iterable[int]]) -> None:
        """One undisturbed step."""
        self.work_all(work)
        self.commit(*work)
        self.hold(*work)
        self.average(*work)
        self.seal()


def grad_commit(
    doer: PeerId,
    close: StepClose,
    units: tuple[ItemNumber, ...],
    *,
    round: int = 0,
    state_root: Digest = ZERO_DIGEST,
    stage: StageIndex = STAGE,
    norm_squared: int = 0,
) -> GradCommit:
    """A GradCommit without any content that a machine looks at."""
    return GradCommit(
        job=close.job,
        step=close.step,
        round=round,
        stage=stage,
        peer=doer,
        step_close=close.digest(),
        previous_seal=ZERO_DIGEST,
        state_root=state_root,
        units_root=ZERO_DIGEST,
        num_units=max(1, len(units)),
        num_samples=max(1, 2 * len(units)),
        parts=(PartDigest(chunk=ChunkIndex(0), digest=ZERO_DIGEST, norm_squared=norm_squared),),
        reports=(),
    )


def averaged_chunk(
    summing: PeerId, average: AverageSet, chunk: int, *, stage: StageIndex = STAGE
) -> AveragedChunk:
    """An AveragedChunk without any content that a machine looks at."""
    return AveragedChunk(
        job=average.job,
        step=average.step,
        stage=stage,
        peer=summing,
        average_set=average.digest(),
        chunk=ChunkIndex(chunk),
        chunk_digest=ZERO_DIGEST,
        norm_squared=1,
    )
