"""Makes jobs, peers and messages of a swarm in few words."""

from collections.abc import Iterable, Mapping

from contracts.terms.digest import digest
from contracts.terms.ids import (
    ZERO_DIGEST,
    ChunkIndex,
    Digest,
    JobId,
    PeerId,
    StageIndex,
    StepNumber,
    UnitId,
)
from contracts.terms.messages import AveragedChunk, AverageSet, GradCommit, PartDigest, StepClose
from contracts.terms.moments import UnixMillis
from training.swarm.events import (
    ChunkAveraged,
    Effect,
    Event,
    GradCommitted,
    PartsHeld,
    PeerJoined,
    SealApplied,
    SealStored,
    UnitsDone,
)
from training.swarm.state import Averaging, Closed, Committed, SwarmState, Terms
from training.swarm.step import advance, assigned_units

STAGE = StageIndex(0)
JOB = JobId(digest("test", b"job"))


def peer(name: str) -> PeerId:
    """A peer whose id sorts as its one-letter name."""
    return PeerId(name.encode().ljust(32, b"."))


A, B, C = peer("a"), peer("b"), peer("c")


def terms(peers: int = 3, units: int = 6, steps: int = 3, chunks: int = 3) -> Terms:
    """Terms of a job with one stage: commit within 1 s, exchange within 2 s, grace 10 s."""
    return Terms(JOB, steps, units, 1, chunks, peers, 1000, 2000, 10_000)


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

    @property
    def at(self) -> UnixMillis:
        """The moment of the next event."""
        return UnixMillis(self.now)

    def join(self, *peers: PeerId) -> None:
        """Each peer joins stage 0."""
        for each in peers:
            self.tell(PeerJoined(each, STAGE, "", StepNumber(0), ZERO_DIGEST, self.at))

    def work(self, doer: PeerId, *units: int) -> None:
        """`doer` computes units of stage 0."""
        places = tuple((STAGE, UnitId(unit)) for unit in units)
        self.tell(UnitsDone(self.state.step, doer, places, self.at))

    def commit(self, *peers: PeerId, of: StepClose | None = None) -> None:
        """Each peer commits to what the StepClose gives it and it has not committed to."""
        for each in peers:
            assert isinstance(self.state.phase, Closed)
            self.tell(GradCommitted(*self.commitment(each, of or self.state.phase.close), self.at))

    def commitment(
        self, doer: PeerId, close: StepClose, state_root: Digest = ZERO_DIGEST
    ) -> tuple[GradCommit, tuple[UnitId, ...]]:
        """The GradCommit of `doer` under `close`, with its units."""
        assert isinstance(self.state.phase, Closed)
        own = self.state.phase.draft.committed(STAGE, doer)
        units = tuple(unit for unit in assigned_units(close, STAGE, doer) if unit not in own)
        rounds = sum(commit.peer == doer for commit, _ in self.state.phase.draft.commits)
        return grad_commit(doer, close, units, round=rounds, state_root=state_root), units

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
        """The peers take turns in averaging all chunks."""
        assert isinstance(self.state.phase, Averaging)
        average = self.state.phase.average
        for chunk in range(self.terms.num_chunks):
            message = averaged_chunk(peers[chunk % len(peers)], average, chunk)
            self.tell(ChunkAveraged(message, self.at))

    def seal(self, *, last: bool = False) -> None:
        """The seal is stored, and everybody here applies it."""
        step = self.state.step
        self.tell(SealStored(step, last, self.at))
        for each in [member.peer for member in self.state.members.values() if member.is_here]:
            self.tell(SealApplied(each, step, self.at))

    def whole_step(self, work: Mapping[PeerId, Iterable[int]], *, last: bool = False) -> None:
        """One undisturbed step."""
        for doer, units in work.items():
            self.work(doer, *units)
        self.commit(*work)
        self.hold(*work)
        self.average(*work)
        self.seal(last=last)


def grad_commit(
    doer: PeerId,
    close: StepClose,
    units: tuple[UnitId, ...],
    *,
    round: int = 0,
    state_root: Digest = ZERO_DIGEST,
) -> GradCommit:
    """A GradCommit without any content that a machine looks at."""
    return GradCommit(
        job=close.job,
        step=close.step,
        round=round,
        stage=STAGE,
        peer=doer,
        step_close=close.digest(),
        previous_seal=ZERO_DIGEST,
        state_root=state_root,
        units_root=ZERO_DIGEST,
        num_units=max(1, len(units)),
        num_samples=max(1, 2 * len(units)),
        parts=(PartDigest(chunk=ChunkIndex(0), digest=ZERO_DIGEST, norm_squared=0),),
        reports=(),
    )


def averaged_chunk(summing: PeerId, average: AverageSet, chunk: int) -> AveragedChunk:
    """An AveragedChunk of stage 0."""
    return AveragedChunk(
        job=average.job,
        step=average.step,
        stage=STAGE,
        peer=summing,
        average_set=average.digest(),
        chunk=ChunkIndex(chunk),
        chunk_digest=ZERO_DIGEST,
        norm_squared=1,
    )
