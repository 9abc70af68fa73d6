"""When a seal may name averaged chunks, so that losing who holds them stops nobody. Pure.

A sealed step is applied by everybody, so what its seal names has to be there. It is sealed at once
when all members that are here, and have applied the newest seal, hold every chunk that they apply.
One that does not, though it is here, is waited for only so long:

    HOLD after the last chunk was averaged         if others of two owners hold each chunk
    a third of the exchange timeout, or HOLD       if anybody who is here does
    the deadline of the averaged chunks            after which a chunk that nobody here holds
                                                   lets the AverageSet lapse

It lapses sooner where a chunk is with nobody who is here, all of them have tried to sum it in vain,
and a member whose part they may lack has been away for LOST.

Invariant: no seal names a chunk that no member holds which is here. Units: milliseconds.
"""

from collections import defaultdict
from collections.abc import Mapping

from contracts.terms.chunks import Chunk
from contracts.terms.ids import Address, PeerId, StageIndex, StepNumber
from contracts.terms.moments import UnixMillis
from training.swarm.remembering import last_answer
from training.swarm.state import Averaging, Member, SwarmState, Terms, at_work

HOLD = 5000
"""Longer than a silent peer counts as here (`Limits.silence`): what it holds is no safety."""

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
    for peer, member in members.items():
        applied = frozenset(terms.chunking.of_stage(member.stage))
        is_asked = member.is_here and member.applied == step - 1 and applied <= averaged.keys()
        if is_asked and (lacking := applied - held.get(peer, frozenset())):
            found[peer] = tuple(sorted(lacking))
    return found


def may_seal(state: SwarmState, phase: Averaging) -> bool:
    """Whether everything that the seal names is held by so many that it may be sealed now."""
    if phase.averaged_at is None:
        return False
    is_waited_for = bool(chunks_unheld(state, phase))
    soonest = min(phase.averaged_at + HOLD, phase.ends)
    if is_waited_for and (state.standing_since is not None or state.at < soonest):
        return False
    holders = _holders(state, phase)
    if not all(holders.values()):
        return False
    if not is_waited_for:
        return True
    if any(state.at >= moment for moment in (_without_many(state, phase), phase.ends)):
        return True
    by_two = all(len(owners) > 1 for owners in holders.values())
    return by_two and state.at >= phase.averaged_at + HOLD


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
    return *lost, UnixMillis(phase.averaged_at + HOLD), _without_many(state, phase)


def _without_many(state: SwarmState, phase: Averaging) -> UnixMillis:
    assert phase.averaged_at is not None
    return UnixMillis(phase.averaged_at + max(HOLD, state.terms.exchange_timeout // 3))


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
