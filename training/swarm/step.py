"""A job as a state machine: one event in, the next state and what to do about it out. Pure.

    Working --every unit done--> Closed --every GradCommit in--> Committed --every part held-->
    Averaging --every chunk averaged--> Sealing --seal stored--> Working of the next step, Finished

A deadline that passes in Closed or Committed strikes whoever it waited for: those units are done
again by others (back to Working, under the next revision of the StepClose), or, where nobody can,
the step ends without an update. Once the AverageSet is out, only the averaged chunks are missing,
and any member may bring them. Coordinator, tests and simulations run this one function.

Invariants
- An event that does not fit changes nothing; a repeated one neither. So replay of the journal is
  the state, and whoever repeats a message is safe.
- In a StepClose every unit has one peer per stage, the same units in all stages; a revision moves
  units and adds none; whoever has committed keeps its units unless it is struck.
- A GradCommit is in the AverageSet with all its parts or not at all; a step has one AverageSet.
- Deadlines run only while every stage has a member that the coordinator reaches.

Source: PROTOCOL section 3. Units: Unix milliseconds.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber, UnitId
from contracts.terms.messages import Assignment, AverageMember, AverageSet, StepClose
from contracts.terms.moments import UnixMillis
from training.swarm.duties import parts_wanted
from training.swarm.events import (
    BuildSeal,
    ChunkAveraged,
    Effect,
    EndedWithoutUpdate,
    Event,
    GradCommitted,
    PartsHeld,
    PauseJob,
    PeerJoined,
    PeerLost,
    PeerReturned,
    Redo,
    Resumed,
    SealApplied,
    SealStored,
    SendAverageSet,
    SendStepClose,
    StopAsked,
    Ticked,
    UnitsDone,
    UnitsLacked,
)
from training.swarm.membership import (
    joined,
    left,
    lost,
    overdue,
    resumed,
    returned,
    with_deadlines_in_order,
)
from training.swarm.state import (
    Averaging,
    Closed,
    Committed,
    Draft,
    Finished,
    Place,
    Sealing,
    SwarmState,
    Working,
    at_work,
)

MAX_STRIKES = 2
"""Deadlines that may pass in one step before it ends without an update."""
MAX_REVISIONS = 16
"""StepCloses of one step; a peer that lacks units after the last one is struck."""
MAX_BARREN_STEPS = 3

Change = tuple[SwarmState, tuple[Effect, ...]]


def advance(state: SwarmState, event: Event) -> Change:
    """Apply one event, then everything that follows from it."""
    state, effects = _note(state, event)
    state = replace(state, at=UnixMillis(max(state.at, event.at)))
    state = with_deadlines_in_order(state)
    while change := _progress(state):
        state, more = change
        effects += more
    return state, effects


# ------------------------------------------------------------------- what an event says


def _note(state: SwarmState, event: Event) -> Change:
    """Take the fact into the state; consequences come later."""
    match event:
        case PeerJoined():
            return joined(state, event)
        case PeerReturned():
            return returned(state, event), ()
        case PeerLost():
            return lost(state, event), ()
        case Resumed():
            return resumed(state, event), ()
        case SealApplied(peer, step):
            return _applied(state, peer, step), ()
        case StopAsked(at):
            return _stopping(state, at), ()
        case UnitsDone():
            return _done(state, event), ()
        case UnitsLacked():
            return _lacked(state, event)
        case GradCommitted():
            return _committed(state, event), ()
        case PartsHeld():
            return _held(state, event), ()
        case ChunkAveraged():
            return _averaged(state, event), ()
        case SealStored(step, last):
            return _sealed(state, step, last), ()
        case Ticked(at):
            return _without_overdue(state, at)
    assert_never(event)


def _stopping(state: SwarmState, at: UnixMillis) -> SwarmState:
    """The next seal is the last; units that are out are waited for as long as for a redo."""
    match state.phase:
        case Working(ends=None) as phase:
            ends = UnixMillis(at + state.terms.commit_timeout)
            return replace(state, stopping=True, phase=replace(phase, ends=ends))
    return replace(state, stopping=True)


def _applied(state: SwarmState, peer: PeerId, step: StepNumber) -> SwarmState:
    member = state.members.get(peer)
    if member is None or step <= member.applied:
        return state
    return replace(state, members={**state.members, peer: replace(member, applied=step)})


def _without_overdue(state: SwarmState, at: UnixMillis) -> Change:
    effects: tuple[Effect, ...] = ()
    for peer in overdue(state, at):
        state, notice = left(state, peer)
        state, redo = _undo(state, {place for place, doer in _done_of(state) if doer == peer})
        effects += (*notice, *redo)
    return state, effects


def _done_of(state: SwarmState) -> Iterable[tuple[Place, PeerId]]:
    """Who did what, while that may still change."""
    return state.phase.draft.done.items() if isinstance(state.phase, Working) else ()


def _undo(state: SwarmState, places: set[Place]) -> Change:
    match state.phase:
        case Working(draft) as phase if places:
            done = {place: peer for place, peer in draft.done.items() if place not in places}
            phase = replace(phase, draft=replace(draft, done=done))
            return replace(state, phase=phase), (Redo(tuple(sorted(places))),)
    return state, ()


def _done(state: SwarmState, event: UnitsDone) -> SwarmState:
    match state.phase:
        case Working(draft) as phase if event.step == state.step:
            fresh = {place: event.peer for place in event.places if _counts(state, event, place)}
            done = {**draft.done, **fresh}
            return replace(state, phase=replace(phase, draft=replace(draft, done=done)))
    return state


def _counts(state: SwarmState, event: UnitsDone, place: Place) -> bool:
    """A unit counts once, for a member of its stage that is not too late already."""
    assert isinstance(state.phase, Working)
    member, (stage, unit) = state.members.get(event.peer), place
    return (
        member is not None
        and member.stage == stage
        and 0 <= unit < state.terms.units_per_step
        and place not in state.phase.draft.done
        and event.peer not in state.phase.draft.struck
    )


def _lacked(state: SwarmState, event: UnitsLacked) -> Change:
    phase = state.phase
    if event.step != state.step or not isinstance(phase, Working | Closed):
        return state, ()
    draft = phase.draft
    places = {
        (stage, unit)
        for stage, unit in event.places
        if draft.done.get((stage, unit)) == event.peer
        and unit not in draft.committed(stage, event.peer)
    }
    if places and isinstance(phase, Closed):
        if len(draft.closes) >= MAX_REVISIONS:
            return _strike(state, draft, {event.peer})
        state = replace(state, phase=Working(draft))
    return _undo(state, places)


def _committed(state: SwarmState, event: GradCommitted) -> SwarmState:
    match state.phase:
        case Closed(draft) as phase if event.commit.step == state.step:
            if not _fits(draft, event):
                return state
            commits = (*draft.commits, (event.commit, event.units))
            return replace(state, phase=replace(phase, draft=replace(draft, commits=commits)))
    return state


def _fits(draft: Draft, event: GradCommitted) -> bool:
    """It names a StepClose of this step, its own uncommitted units, and the state of its stage."""
    commit, units = event.commit, set(event.units)
    assigned = set(draft.units_of(commit.stage, commit.peer))
    same_stage = (other for other, _ in draft.commits if other.stage == commit.stage)
    return (
        commit.peer not in draft.struck
        and bool(units)
        and units <= assigned
        and units.isdisjoint(draft.committed(commit.stage, commit.peer))
        and any(close.digest() == commit.step_close for close in draft.closes)
        and all(other.state_root == commit.state_root for other in same_stage)
    )


def _held(state: SwarmState, event: PartsHeld) -> SwarmState:
    match state.phase:
        case Committed(_, held) as phase if event.step == state.step:
            fresh = {(event.peer, part) for part in event.parts}
            return replace(state, phase=replace(phase, held=held | fresh))
    return state


def _averaged(state: SwarmState, event: ChunkAveraged) -> SwarmState:
    chunk = event.chunk
    match state.phase:
        case Averaging(_, average, chunks) as phase if chunk.average_set == average.digest():
            name = (chunk.stage, chunk.chunk)
            if name not in state.terms.chunks:
                return state
            return replace(state, phase=replace(phase, chunks=chunks | {name}))
    return state


def _sealed(state: SwarmState, step: StepNumber, last: bool) -> SwarmState:
    if not isinstance(state.phase, Sealing) or step != state.step:
        return state
    barren = 0 if state.phase.has_update else state.barren + 1
    if last:
        return replace(state, phase=Finished(), barren=barren)
    return replace(state, step=StepNumber(step + 1), phase=Working(), barren=barren)


# -------------------------------------------------------------------- what follows from it


def _progress(state: SwarmState) -> Change | None:
    """The next transition that is due, with its effects; None when nothing is."""
    match state.phase:
        case Working(draft) | Closed(draft) | Committed(draft) if _is_given_up(state):
            return _end_without_update(state, draft)
        case Working(draft, ends):
            if state.barren >= MAX_BARREN_STEPS:
                return replace(state, paused=True, barren=0), (PauseJob(),)
            if not state.paused and len(draft.done) == len(state.terms.places):
                return _close(state, draft)
            if _passed(state, ends):
                return _end_without_update(state, draft)
        case Closed(draft, ends):
            if not (missing := _uncommitted(draft)):
                ends = UnixMillis(ends + state.terms.exchange_timeout)
                return replace(state, phase=Committed(draft, frozenset(), ends)), ()
            if _passed(state, ends):
                return _strike(state, draft, missing)
        case Committed(draft, held, ends):
            wanted = parts_wanted(state)
            if wanted is not None and wanted <= held:
                return _average(state, draft)
            if _passed(state, ends):
                return _strike(state, draft, _unheard(state, draft, held))
        case Averaging(chunks=chunks):
            if len(chunks) == len(state.terms.chunks):
                return _seal(state, has_update=True)
    return None


def _is_given_up(state: SwarmState) -> bool:
    """A job that is to stop does not wait for a stage that has nobody."""
    return state.stopping and state.standing_since is not None


def _passed(state: SwarmState, ends: UnixMillis | None) -> bool:
    return ends is not None and state.standing_since is None and state.at >= ends


def _close(state: SwarmState, draft: Draft) -> Change:
    doers = sorted({(stage, peer) for (stage, _), peer in draft.done.items()})
    commit_ends = UnixMillis(state.at + state.terms.commit_timeout)
    close = StepClose(
        job=state.terms.job,
        step=state.step,
        revision=len(draft.closes),
        assignments=tuple(
            Assignment(stage=stage, peer=peer, units=draft.units_of(stage, peer))
            for stage, peer in doers
        ),
        closed_at=state.at,
        commit_ends=commit_ends,
        exchange_ends=UnixMillis(commit_ends + state.terms.exchange_timeout),
    )
    draft = replace(draft, closes=(*draft.closes, close))
    return replace(state, phase=Closed(draft, commit_ends)), (SendStepClose(close),)


def _uncommitted(draft: Draft) -> set[PeerId]:
    return {
        each.peer
        for each in draft.closes[-1].assignments
        if set(each.units) != draft.committed(each.stage, each.peer)
    }


def _unheard(
    state: SwarmState, draft: Draft, held: frozenset[tuple[PeerId, tuple[Digest, int]]]
) -> set[PeerId]:
    """Owners of parts that somebody still wants; whoever is gone, if there are any."""
    missing = {part[0] for _, part in (parts_wanted(state) or frozenset()) - held}
    owners = {commit.peer for commit, _ in draft.commits if commit.digest() in missing}
    return {peer for peer in owners if not _is_here(state, peer)} or owners


def _is_here(state: SwarmState, peer: PeerId) -> bool:
    return peer in state.members and state.members[peer].is_here


def _strike(state: SwarmState, draft: Draft, late: set[PeerId]) -> Change:
    """Let others do again what the late ones did, or end the step where nobody can."""
    places = tuple(sorted(place for place, peer in draft.done.items() if peer in late))
    draft = replace(
        draft,
        done={place: peer for place, peer in draft.done.items() if peer not in late},
        commits=tuple(each for each in draft.commits if each[0].peer not in late),
        struck=draft.struck | late,
        strikes=draft.strikes + 1,
    )
    stages = {stage for stage, _ in places}
    if draft.strikes > MAX_STRIKES or not all(_can_redo(state, draft, each) for each in stages):
        return _end_without_update(state, draft)
    ends = UnixMillis(state.at + state.terms.commit_timeout)
    return replace(state, phase=Working(draft, ends)), (Redo(places),)


def _can_redo(state: SwarmState, draft: Draft, stage: StageIndex) -> bool:
    return any(member.peer not in draft.struck for member in at_work(state, stage))


def _average(state: SwarmState, draft: Draft) -> Change:
    members = sorted((commit.digest(), commit.num_samples) for commit, _ in draft.commits)
    average = _average_set(state, draft, members)
    return replace(state, phase=Averaging(draft, average)), (SendAverageSet(average),)


def _average_set(state: SwarmState, draft: Draft, members: list[tuple[Digest, int]]) -> AverageSet:
    return AverageSet(
        job=state.terms.job,
        step=state.step,
        step_close=draft.closes[-1].digest(),
        members=tuple(AverageMember(grad_commit=name, weight=weight) for name, weight in members),
    )


def _end_without_update(state: SwarmState, draft: Draft) -> Change:
    nobody = (SendAverageSet(_average_set(state, draft, [])),) if draft.closes else ()
    state, effects = _seal(state, has_update=False)
    return state, (*nobody, EndedWithoutUpdate(state.step), *effects)


def _seal(state: SwarmState, *, has_update: bool) -> Change:
    effect = BuildSeal(state.step, last=is_last_step(state))
    return replace(state, phase=Sealing(has_update)), (effect,)


def is_last_step(state: SwarmState) -> bool:
    """Whether the seal of this step ends the job."""
    return state.stopping or state.step >= state.terms.num_steps


def assigned_units(close: StepClose, stage: StageIndex, peer: PeerId) -> tuple[UnitId, ...]:
    """Units that a StepClose counts as the work of `peer` in `stage`, ascending."""
    for each in close.assignments:
        if (each.stage, each.peer) == (stage, peer):
            return each.units
    return ()
