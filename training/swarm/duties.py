"""What is owed to whom in a state: the next call to each member, the units to route. Pure.

Parts go to the summing peer of their chunk, and a summing peer's own also to its deputy: no part
has one holder, as each owner keeps what it sends. A peer that denied a part that the coordinator
checked and relayed to it sums nothing more in this step; the part's sender stays.

A shell never remembers what it still has to send: it asks here, calls, tells the machine what came
back, and asks again. So a restart, a lost call or a returned peer needs no code of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from contracts.terms.ids import ChunkIndex, Digest, PeerId, StageIndex, StepNumber
from contracts.terms.messages import AverageSet, GradCommit, StepClose
from contracts.terms.moments import UnixMillis
from training.swarm.dealing import Summing, summing_orders
from training.swarm.state import (
    Averaging,
    Chunk,
    Closed,
    Committed,
    Copy,
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
            keepers = _keepers_in(state, member.stage)
            own = (c for c in state.terms.chunks if c[0] == member.stage and c not in chunks)
            if summed := tuple(chunk for chunk in own if keepers[chunk[1]][:1] == (peer,)):
                return SumChunks(average, summed)
    return None


def missing_places(state: SwarmState) -> tuple[Place, ...]:
    """Units that nobody has done yet, ascending; none while no work goes out."""
    if not isinstance(state.phase, Working) or state.paused or not state.started:
        return ()
    draft = state.phase.draft
    return tuple(
        place
        for place in state.terms.places
        if place not in draft.done and place[1] not in draft.struck_units
    )


def copies_known(state: SwarmState) -> tuple[tuple[Place, Copy], ...]:
    """Copies of the units that are done in some stages only, ascending: the rest fits to them."""
    missing = {unit for _, unit in missing_places(state)}
    done = state.phase.draft.done if isinstance(state.phase, Working) else {}
    return tuple(
        (place, done[place])
        for place in state.terms.places
        if place[1] in missing and place in done
    )


def workers_of(state: SwarmState, stage: StageIndex) -> tuple[Member, ...]:
    """Members that may be given units now: here to stay, up to date, not struck in this step."""
    struck = state.phase.draft.struck if isinstance(state.phase, Working) else frozenset()
    ready = _newest_seal(state)
    return tuple(
        member
        for member in at_work(state, stage)
        if member.applied == ready and not member.leaving and member.peer not in struck
    )


def parts_wanted(state: SwarmState) -> frozenset[tuple[PeerId, Part]] | None:
    """Which member must hold which part before the AverageSet; None while a stage has nobody.

    The summing peer of a chunk holds that part of every GradCommit of its stage, its deputy holds
    the summing peer's own: no part has one holder, as each owner keeps what it sends.
    """
    assert isinstance(state.phase, Committed)
    wanted: set[tuple[PeerId, Part]] = set()
    for stage in state.terms.stages:
        own = [commit for commit, _ in state.phase.draft.commits if commit.stage == stage]
        names = [(commit.peer, _name_of(commit)) for commit in own]
        for number, keepers in enumerate(_keepers_in(state, stage)):
            if not keepers:
                return None
            chunk = ChunkIndex(number)
            summing, *deputies = keepers
            for peer, name in names:
                wanted.add((summing, (name, chunk)))
                if peer == summing:
                    wanted.update((deputy, (name, chunk)) for deputy in deputies[:1])
    return frozenset(wanted)


@lru_cache(maxsize=4096)
def _name_of(commit: GradCommit) -> Digest:
    """Its digest: asked for again with every event, and thirty times dearer than its hash."""
    return commit.digest()


def all_applied(state: SwarmState) -> StepNumber:
    """The newest step whose seal every member has applied: chunks of later ones are wanted."""
    return min((m.applied for m in state.members.values()), default=_newest_seal(state))


def next_deadline(state: SwarmState) -> UnixMillis | None:
    """When a `Ticked` can change something next; None while nothing waits for time."""
    if isinstance(state.phase, Finished):
        return None
    away = [m.lost_at for m in state.members.values() if m.lost_at is not None]
    moments = [UnixMillis(since + state.terms.lease_grace) for since in away]
    moments += [at for at in work_given_away_at(state).values() if at > state.at]
    ends = getattr(state.phase, "ends", None)
    if ends is not None and state.standing_since is None:
        moments.append(ends)
    return min(moments, default=None)


def work_given_away_at(state: SwarmState) -> Mapping[PeerId, UnixMillis]:
    """When what a lost member did in a closed step goes to others: it had `redo_after` to return.

    Counted from the StepClose at the earliest, before which nothing waits for it.
    """
    match state.phase:
        case Closed(draft) | Committed(draft):
            closed_at = draft.closes[-1].closed_at
            return {
                member.peer: UnixMillis(max(member.lost_at, closed_at) + state.terms.redo_after)
                for member in state.members.values()
                if member.lost_at is not None
            }
    return {}


def _newest_seal(state: SwarmState) -> StepNumber:
    return state.step if isinstance(state.phase, Finished) else StepNumber(state.step - 1)


def _owes_commit(phase: Closed, member: Member) -> bool:
    for each in phase.close.assignments:
        if (each.stage, each.peer) == (member.stage, member.peer):
            return set(each.units) != phase.draft.committed(each.stage, each.peer)
    return False


def _keepers_in(state: SwarmState, stage: StageIndex) -> tuple[tuple[PeerId, ...], ...]:
    """For each chunk of a stage who may sum it, the summing peer first, its deputy next.

    Chunks are dealt to those who have committed: they stay the same for the rest of the step, and
    whoever cannot sum is passed over.
    """
    able = {member.peer for member in _able_to_sum(state, stage)}
    committed = {commit.peer for commit, _ in _draft(state).commits if commit.stage == stage}
    members = _of_stage(state, stage)
    base = [m for m in members if m.peer in committed] or [m for m in members if m.peer in able]
    others = [m.peer for m in members if m.peer in able and m not in base]
    dealt = tuple(Summing(m.peer, m.owner, m.bandwidth) for m in base)
    if not dealt:
        return ((),) * state.terms.num_chunks
    orders = summing_orders(dealt, state.terms.num_chunks)
    return tuple(tuple(peer for peer in (*order, *others) if peer in able) for order in orders)


def _able_to_sum(state: SwarmState, stage: StageIndex) -> list[Member]:
    """Members that are up to date, without those that denied or were struck if others are left."""
    draft = _draft(state)
    ready = [m for m in at_work(state, stage) if m.applied == _newest_seal(state)]
    sound = [m for m in ready if m.peer not in draft.struck]
    return [m for m in sound if m.peer not in draft.denied] or sound or ready


def _of_stage(state: SwarmState, stage: StageIndex) -> list[Member]:
    own = (member for member in state.members.values() if member.stage == stage)
    return sorted(own, key=lambda member: member.peer)


def _draft(state: SwarmState) -> Draft:
    match state.phase:
        case Working(draft) | Closed(draft) | Committed(draft) | Averaging(draft):
            return draft
    return Draft()
