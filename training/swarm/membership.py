"""Who is a member, who is away, and when the clock of a step stands still. Pure.

Invariants: a change of membership that others must know is a numbered Notice, in order without
gaps; a member that is back within `lease_grace` is the same member, without a Notice; deadlines
move by exactly the time for which some stage had nobody, or the coordinator was down.
"""

from dataclasses import replace

from contracts.terms.ids import ZERO_DIGEST, PeerId, StageIndex
from contracts.terms.messages import Notice
from contracts.terms.moments import UnixMillis
from training.swarm.events import (
    Effect,
    PeerJoined,
    PeerLost,
    PeerReturned,
    Resumed,
    SendNotice,
)
from training.swarm.state import (
    Closed,
    Committed,
    Finished,
    Member,
    SwarmState,
    Working,
    at_work,
)


def stage_for_newcomer(state: SwarmState) -> StageIndex:
    """The stage with the fewest members, the first of them."""
    counts = dict.fromkeys(state.terms.stages, 0)
    for member in state.members.values():
        counts[member.stage] += 1
    return min(counts, key=lambda stage: (counts[stage], stage))


def joined(state: SwarmState, event: PeerJoined) -> tuple[SwarmState, tuple[Effect, ...]]:
    """A new member, with its Notice; nothing for one that is a member or a job that has ended."""
    known = event.peer in state.members or event.stage not in state.terms.stages
    if known or isinstance(state.phase, Finished):
        return state, ()
    notice = Notice(
        job=state.terms.job,
        step=state.step,
        number=state.next_notice,
        what="join",
        peer=event.peer,
        stage=event.stage,
        address=event.address,
        evidence=event.lease,
    )
    member = Member(event.peer, event.stage, event.address, event.applied)
    state = replace(
        state,
        members={**state.members, event.peer: member},
        next_notice=state.next_notice + 1,
        paused=False,
    )
    return _started(state), (SendNotice(notice),)


def _started(state: SwarmState) -> SwarmState:
    """Work begins when every stage has all its peers, and does not wait for them again."""
    wanted = state.terms.peers_per_stage
    full = all(len(at_work(state, stage)) >= wanted for stage in state.terms.stages)
    return replace(state, started=state.started or full)


def returned(state: SwarmState, event: PeerReturned) -> SwarmState:
    """A member is here again, as far as it says that it has come."""
    member = state.members.get(event.peer)
    if member is None:
        return state
    member = replace(member, address=event.address, applied=event.applied, lost_at=None)
    members = {**state.members, event.peer: member}
    return _started(replace(state, members=members, paused=False))


def lost(state: SwarmState, event: PeerLost) -> SwarmState:
    """A member's session is gone; its place is kept for `lease_grace`."""
    member = state.members.get(event.peer)
    if member is None or not member.is_here:
        return state
    away = replace(member, lost_at=event.at)
    return replace(state, members={**state.members, event.peer: away})


def resumed(state: SwarmState, event: Resumed) -> SwarmState:
    """Every session is gone, and no deadline ran since the last event."""
    away = {
        peer: replace(member, lost_at=event.at) if member.is_here else member
        for peer, member in state.members.items()
    }
    since = state.at if state.standing_since is None else state.standing_since
    return replace(state, members=away, standing_since=since)


def overdue(state: SwarmState, at: UnixMillis) -> tuple[PeerId, ...]:
    """Members that were away for longer than `lease_grace`, in ascending order."""
    if isinstance(state.phase, Finished):
        return ()
    grace = state.terms.lease_grace
    away = (m for m in state.members.values() if m.lost_at is not None and m.lost_at + grace <= at)
    return tuple(sorted(member.peer for member in away))


def left(state: SwarmState, peer: PeerId) -> tuple[SwarmState, tuple[Effect, ...]]:
    """A member less, with its Notice."""
    member = state.members[peer]
    notice = Notice(
        job=state.terms.job,
        step=state.step,
        number=state.next_notice,
        what="leave",
        peer=peer,
        stage=member.stage,
        address=member.address,
        evidence=ZERO_DIGEST,
    )
    members = {name: each for name, each in state.members.items() if name != peer}
    state = replace(state, members=members, next_notice=state.next_notice + 1)
    return state, (SendNotice(notice),)


def with_deadlines_in_order(state: SwarmState) -> SwarmState:
    """Stop the step's clock while a stage has nobody; move its deadlines when it runs again."""
    stands = not all(at_work(state, stage) for stage in state.terms.stages)
    if stands and state.standing_since is None:
        return replace(state, standing_since=state.at)
    if not stands and state.standing_since is not None:
        moved = _moved(state, state.at - state.standing_since)
        return replace(moved, standing_since=None)
    return state


def _moved(state: SwarmState, span: int) -> SwarmState:
    match state.phase:
        case Working(ends=int(ends)) as working:
            return replace(state, phase=replace(working, ends=UnixMillis(ends + span)))
        case Closed(ends=ends) | Committed(ends=ends) as waiting:
            return replace(state, phase=replace(waiting, ends=UnixMillis(ends + span)))
    return state
