"""Whose copy of a unit counts in each stage, and what becomes of a unit that is lost. Pure.

A unit may be computed more than once: a pass timed out, a peer died. Of all
copies that are reported one a place is kept, and those of neighbouring stages fit: x is what the
stage before sent as y, dy what the stage after sent as dx. A copy with a higher attempt replaces
the one that is there, and neighbours made from other tensors are undone.

Invariants: what is kept always fits; a copy to which its peer has committed never changes; of two
copies in one place the higher attempt wins, and of equal ones the first.
"""

from collections.abc import Iterable
from dataclasses import replace

from contracts.terms.ids import StageIndex
from contracts.terms.items import ItemNumber
from contracts.terms.moments import UnixMillis
from training.swarm.events import Change, Redo, UnitsDone, UnitsLost
from training.swarm.state import Copy, Draft, Place, SwarmState, Working


def take_copies(state: SwarmState, event: UnitsDone) -> Change:
    """Copies that are reported, one after the other."""
    match state.phase:
        case Working(draft) as phase if event.step == state.step:
            before, done = draft.done, dict(draft.done)
            draft = replace(draft, done=done)  # grows here, and is nobody's else until it is whole
            misfits: set[Place] = set()
            for place, copy in event.copies:
                if _counts(state, draft, place, copy):
                    misfits |= _put(draft, done, place, copy)
            undone = tuple(sorted(misfits & before.keys() - done.keys()))
            effects = (Redo(undone),) if undone else ()
            return replace(state, phase=replace(phase, draft=draft)), effects
    return state, ()


def _counts(state: SwarmState, draft: Draft, place: Place, copy: Copy) -> bool:
    """It is of a member of the stage that is not too late, and of a unit that is not struck."""
    member, (stage, unit) = state.members.get(copy.peer), place
    return (
        member is not None
        and member.stage == stage
        and 0 <= unit < state.terms.units_per_step
        and unit not in draft.struck_units
        and copy.peer not in draft.struck
    )


def _put(draft: Draft, done: dict[Place, Copy], place: Place, copy: Copy) -> set[Place]:
    """Put this copy into `done`, the draft's, for older ones that it contradicts: where they were.

    Nothing is changed where one of them does not give way.
    """
    misfits = {each for each in _beside(place) if not _fit(draft, each, place, copy)}
    for each in (place, *misfits):
        if each in done and not _gives_way(draft, each, copy):
            return set()
    for each in misfits:
        del done[each]
    done[place] = copy
    return misfits


def _gives_way(draft: Draft, place: Place, fresh: Copy) -> bool:
    """Whether the copy in `place` is older than `fresh`, and nobody has bound himself to it."""
    return draft.done[place].attempt < fresh.attempt and not is_committed(draft, place)


def _beside(place: Place) -> tuple[Place, Place]:
    stage, unit = place
    return (StageIndex(stage - 1), unit), (StageIndex(stage + 1), unit)


def _fit(draft: Draft, beside: Place, place: Place, copy: Copy) -> bool:
    """Whether what is kept in a neighbouring stage was made from the same tensors."""
    other = draft.done.get(beside)
    if other is None:
        return True
    before, after = (other, copy) if beside[0] < place[0] else (copy, other)
    return (before.y, before.dy) == (after.x, after.dx)


def is_committed(draft: Draft, place: Place) -> bool:
    """Whether the peer whose copy counts in `place` has bound itself to it."""
    stage, unit = place
    return place in draft.done and unit in draft.committed(stage, draft.done[place].peer)


def abandoned(state: SwarmState, draft: Draft) -> tuple[Place, ...]:
    """Where a copy counts whose peer has left since the StepClose, and never committed to it."""
    gone = (place for place, copy in draft.done.items() if copy.peer not in state.members)
    return tuple(sorted(place for place in gone if not is_committed(draft, place)))


def undo(state: SwarmState, places: Iterable[Place]) -> Change:
    """Let these places be done again, but for those that are committed."""
    match state.phase:
        case Working(draft) as phase:
            gone = {place for place in places if not is_committed(draft, place)}
            gone &= draft.done.keys()
            if gone:
                done = {place: copy for place, copy in draft.done.items() if place not in gone}
                phase = replace(phase, draft=replace(draft, done=done))
                return replace(state, phase=phase), (Redo(tuple(sorted(gone))),)
    return state, ()


def lose_units(state: SwarmState, event: UnitsLost) -> Change:
    """Units whose rest nobody can compute from what is kept.

    They start over; or, once a StepClose names them, are struck from all stages; or, if somebody
    has committed to one already, the step waits for its deadline.
    """
    match state.phase:
        case Working(draft) if event.step == state.step:
            units = {unit for unit in event.units if _is_torn(state, draft, unit)}
            places = {place for place in draft.done if place[1] in units}
            if not draft.closes:
                return undo(state, places)
            bound = {unit for stage, unit in places if is_committed(draft, (stage, unit))}
            state = _with_deadline(state, event.at) if bound else state
            return _strike_units(state, units - bound), ()
    return state, ()


def _is_torn(state: SwarmState, draft: Draft, unit: ItemNumber) -> bool:
    """Done in some stages, and missing in others."""
    done = sum((stage, unit) in draft.done for stage in state.terms.stages)
    return 0 < done < state.terms.num_stages and unit not in draft.struck_units


def _strike_units(state: SwarmState, units: set[ItemNumber]) -> SwarmState:
    assert isinstance(state.phase, Working)
    if not units:
        return state
    draft = state.phase.draft
    draft = replace(
        draft,
        done={place: copy for place, copy in draft.done.items() if place[1] not in units},
        struck_units=draft.struck_units | units,
    )
    return replace(state, phase=replace(state.phase, draft=draft))


def _with_deadline(state: SwarmState, at: UnixMillis) -> SwarmState:
    assert isinstance(state.phase, Working)
    if state.phase.ends is not None:
        return state
    ends = UnixMillis(at + state.terms.commit_timeout)
    return replace(state, phase=replace(state.phase, ends=ends))
