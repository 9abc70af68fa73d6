"""A job as a state machine: one event in, the next state and what to do about it out. Pure.

    Working --every unit done--> Closed --every GradCommit in--> Committed --every part held-->
    Averaging --every chunk averaged--> Sealing --seal stored--> Working of the next step, Finished

Which copies count is decided in `copies.py`, everything from the StepClose on in `closing.py`, who
is a member in `membership.py`. A deadline that passes in Closed or Committed strikes whoever it
waited for: those units are done again by others (back to Working, under the next revision of the
StepClose), or, where nobody can, the step ends without an update. Once the AverageSet is out, only
the averaged chunks are missing, and any member that has the parts may bring them; one that is still
missing at the deadline lets the AverageSet lapse: the step ends without an update. Coordinator,
tests and simulations run this one function.

Invariants
- An event that does not fit changes nothing; a repeated one neither. So replay of the journal is
  the state, and whoever repeats a message is safe.
- In a StepClose every unit has one peer per stage, the same units in all stages, each made from its
  neighbours' tensors; a revision moves or strikes units and adds none; whoever has committed keeps
  its units unless it is struck.
- A GradCommit is in the AverageSet with all its parts or not at all; a step has one AverageSet.
- Deadlines run only while every stage has a member that the coordinator reaches.

Source: docs/protocol.md 3. Units: Unix milliseconds.
"""

from collections.abc import Set
from dataclasses import replace
from typing import assert_never

from contracts.terms.chunks import Chunk
from contracts.terms.ids import PeerId, StepNumber
from contracts.terms.moments import UnixMillis
from training.swarm import events
from training.swarm.closing import (
    assigned_units,
    average,
    begin_exchange,
    close,
    deny_parts,
    deny_sums,
    differing,
    end_empty,
    end_with_update,
    end_without_update,
    ends_work,
    exchange_is_late,
    given_away,
    is_full,
    is_last_step,
    lapse,
    leave_out,
    replaceable,
    strike,
    take_commit,
    uncommitted,
    unserved_by_lost,
)
from training.swarm.copies import abandoned, is_committed, lose_units, take_copies, undo
from training.swarm.duties import is_exchanged, missing_places
from training.swarm.membership import (
    free_to_go,
    joined,
    leaving,
    left,
    lost,
    noticed,
    overdue,
    resumed,
    returned,
    with_deadlines_in_order,
)
from training.swarm.securing import is_hopeless, lapses_at, may_seal
from training.swarm.state import (
    Averaging,
    Closed,
    Committed,
    Draft,
    Finished,
    Sealing,
    SwarmState,
    Working,
    at_work,
)

__all__ = ["MAX_BARREN_STEPS", "MAX_REVISIONS", "advance", "assigned_units", "is_last_step"]

MAX_REVISIONS = 16
"""StepCloses of one step; a peer that lacks units after the last one is struck."""
MAX_BARREN_STEPS = 3


def advance(state: SwarmState, event: events.Event) -> events.Change:
    """Apply one event, then everything that follows from it."""
    state, effects = _note(state, event)
    state = replace(state, at=UnixMillis(max(state.at, event.at)))
    state = with_deadlines_in_order(state)
    while change := _progress(state):
        state, more = change
        effects += more
    return state, effects


# ------------------------------------------------------------------- what an event says


def _note(state: SwarmState, event: events.Event) -> events.Change:
    """Take the fact into the state; consequences come later."""
    match event:
        case events.PeerJoined():
            return joined(state, event)
        case events.PeerReturned():
            return returned(state, event), ()
        case events.PeerLost():
            return lost(state, event), ()
        case events.PeerLeaving():
            return leaving(state, event), ()
        case events.Resumed():
            return resumed(state, event), ()
        case events.SealApplied(peer, step):
            return _applied(state, peer, step), ()
        case events.StopAsked(at):
            return _stopping(state, at), ()
        case events.HoldAsked():
            return _holding(state), ()
        case events.GoOnAsked():
            return replace(state, hold_from=None), ()
        case events.UnitsDone():
            return take_copies(state, event)
        case events.UnitsLost():
            return lose_units(state, event)
        case events.UnitsLacked():
            return _lacked(state, event)
        case events.GradCommitted():
            return take_commit(state, event), ()
        case events.LinkBroken():
            return _left_out(state, event)
        case events.PartsHeld():
            return _held(state, event), ()
        case events.PartsDenied():
            return deny_parts(state, event), ()
        case events.ChunkAveraged():
            return _averaged(state, event), ()
        case events.ChunksHeld():
            return _chunks_held(state, event), ()
        case events.MeansKept():
            return _means_kept(state, event), ()
        case events.MeansWithheld():
            return _means_withheld(state, event), ()
        case events.SealStored(step, last):
            return _sealed(state, step, last), ()
        case events.Checked(takes_work, is_clear):
            return replace(state, takes_work=takes_work, is_clear=is_clear), ()
        case events.SealWanted():
            return _to_seal(state), ()
        case events.SealDue():
            return replace(state, seal_due=state.is_idle), ()
        case events.NoticeDue():
            return _noticed(state, event)
        case events.Ticked(at):
            return _without_overdue(state, at)
    assert_never(event)


def _noticed(state: SwarmState, event: events.NoticeDue) -> events.Change:
    """A Notice that draws ask for; whoever is suspended is no member, and its open work is lost."""
    if isinstance(state.phase, Sealing | Finished):
        return state, ()
    if event.what != "suspension":
        return noticed(state, event)
    if event.peer not in state.members:
        return state, ()
    return _without(_to_seal(state), event.peer, event)


def _to_seal(state: SwarmState) -> SwarmState:
    if isinstance(state.phase, Finished):
        return state
    return replace(state, to_seal=state.to_seal + 1)


def _stopping(state: SwarmState, at: UnixMillis) -> SwarmState:
    """The next seal is the last; units that are out are waited for as long as for a redo."""
    match state.phase:
        case Working(ends=None) as phase:
            ends = UnixMillis(at + state.terms.commit_timeout)
            return replace(state, stopping=True, phase=replace(phase, ends=ends))
    return replace(state, stopping=True)


def _holding(state: SwarmState) -> SwarmState:
    """A step that is in work is done first; one that is not, as units do not go out, waits."""
    if state.hold_from is not None:
        return state
    is_in_work = not _is_untouched(state) or _goes_out(state)
    return replace(state, hold_from=StepNumber(state.step + is_in_work))


def _goes_out(state: SwarmState) -> bool:
    """Whether units go out, so that some of a step that is not reported may be on their way."""
    return state.started and not state.is_idle and state.standing_since is None


def _is_untouched(state: SwarmState) -> bool:
    """Whether nobody has done anything of the step."""
    match state.phase:
        case Working(draft):
            return not draft.done and not draft.closes
    return False


def _applied(state: SwarmState, peer: PeerId, step: StepNumber) -> SwarmState:
    member = state.members.get(peer)
    if member is None or step <= member.applied:
        return state
    return replace(state, members={**state.members, peer: replace(member, applied=step)})


def _without_overdue(state: SwarmState, at: UnixMillis) -> events.Change:
    effects: tuple[events.Effect, ...] = ()
    for peer in overdue(state, at):
        state, more = _without(state, peer)
        effects += more
    return state, effects


def _without(
    state: SwarmState, peer: PeerId, convicted: events.NoticeDue | None = None
) -> events.Change:
    """A member less. What it is bound to still counts, if others get its parts in time."""
    if convicted is None:
        state, notice = left(state, peer)
    else:
        state, notice = left(state, peer, "suspension", convicted.subject)
    draft = state.phase.draft if isinstance(state.phase, Working) else None
    own = [place for place, copy in draft.done.items() if copy.peer == peer] if draft else []
    state, redo = undo(state, own)
    return state, (*notice, *redo)


def _lacked(state: SwarmState, event: events.UnitsLacked) -> events.Change:
    phase = state.phase
    if event.step != state.step or not isinstance(phase, Working | Closed):
        return state, ()
    draft = phase.draft
    places = [
        place
        for place in event.places
        if place in draft.done
        and draft.done[place].peer == event.peer
        and not is_committed(draft, place)
    ]
    if places and isinstance(phase, Closed):
        if len(draft.closes) >= MAX_REVISIONS:
            return strike(state, draft, {event.peer})
        state = replace(state, phase=Working(draft))
    return undo(state, places)


def _left_out(state: SwarmState, event: events.LinkBroken) -> events.Change:
    match state.phase:
        case Working(draft) | Closed(draft) | Committed(draft) if (
            event.step == state.step
            and draft.closes
            and any(copy.peer == event.peer for copy in draft.done.values())
        ):
            return leave_out(state, draft, {event.peer})
    return state, ()


def _held(state: SwarmState, event: events.PartsHeld) -> SwarmState:
    match state.phase:
        case Committed(_, held) as phase if event.step == state.step:
            own = held.get(event.peer, frozenset())
            if not own.issuperset(event.parts):
                held = {**held, event.peer: own.union(event.parts)}
                return replace(state, phase=replace(phase, held=held))
    return state


def _averaged(state: SwarmState, event: events.ChunkAveraged) -> SwarmState:
    chunk = event.chunk
    match state.phase:
        case Averaging(average=average) as phase if chunk.average_set == average.digest():
            name = (chunk.stage, chunk.chunk)
            if not state.terms.chunking.stages_of(name) or name in phase.chunks:
                return state
            chunks = {**phase.chunks, name: (chunk, event.signature)}
            is_last = len(chunks) == len(state.terms.chunks)
            averaged_at = UnixMillis(max(state.at, event.at)) if is_last else None
            phase = replace(phase, chunks=chunks, averaged_at=averaged_at)
            return replace(state, phase=_with_held(phase, chunk.peer, {name}))
    return state


def _chunks_held(state: SwarmState, event: events.ChunksHeld) -> SwarmState:
    match state.phase:
        case Averaging() as phase if event.step == state.step and event.peer in state.members:
            member = state.members[event.peer]
            if member.applied != state.step - 1:
                return state  # it would not apply them
            applied = state.terms.chunking.of_stage(member.stage)
            fresh = phase.chunks.keys() & set(event.chunks) & set(applied)
            return replace(state, phase=_with_held(phase, event.peer, fresh))
    return state


def _means_kept(state: SwarmState, event: events.MeansKept) -> SwarmState:
    match state.phase:
        case Averaging(kept=kept) as phase if event.step == state.step:
            kept |= phase.chunks.keys() & set(event.chunks)
            return replace(state, phase=replace(phase, kept=kept))
    return state


def _means_withheld(state: SwarmState, event: events.MeansWithheld) -> SwarmState:
    """What was signed is worth nothing: others sum, and hold what they sum."""
    match state.phase:
        case Averaging(chunks=chunks, held=held) as phase if event.step == state.step:
            gone = {name for name in event.chunks if _is_signed_by(phase, name, event.peer)}
            if not gone:
                return state
            phase = replace(
                phase,
                chunks={name: each for name, each in chunks.items() if name not in gone},
                held={peer: own - gone for peer, own in held.items()},
                kept=phase.kept - gone,
                averaged_at=None,
            )
            return deny_sums(replace(state, phase=phase), event.peer, is_blamed=True)
    return state


def _is_signed_by(phase: Averaging, name: Chunk, peer: PeerId) -> bool:
    return name in phase.chunks and phase.chunks[name][0].peer == peer


def _with_held(phase: Averaging, peer: PeerId, chunks: Set[Chunk]) -> Averaging:
    held = phase.held.get(peer, frozenset()) | chunks
    return replace(phase, held={**phase.held, peer: held})


def _sealed(state: SwarmState, step: StepNumber, last: bool) -> SwarmState:
    if not isinstance(state.phase, Sealing) or step != state.step:
        return state
    phase, is_empty = state.phase, state.phase.is_empty
    if phase.has_update or is_empty:
        state = replace(state, barren=0, blamed=frozenset())
    state = replace(state, barren=state.barren + phase.is_barren, idle=state.idle + is_empty)
    is_clear = state.is_clear and is_empty  # work is not drawn yet, in the least
    draining = ends_work(state)
    state = replace(state, draining=draining, is_clear=is_clear, to_seal=0, seal_due=False)
    if last:
        return replace(state, phase=Finished())
    return replace(state, step=StepNumber(step + 1), phase=Working())


# -------------------------------------------------------------------- what follows from it


def _progress(state: SwarmState) -> events.Change | None:
    """The next transition that is due, with its effects; None when nothing is."""
    match state.phase:
        case Working(draft) | Closed(draft) | Committed(draft) if _is_given_up(state):
            return end_without_update(state, draft)
        case Averaging() if _is_given_up(state):
            return lapse(state)
        case Working(draft, ends):
            if (peer := free_to_go(state)) is not None:
                state, effects = _without(state, peer)
                return with_deadlines_in_order(state), effects
            if state.draining:
                is_over = state.is_clear and not state.to_seal
                return end_empty(state) if state.seal_due or is_over else None
            if state.seal_due:  # a pause: draws go on, as they may convict who caused it
                return end_empty(state)
            is_begun = state.started and not state.is_idle
            if state.stopping and not is_begun and _is_untouched(state):
                return end_empty(state)  # no step is in work that would be the last one
            if draft.closes and (gone := abandoned(state, draft)):
                return undo(state, gone)
            if state.barren >= MAX_BARREN_STEPS:
                return replace(state, paused=True, barren=0), (events.PauseJob(),)
            if (
                not state.paused
                and not state.is_held
                and state.takes_work
                and is_full(state, draft)
            ):
                return close(state, draft)
            if _passed(state, ends) or _is_stuck(state, draft):
                return end_without_update(state, draft)
        case Closed(draft, ends) as phase:
            if not (missing := uncommitted(draft)):
                if odd := differing(state, draft):
                    return leave_out(state, draft, odd)
                return begin_exchange(state, phase)
            if away := replaceable(state, draft, given_away(state, missing)):
                return leave_out(state, draft, away)
            if _passed(state, ends):
                return strike(state, draft, missing)
        case Committed(draft, ends=ends) as phase:
            if is_exchanged(state):
                return average(state, draft)
            if away := replaceable(state, draft, unserved_by_lost(state, phase)):
                return leave_out(state, draft, away)
            if _passed(state, ends):
                return exchange_is_late(state, phase)
        case Averaging() as phase:
            if may_seal(state, phase):
                return end_with_update(state, phase)
            if _passed(state, lapses_at(state, phase)) or is_hopeless(state, phase):
                return lapse(state)
    return None


def _is_stuck(state: SwarmState, draft: Draft) -> bool:
    """Whether units are missing in a stage whose members are all struck for this step."""
    if not draft.struck:
        return False
    stages = {stage for stage, _ in missing_places(state)}
    able = {m.stage for m in state.members.values() if m.peer not in draft.struck}
    return any(at_work(state, stage) for stage in stages - able)


def _is_given_up(state: SwarmState) -> bool:
    """A job that is to stop does not wait for a stage that has nobody, while it has work.

    But for its members after a restart: it was we who were away, and the step is as good as done.
    """
    if not state.stopping or state.standing_since is None or state.draining:
        return False
    have_members = {member.stage for member in state.members.values()} >= {*state.terms.stages}
    return state.at >= state.returning_until or not have_members


def _passed(state: SwarmState, ends: UnixMillis | None) -> bool:
    return ends is not None and state.standing_since is None and state.at >= ends
