"""What is owed to whom in a state: the next call to each member, the units to route. Pure.

A shell never remembers what it still has to send: it asks here, calls, tells the machine what came
back, and asks again. So a restart, a lost call or a returned peer needs no code of its own.
"""

from dataclasses import dataclass
from typing import TypeAlias

from contracts.terms.ids import PeerId, StageIndex, StepNumber
from contracts.terms.messages import AverageSet, StepClose
from contracts.terms.moments import UnixMillis
from training.swarm.state import (
    Averaging,
    Chunk,
    Closed,
    Committed,
    Draft,
    Finished,
    Member,
    Part,
    Place,
    SwarmState,
    Working,
    at_work,
)


@dataclass(frozen=True)
class ApplySeal:
    """Hand over the seal of `step` with everything under it."""

    step: StepNumber


@dataclass(frozen=True)
class Commit:
    """Ask for the GradCommits under this StepClose."""

    close: StepClose


@dataclass(frozen=True)
class FetchParts:
    """Ask it to hold these parts of the named GradCommits' gradients."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class SumChunks:
    """Ask for the averaged chunks of this AverageSet."""

    average: AverageSet
    chunks: tuple[Chunk, ...]


Duty: TypeAlias = ApplySeal | Commit | FetchParts | SumChunks


def duty_of(state: SwarmState, peer: PeerId) -> Duty | None:
    """The next thing that the coordinator asks of a member, if there is any."""
    member = state.members.get(peer)
    if member is None or not member.is_here:
        return None
    if member.applied < _newest_seal(state):
        return ApplySeal(StepNumber(member.applied + 1))
    match state.phase:
        case Closed() as phase if _owes_commit(phase, member):
            return Commit(phase.close)
        case Committed(held=held):
            wanted = sorted(p for who, p in (parts_wanted(state) or ()) if who == peer)
            if parts := tuple(part for part in wanted if (peer, part) not in held):
                return FetchParts(parts)
        case Averaging(average=average, chunks=chunks):
            summed = (c for c in state.terms.chunks if c[0] == member.stage and c not in chunks)
            if own := tuple(c for c in summed if _keepers(state, c)[0].peer == peer):
                return SumChunks(average, own)
    return None


def missing_places(state: SwarmState) -> tuple[Place, ...]:
    """Units that nobody has done yet, ascending; none while no work goes out."""
    if not isinstance(state.phase, Working) or state.paused or not state.started:
        return ()
    return tuple(place for place in state.terms.places if place not in state.phase.draft.done)


def workers_of(state: SwarmState, stage: StageIndex) -> tuple[Member, ...]:
    """Members that may be given units now: here, up to date, and not struck in this step."""
    struck = state.phase.draft.struck if isinstance(state.phase, Working) else frozenset()
    ready = _newest_seal(state)
    members = at_work(state, stage)
    return tuple(m for m in members if m.applied == ready and m.peer not in struck)


def parts_wanted(state: SwarmState) -> frozenset[tuple[PeerId, Part]] | None:
    """Which member must hold which part before the AverageSet; None while a stage has nobody.

    The summing peer of a chunk holds that part of every GradCommit of its stage, its deputy holds
    the summing peer's own: no part has one holder, as each owner keeps what it sends.
    """
    assert isinstance(state.phase, Committed)
    wanted: set[tuple[PeerId, Part]] = set()
    for stage, chunk in state.terms.chunks:
        keepers = _keepers(state, (stage, chunk))
        if not keepers:
            return None
        summing, *deputies = keepers
        for commit, _ in state.phase.draft.commits:
            if commit.stage != stage:
                continue
            part = (commit.digest(), chunk)
            wanted.add((summing.peer, part))
            if commit.peer == summing.peer:
                wanted.update((deputy.peer, part) for deputy in deputies[:1])
    return frozenset(wanted)


def all_applied(state: SwarmState) -> StepNumber:
    """The newest step whose seal every member has applied: chunks of later ones are wanted."""
    return min((m.applied for m in state.members.values()), default=_newest_seal(state))


def next_deadline(state: SwarmState) -> UnixMillis | None:
    """When a `Ticked` can change something next; None while nothing waits for time."""
    if isinstance(state.phase, Finished):
        return None
    away = (m.lost_at for m in state.members.values() if m.lost_at is not None)
    moments = [UnixMillis(since + state.terms.lease_grace) for since in away]
    ends = getattr(state.phase, "ends", None)
    if ends is not None and state.standing_since is None:
        moments.append(ends)
    return min(moments, default=None)


def _newest_seal(state: SwarmState) -> StepNumber:
    return state.step if isinstance(state.phase, Finished) else StepNumber(state.step - 1)


def _owes_commit(phase: Closed, member: Member) -> bool:
    for each in phase.close.assignments:
        if (each.stage, each.peer) == (member.stage, member.peer):
            return set(each.units) != phase.draft.committed(each.stage, each.peer)
    return False


def _keepers(state: SwarmState, chunk: Chunk) -> tuple[Member, ...]:
    """Members who may sum a chunk, the summing peer first, its deputy next."""
    stage, number = chunk
    members = [m for m in at_work(state, stage) if m.applied == _newest_seal(state)]
    draft = getattr(state.phase, "draft", Draft())
    members = [m for m in members if m.peer not in draft.struck] or members
    turn = number % len(members) if members else 0
    return (*members[turn:], *members[:turn])
