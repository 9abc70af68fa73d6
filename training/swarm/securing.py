"""When a seal may name averaged chunks, so that losing who holds them stops nobody. Pure.

A sealed step is applied by everybody, so what its seal names has to be there. It is sealed at once
when all members that are here, and have applied the newest seal, hold every chunk that they apply.
One that does not, though it is here, is waited for until HOLD after the last chunk was averaged;
not at all while its owner is remembered for having missed seals (`Failings`).

That a member holds a chunk is its own word, and one may lie. So each chunk must be held by members
of two owners, where two are here and apply it, or by one and the coordinator, which has then
fetched it for who lacks it and keeps it until all have applied the step. Means that their summing
peer gives to nobody are withdrawn, and summed by the next.

A chunk that is not averaged within the exchange timeout after the AverageSet, or not held so by as
long after the last one was averaged, lets the AverageSet lapse. It lapses sooner where a chunk is
with nobody who is here, all of them have tried to sum it in vain, and a member whose part they may
lack has been away for LOST.

Invariants: no seal names a chunk that no member holds which is here; none names what one owner
alone says to hold, while another one is here that applies it, unless the coordinator has it.
Units: milliseconds.
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache

from contracts.terms.chunks import Chunk
from contracts.terms.ids import Address, PeerId, StageIndex, StepNumber
from contracts.terms.moments import UnixMillis
from training.swarm.remembering import last_answer
from training.swarm.state import Averaging, Member, SwarmState, Terms, at_work, has_failed

HOLD = 5000
"""Longer than a silent peer counts as here (`Limits.silence`): what it holds is no safety."""

_NONE: frozenset[Chunk] = frozenset()

LOST = 4000
"""A process that is started again is back by then, and has its parts."""


def chunks_unheld(state: SwarmState, phase: Averaging) -> Mapping[PeerId, tuple[Chunk, ...]]:
    """Chunks that members are to hold and do not, once all that they apply are averaged."""
    return _unheld(state.terms, state.step, state.members, phase.chunks, phase.held)


@last_answer
def _unheld(
    terms: Terms,
    step: StepNumber,
    members: Mapping[PeerId, Member],
    averaged: Mapping[Chunk, object],
    held: Mapping[PeerId, frozenset[Chunk]],
) -> Mapping[PeerId, tuple[Chunk, ...]]:
    found: dict[PeerId, tuple[Chunk, ...]] = {}
    ready = {stage for stage, chunks in terms.applied_in.items() if chunks <= averaged.keys()}
    for peer, member in members.items():
        if not member.is_here or member.applied != step - 1 or member.stage not in ready:
            continue
        if lacking := _lacking(terms.applied_in[member.stage], held.get(peer, _NONE)):
            found[peer] = lacking
    return found


@lru_cache(maxsize=2048)
def _lacking(applied: frozenset[Chunk], held: frozenset[Chunk]) -> tuple[Chunk, ...]:
    """Of one peer: what another one has taken leaves it as it was."""
    return tuple(sorted(applied - held))


def may_seal(state: SwarmState, phase: Averaging) -> bool:
    """Whether everything that the seal names is held by so many that it may be sealed now."""
    if phase.averaged_at is None:
        return False
    if any(is_waited_for(state, peer) for peer in chunks_unheld(state, phase)):
        soonest = min(phase.averaged_at + HOLD, lapses_at(state, phase))
        if state.standing_since is not None or state.at < soonest:
            return False
    return _is_held_by_enough(state, phase)  # last: it goes through everything that is held


def lapses_at(state: SwarmState, phase: Averaging) -> UnixMillis:
    """Until when chunks are summed, and then held: withdrawn means get no more time."""
    if phase.averaged_at is None:
        return phase.ends
    return UnixMillis(phase.averaged_at + state.terms.exchange_timeout)


def is_waited_for(state: SwarmState, peer: PeerId) -> bool:
    """Whether a seal waits for a member that does not hold what it applies."""
    return not has_failed(state.holding, state.members[peer].owner, state.step)


def _is_held_by_enough(state: SwarmState, phase: Averaging) -> bool:
    """Each chunk by two owners; by one if the coordinator has it or no other applies it here."""
    asked = _owners_asked(state.terms, state.step, state.members)
    holders = _holders(state, phase).items()
    return all(
        owners and (name in phase.kept or len(owners) >= min(2, asked[name]))
        for name, owners in holders
    )


def held_by_one(state: SwarmState) -> frozenset[Chunk]:
    """Averaged chunks that members of no two owners say to hold."""
    match state.phase:
        case Averaging() as phase:
            holders = _holders(state, phase)
            return frozenset(name for name in phase.chunks if len(holders[name]) < 2)
    return frozenset()


@last_answer
def _owners_asked(
    terms: Terms, step: StepNumber, members: Mapping[PeerId, Member]
) -> Mapping[Chunk, int]:
    """How many owners, who are here and up to date, apply each chunk."""
    owners: defaultdict[Chunk, set[Address]] = defaultdict(set)
    for member in members.values():
        if member.is_here and member.applied == step - 1:
            for chunk in terms.chunking.of_stage(member.stage):
                owners[chunk].add(member.owner)
    return {chunk: len(owners[chunk]) for chunk in terms.chunks}


def owners_that_missed(state: SwarmState, phase: Averaging) -> set[Address]:
    """Whose members a seal was waited for in vain."""
    unheld = chunks_unheld(state, phase)
    return {state.members[peer].owner for peer in unheld if is_waited_for(state, peer)}


def is_hopeless(state: SwarmState, phase: Averaging) -> bool:
    """Whether a chunk cannot be had from who is here, and who has it stays away."""
    if state.standing_since is not None or not _away_since(state, phase):
        return False
    orphans = {chunk[0] for chunk, owners in _holders(state, phase).items() if not owners}
    return any(_is_given_up(state, phase, stage) for stage in orphans)


def _is_given_up(state: SwarmState, phase: Averaging, stage: StageIndex) -> bool:
    here = {m.peer for m in at_work(state, stage) if m.applied == state.step - 1}
    away = _away_since(state, phase)
    return here <= phase.draft.denied and bool(away) and state.at >= max(away) + LOST


def _away_since(state: SwarmState, phase: Averaging) -> list[UnixMillis]:
    """Of members that are away, with parts of this step."""
    members = (state.members.get(commit.peer) for commit, _ in phase.draft.commits)
    return [m.lost_at for m in members if m is not None and m.lost_at is not None]


def moments_to_seal(state: SwarmState, phase: Averaging) -> tuple[UnixMillis, ...]:
    """When `may_seal` or `is_hopeless` may say so without anybody's doing."""
    if state.standing_since is not None:
        return ()
    lost = tuple(UnixMillis(since + LOST) for since in _away_since(state, phase))
    if phase.averaged_at is None:
        return lost
    return *lost, UnixMillis(phase.averaged_at + HOLD), lapses_at(state, phase)


def _holders(state: SwarmState, phase: Averaging) -> Mapping[Chunk, frozenset[Address]]:
    """Owners of members that are here and hold a chunk."""
    return _owners_holding(state.terms, state.members, phase.held)


@last_answer
def _owners_holding(
    terms: Terms, members: Mapping[PeerId, Member], held: Mapping[PeerId, frozenset[Chunk]]
) -> Mapping[Chunk, frozenset[Address]]:
    owners: defaultdict[Chunk, set[Address]] = defaultdict(set)
    for peer, chunks in held.items():
        if peer in members and members[peer].is_here:
            for chunk in chunks:
                owners[chunk].add(members[peer].owner)
    return {chunk: frozenset(owners[chunk]) for chunk in terms.chunks}
