"""Who is a member, who is away, and when the clock of a step stands still. Pure.

Invariants: a change of membership that others must know is a numbered Notice, in order without
gaps; a member that is back within `lease_grace` is the same member, without a Notice; deadlines
move by exactly the time for which some stage had nobody, or the coordinator was down.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, TypeAlias

from contracts.terms.ids import ZERO_DIGEST, Digest, PeerId, StageIndex, StepNumber
from contracts.terms.messages import Notice
from contracts.terms.moments import UnixMillis
from training.swarm import events
from training.swarm.state import (
    Averaging,
    Closed,
    Committed,
    Finished,
    Member,
    SwarmState,
    Working,
    at_work,
)

NoticeKind: TypeAlias = Literal["join", "leave", "missed_report", "missing_data", "suspension"]


def stage_for_newcomer(state: SwarmState, coming: Iterable[StageIndex] = ()) -> StageIndex:
    """The neediest stage: lowest sum of rates, then fewest owners, fewest members, the first.

    Before the first step every stage is filled up to `peers_per_stage`, whatever its rates; from
    then on a member that is away does not count. `coming` are the stages of peers that are being
    measured: each counts as one member of average speed.
    """
    pending = [*coming]
    present = [m for m in state.members.values() if m.is_here or not state.started]
    usual = sum(m.rate for m in present) // len(present) if present else 1

    def need(stage: StageIndex) -> tuple[bool, int, int, int, StageIndex]:
        own = [m for m in present if m.stage == stage and not m.leaving]
        num_members = len(own) + pending.count(stage)
        is_full = not state.started and num_members >= state.terms.peers_per_stage
        rates = sum(m.rate for m in own) + usual * pending.count(stage)
        num_owners = len({m.owner for m in own}) + pending.count(stage)
        return is_full, rates, num_owners, num_members, stage

    return min(state.terms.stages, key=need)


def state_step_for(state: SwarmState, stage: StageIndex) -> StepNumber:
    """The newest step whose checkpoint all members of a stage certainly keep; 0: initial state.

    Every member writes one at each multiple of `checkpoint_every` and keeps the two newest, with
    the averaged chunks since the older one. Members that lag further behind than that are
    newcomers themselves, or will need a state, and are not counted on. Where all lag so, because
    steps without work were sealed while nobody was here, the two newest of the first of them count.
    """
    every = state.terms.checkpoint_every
    sealed = state.step if isinstance(state.phase, Finished) else state.step - 1
    applied = [m.applied for m in state.members.values() if m.stage == stage]
    newest = sealed // every * every
    if applied and max(applied) < newest - every:
        newest = max(applied) // every * every
    older = max(0, newest - every)
    # Who is at the initial state past a checkpoint is new: the others have dropped what it lacks.
    members = [each for each in applied if each >= max(older, min(newest, 1))]
    kept_by_all = bool(members) and all(each >= newest for each in members)
    return StepNumber(newest if kept_by_all else older)


def joined(state: SwarmState, event: events.PeerJoined) -> events.Change:
    """A new member, with its Notice; nothing for one that is a member or a job that has ended."""
    known = event.peer in state.members or event.stage not in state.terms.stages
    if known or isinstance(state.phase, Finished):
        return state, ()
    state, notice = _notice(state, "join", event.peer, event.stage, event.address, event.lease)
    member = Member(
        event.peer,
        event.stage,
        event.address,
        event.applied,
        event.owner,
        event.rate,
        event.bandwidth,
    )
    state = replace(
        state,
        members={**state.members, event.peer: member},
        owners={**state.owners, event.peer: event.owner},
        paused=False,
    )
    return _started(state), (notice,)


def _notice(
    state: SwarmState,
    what: NoticeKind,
    peer: PeerId,
    stage: StageIndex,
    address: str,
    evidence: Digest,
) -> tuple[SwarmState, events.SendNotice]:
    """The next Notice."""
    message = Notice(
        job=state.terms.job,
        step=state.step,
        number=state.next_notice,
        what=what,
        peer=peer,
        stage=stage,
        address=address,
        evidence=evidence,
    )
    return replace(state, next_notice=state.next_notice + 1), events.SendNotice(message)


def _started(state: SwarmState) -> SwarmState:
    """Work begins when every stage has all its peers, and does not wait for them again."""
    wanted = state.terms.peers_per_stage
    counts = [
        sum(not member.leaving for member in at_work(state, stage)) for stage in state.terms.stages
    ]
    full = all(count >= wanted for count in counts)
    return replace(state, started=state.started or full)


def returned(state: SwarmState, event: events.PeerReturned) -> SwarmState:
    """A member is here again, as far as it says that it has come."""
    member = state.members.get(event.peer)
    if member is None:
        return state
    member = replace(member, address=event.address, applied=event.applied, lost_at=None)
    members = {**state.members, event.peer: member}
    return _started(replace(state, members=members, paused=False))


def lost(state: SwarmState, event: events.PeerLost) -> SwarmState:
    """A member's session is gone; its place is kept for `lease_grace`."""
    member = state.members.get(event.peer)
    if member is None or not member.is_here:
        return state
    away = replace(member, lost_at=event.at)
    return replace(state, members={**state.members, event.peer: away})


def leaving(state: SwarmState, event: events.PeerLeaving) -> SwarmState:
    """A member that gets no more units; it goes as soon as nothing of its work is open."""
    member = state.members.get(event.peer)
    if member is None or member.leaving or isinstance(state.phase, Finished):
        return state
    member = replace(member, leaves_by=UnixMillis(event.at + state.terms.lease_grace))
    return replace(state, members={**state.members, event.peer: member})


def free_to_go(state: SwarmState) -> PeerId | None:
    """A leaving member whose work is sealed, and whose mates have all that it sent and summed.

    Whoever lags behind is waited for until the leaver's `leaves_by`. From then on it goes with work
    in this step, too, where its stage has nobody left to complete the step with: that is redone.
    """
    match state.phase:
        case Working(draft) if not draft.closes:
            going = [member for member in state.members.values() if member.leaving]
            doers = {copy.peer for copy in draft.done.values()} if going else set()
            for member in sorted(going, key=lambda each: each.peer):
                if _may_go(state, member, has_work=member.peer in doers):
                    return member.peer
    return None


def _may_go(state: SwarmState, member: Member, *, has_work: bool) -> bool:
    others = [each for each in at_work(state, member.stage) if each.peer != member.peer]
    ready = [each for each in others if each.applied >= state.step - 1]
    is_due = member.leaves_by is not None and state.at >= member.leaves_by
    if has_work:
        return is_due and all(each.leaving for each in ready)
    return is_due or ready == others


def resumed(state: SwarmState, event: events.Resumed) -> SwarmState:
    """Every session is gone, and no deadline ran since the last event."""
    away = {
        peer: replace(member, lost_at=event.at) if member.is_here else member
        for peer, member in state.members.items()
    }
    since = state.at if state.standing_since is None else state.standing_since
    until = UnixMillis(event.at + state.terms.lease_grace)
    return replace(state, members=away, standing_since=since, returning_until=until)


def overdue(state: SwarmState, at: UnixMillis) -> tuple[PeerId, ...]:
    """Members that were away for longer than `lease_grace`, in ascending order."""
    if isinstance(state.phase, Finished):
        return ()
    grace = state.terms.lease_grace
    away = (m for m in state.members.values() if m.lost_at is not None and m.lost_at + grace <= at)
    return tuple(sorted(member.peer for member in away))


def left(
    state: SwarmState,
    peer: PeerId,
    what: Literal["leave", "suspension"] = "leave",
    evidence: Digest = ZERO_DIGEST,
) -> events.Change:
    """A member less, with its Notice."""
    member = state.members[peer]
    state, notice = _notice(state, what, peer, member.stage, member.address, evidence)
    members = {name: each for name, each in state.members.items() if name != peer}
    # Who goes may be who caused a pause.
    return replace(state, members=members, paused=False), (notice,)


def noticed(state: SwarmState, event: events.NoticeDue) -> events.Change:
    """A Notice about an audit, which moves nobody."""
    state, notice = _notice(state, event.what, event.peer, event.stage, "", event.subject)
    return replace(state, to_seal=state.to_seal + 1), (notice,)


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
        case Averaging(ends=ends, averaged_at=int(at)) as holding:
            ends, at = UnixMillis(ends + span), UnixMillis(at + span)
            return replace(state, phase=replace(holding, ends=ends, averaged_at=at))
        case Closed(ends=ends) | Committed(ends=ends) | Averaging(ends=ends) as waiting:
            return replace(state, phase=replace(waiting, ends=UnixMillis(ends + span)))
    return state
