"""What is owed to whom in a state: the next call to each member, the units to route. Pure.

Parts go to the summing peer of their chunk, and a summing peer's own also to its deputy: no part
has one holder, as each owner keeps what it sends. A peer that denied a part that the coordinator
checked and relayed to it sums nothing more in this step; the part's sender stays.

A shell never remembers what it still has to send: it asks here, calls, tells the machine what came
back, and asks again. So a restart, a lost call or a returned peer needs no code of its own.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from contracts.terms.chunks import Chunk
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber
from contracts.terms.messages import AverageSet, GradCommit, StepClose
from contracts.terms.moments import UnixMillis
from training.swarm.dealing import Summing, summing_orders
from training.swarm.state import (
    LONG_AGO,
    Averaging,
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


def duties_of(state: SwarmState) -> Mapping[PeerId, Duty]:
    """The next thing that the coordinator asks of each member, if there is any."""
    parts, chunks = _parts_lacking(state), _chunks_missing(state)
    duties = {
        peer: _duty_of(state, member, parts.get(peer, ()), chunks.get(peer, ()))
        for peer, member in state.members.items()
        if member.is_here
    }
    return {peer: duty for peer, duty in duties.items() if duty is not None}


def _duty_of(
    state: SwarmState, member: Member, parts: Sequence[Part], chunks: Sequence[Chunk]
) -> Duty | None:
    if member.applied < _newest_seal(state):
        return ApplySeal(StepNumber(member.applied + 1))
    match state.phase:
        case Closed() as phase if _owes_commit(phase, member):
            return Commit(phase.close)
        case Committed() if parts:
            return FetchParts(tuple(sorted(parts)))
        case Averaging(average=average) if chunks:
            return SumChunks(average, tuple(chunks))
    return None


def _parts_lacking(state: SwarmState) -> Mapping[PeerId, Sequence[Part]]:
    lacking: defaultdict[PeerId, list[Part]] = defaultdict(list)
    if isinstance(state.phase, Committed):
        for peer, part in (parts_wanted(state) or frozenset()) - state.phase.held:
            lacking[peer].append(part)
    return lacking


def _chunks_missing(state: SwarmState) -> Mapping[PeerId, Sequence[Chunk]]:
    """What each summing peer has not averaged yet, ascending."""
    missing: defaultdict[PeerId, list[Chunk]] = defaultdict(list)
    if isinstance(state.phase, Averaging):
        for stage in state.terms.stages:
            summed = state.terms.chunking.summed_in(stage)
            for chunk, keepers in zip(summed, _keepers_in(state, stage), strict=True):
                if keepers and chunk not in state.phase.chunks:
                    missing[keepers[0]].append(chunk)
    return missing


def missing_places(state: SwarmState) -> tuple[Place, ...]:
    """Units that nobody has done yet, ascending; none while no work goes out."""
    if not isinstance(state.phase, Working) or state.is_idle or not state.started:
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
    the summing peer's own: no part has one holder, as each owner keeps what it sends. Of a chunk
    that two stages share, the summing peer also holds the parts of the other stage.
    """
    assert isinstance(state.phase, Committed)
    wanted: set[tuple[PeerId, Part]] = set()
    names: defaultdict[StageIndex, list[tuple[PeerId, Digest]]] = defaultdict(list)
    for commit, _ in state.phase.draft.commits:
        names[commit.stage].append((commit.peer, _name_of(commit)))
    chunking = state.terms.chunking
    for stage in state.terms.stages:
        summed = chunking.summed_in(stage)
        for chunk, keepers in zip(summed, _keepers_in(state, stage), strict=True):
            if not keepers:
                return None
            summing, *deputies = keepers
            for peer, name in (each for s in chunking.stages_of(chunk) for each in names[s]):
                wanted.add((summing, (name, chunk[1])))
                if peer == summing:
                    wanted.update((deputy, (name, chunk[1])) for deputy in deputies[:1])
    return frozenset(wanted)


@lru_cache(maxsize=4096)
def _name_of(commit: GradCommit) -> Digest:
    """Its digest: asked for again with every event, and thirty times dearer than its hash."""
    return commit.digest()


def all_applied(state: SwarmState) -> StepNumber:
    """The newest step whose seal every member has applied: chunks of later ones are wanted."""
    return min((m.applied for m in state.members.values()), default=_newest_seal(state))


def next_deadline(state: SwarmState, after: UnixMillis = LONG_AGO) -> UnixMillis | None:
    """When a `Ticked` can change something next; None while nothing waits for time.

    `after`: the moment of the last `Ticked`, which did whatever was due then. What was due and did
    not happen, as nobody is left to take over the work of one who is lost, is not due again.
    """
    if isinstance(state.phase, Finished):
        return None
    away = [m.lost_at for m in state.members.values() if m.lost_at is not None]
    moments = [UnixMillis(since + state.terms.lease_grace) for since in away]
    moments += [at for at in work_given_away_at(state).values() if at > state.at]
    ends = getattr(state.phase, "ends", None)
    if ends is not None and state.standing_since is None:
        moments.append(ends)
    return min((at for at in moments if at > after), default=None)


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
    members, num_chunks = _of_stage(state, stage), len(state.terms.chunking.summed_in(stage))
    base = [m for m in members if m.peer in committed] or [m for m in members if m.peer in able]
    others = [m.peer for m in members if m.peer in able and m not in base]
    dealt = tuple(Summing(m.peer, m.owner, m.bandwidth) for m in base)
    if not dealt:
        return ((),) * num_chunks
    orders = summing_orders(dealt, num_chunks)
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
