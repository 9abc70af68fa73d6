"""What the step machine answers by indices, said plainly: each answer looks at everything.

Slow, short, and the definition: `tests/property/test_swarm_indices.py` compares both.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from contracts.terms.chunks import Chunk
from contracts.terms.ids import PeerId, StageIndex, StepNumber, UnitId
from contracts.terms.messages import AverageSet, GradCommit
from training.swarm.closing import NEVER, assigned_units
from training.swarm.copies import _beside, _counts, _fit, _gives_way
from training.swarm.dealing import Summing, summing_orders
from training.swarm.duties import (
    ApplySeal,
    Commit,
    Duty,
    FetchParts,
    HoldChunks,
    SumChunks,
    work_given_away_at,
)
from training.swarm.events import UnitsDone
from training.swarm.state import (
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
    has_failed,
)


def at_work(state: SwarmState, stage: StageIndex) -> tuple[Member, ...]:
    """Members of a stage that are here, ascending."""
    here = (m for m in state.members.values() if m.is_here and m.stage == stage)
    return tuple(sorted(here, key=lambda member: member.peer))


def committed(draft: Draft, stage: StageIndex, peer: PeerId) -> frozenset[UnitId]:
    """Units of a stage that a peer has bound itself to."""
    own = (units for made, units in draft.commits if (made.stage, made.peer) == (stage, peer))
    return frozenset(unit for units in own for unit in units)


def units_of(draft: Draft, stage: StageIndex, peer: PeerId) -> tuple[UnitId, ...]:
    """Units of a stage that count as done by a peer, ascending."""
    return tuple(
        sorted(unit for (s, unit), kept in draft.done.items() if (s, kept.peer) == (stage, peer))
    )


def uncommitted(draft: Draft) -> set[PeerId]:
    """Whom the newest StepClose still waits for."""
    return {
        each.peer
        for each in draft.closes[-1].assignments
        if set(each.units) != committed(draft, each.stage, each.peer)
    }


def fits(draft: Draft, commit: GradCommit, units: Iterable[UnitId]) -> bool:
    """Whether a GradCommit is what a StepClose of this step gave its peer, and still its own."""
    named = [each for each in draft.closes if each.digest() == commit.step_close]
    if not named or not {*units} or commit.peer in draft.struck:
        return False
    own = committed(draft, commit.stage, commit.peer)
    rounds = [other.round for other, _ in draft.commits if other.peer == commit.peer]
    return (
        {*units} == set(assigned_units(named[0], commit.stage, commit.peer)) - own
        and {*units} <= set(units_of(draft, commit.stage, commit.peer))
        and all(commit.round > earlier for earlier in rounds)
    )


def free_to_go(state: SwarmState) -> PeerId | None:
    """The first leaver none of whose work is open."""
    match state.phase:
        case Working(draft) if not draft.closes:
            doers = {kept.peer for kept in draft.done.values()}
            for member in sorted(state.members.values(), key=lambda each: each.peer):
                if member.leaves_by is None:
                    continue
                mates = [m for m in at_work(state, member.stage) if m.peer != member.peer]
                due = state.at >= member.leaves_by
                behind = [each for each in mates if each.applied < state.step - 1]
                workers = [each for each in mates if each not in behind and not each.leaving]
                if member.peer not in doers and (due or not behind):
                    return member.peer
                if member.peer in doers and due and not workers:
                    return member.peer
    return None


def done_after(state: SwarmState, event: UnitsDone) -> tuple[Mapping[Place, Copy], list[Place]]:
    """Copies that count after a report, and where one was undone, ascending."""
    assert isinstance(state.phase, Working)
    draft = state.phase.draft
    for place, fresh in event.copies:
        if _counts(state, draft, place, fresh):
            draft = _with_copy(draft, place, fresh)
    return draft.done, sorted(set(state.phase.draft.done) - set(draft.done))


def _with_copy(draft: Draft, place: Place, fresh: Copy) -> Draft:
    misfits = [each for each in _beside(place) if not _fit(draft, each, place, fresh)]
    for each in (place, *misfits):
        if each in draft.done and not _gives_way(draft, each, fresh):
            return draft
    done = {name: kept for name, kept in draft.done.items() if name not in misfits}
    return replace(draft, done={**done, place: fresh})


def parts_wanted(state: SwarmState) -> frozenset[tuple[PeerId, Part]] | None:
    """Which member must hold which part before the AverageSet; None while a stage has nobody."""
    assert isinstance(state.phase, Committed)
    wanted: set[tuple[PeerId, Part]] = set()
    for chunk, keepers in _keepers(state, state.phase.draft):
        if not keepers:
            return None
        for commit, _ in state.phase.draft.commits:
            if commit.stage in state.terms.chunking.stages_of(chunk):
                part = commit.digest(), chunk[1]
                holders = keepers[:2] if commit.peer == keepers[0] else keepers[:1]
                wanted |= {(peer, part) for peer in holders}
    return frozenset(wanted)


def _held(phase: Committed) -> frozenset[tuple[PeerId, Part]]:
    return frozenset((peer, part) for peer, parts in phase.held.items() for part in parts)


def is_exchanged(state: SwarmState) -> bool:
    """Whether every part is held where it is wanted."""
    assert isinstance(state.phase, Committed)
    wanted = parts_wanted(state)
    return wanted is not None and wanted <= _held(state.phase)


def unserved_by_lost(state: SwarmState) -> set[PeerId]:
    """Who is lost for long enough, and has a wanted part that nobody else holds."""
    assert isinstance(state.phase, Committed)
    held = _held(state.phase)
    owner_of = {commit.digest(): commit.peer for commit, _ in state.phase.draft.commits}
    served = {part for peer, part in held if owner_of.get(part[0]) != peer}
    missing = (parts_wanted(state) or frozenset()) - held
    owners = {owner_of[part[0]] for _, part in missing if part not in served}
    due = work_given_away_at(state)
    return {p for p in owners if p not in state.members or due.get(p, NEVER) <= state.at}


def _keepers(state: SwarmState, draft: Draft) -> list[tuple[Chunk, list[PeerId]]]:
    """For each chunk who may sum it, the summing peer first, its deputy next."""
    return [
        (chunk, keepers)
        for stage in state.terms.stages
        for chunk, keepers in zip(
            state.terms.chunking.summed_in(stage), _keepers_in(state, draft, stage), strict=True
        )
    ]


def _keepers_in(state: SwarmState, draft: Draft, stage: StageIndex) -> Sequence[list[PeerId]]:
    able = {member.peer for member in _able_to_sum(state, draft, stage)}
    own = sorted(
        (m for m in state.members.values() if m.stage == stage), key=lambda member: member.peer
    )
    bound = {made.peer for made, _ in draft.commits if made.stage == stage}
    base = [m for m in own if m.peer in bound] or [m for m in own if m.peer in able]
    others = [m.peer for m in own if m.peer in able and m not in base]
    num_chunks = len(state.terms.chunking.summed_in(stage))
    if not base:
        return [[]] * num_chunks
    dealt = tuple(Summing(m.peer, m.owner, m.bandwidth) for m in base)
    orders = summing_orders(dealt, num_chunks)
    return [[peer for peer in (*order, *others) if peer in able] for order in orders]


def _able_to_sum(state: SwarmState, draft: Draft, stage: StageIndex) -> list[Member]:
    ready = [m for m in at_work(state, stage) if m.applied == _newest_seal(state)]
    sound = [m for m in ready if m.peer not in draft.struck]
    willing = [m for m in sound if m.peer not in draft.denied]
    fresh = [m for m in willing if not has_failed(state.summing, m.owner, state.step)]
    return fresh or willing or sound or ready


def duties_of(state: SwarmState) -> dict[PeerId, Duty]:
    """What is asked of each member next, if anything is."""
    duties = {m.peer: _duty_of(state, m) for m in state.members.values() if m.is_here}
    return {peer: duty for peer, duty in duties.items() if duty is not None}


def _duty_of(state: SwarmState, member: Member) -> Duty | None:
    if member.applied < _newest_seal(state):
        return ApplySeal(StepNumber(member.applied + 1))
    match state.phase:
        case Closed(draft) as phase:
            for each in phase.close.assignments:
                if (each.stage, each.peer) == (member.stage, member.peer):
                    is_bound = set(each.units) == committed(draft, each.stage, each.peer)
                    return None if is_bound else Commit(phase.close)
        case Committed() as phase:
            missing = (parts_wanted(state) or frozenset()) - _held(phase)
            parts = sorted(part for peer, part in missing if peer == member.peer)
            return FetchParts(tuple(parts)) if parts else None
        case Averaging(draft, average, _, _, averaged, held):
            chunks = tuple(
                chunk
                for chunk, keepers in _keepers(state, draft)
                if keepers and chunk not in averaged and keepers[0] == member.peer
            )
            if chunks:
                return SumChunks(average, chunks)
            return _to_hold(state, member, average, averaged, held)
    return None


def _to_hold(
    state: SwarmState,
    member: Member,
    average: AverageSet,
    averaged: Mapping[Chunk, object],
    held: Mapping[PeerId, frozenset[Chunk]],
) -> Duty | None:
    """Once all that it applies is averaged, whatever of it the member does not hold."""
    applied = state.terms.chunking.of_stage(member.stage)
    lacking = tuple(sorted(c for c in applied if c not in held.get(member.peer, ())))
    if not lacking or not all(each in averaged for each in applied):
        return None
    return HoldChunks(average, lacking)


def _newest_seal(state: SwarmState) -> StepNumber:
    return state.step if isinstance(state.phase, Finished) else StepNumber(state.step - 1)
