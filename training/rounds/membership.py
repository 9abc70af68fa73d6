"""Who is a member, who is away, and when timers stand still. Pure.

Invariants: a change of membership that others must know is a numbered Notice, in order without
gaps; a member that is back within `lease_grace` is the same member, without a Notice; timers move
by exactly the time for which some group had nobody connected, or the coordinator was down, or
members were on their way back to it.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, TypeAlias

from contracts.terms.ids import ZERO_DIGEST, Digest, PeerId
from contracts.terms.messages import Notice
from contracts.terms.moments import UnixMillis
from training.rounds.events import Change, Connected, Joined, Send, SignNotice
from training.rounds.state import (
    Commit,
    Finished,
    OpenRound,
    Reduce,
    RoundState,
    Work,
    has_failed,
    in_group,
    with_open,
    with_phase,
)
from training.strategies.port import Group, Member, RoundNumber

RETURN_MS = 2000
"""That members have to come back to a coordinator that was away: they try every second."""

NoticeKind: TypeAlias = Literal["join", "leave", "missed_report", "missing_data", "suspension"]


def group_for_newcomer(state: RoundState, coming: Iterable[Group] = ()) -> Group:
    """The neediest group: lowest sum of rates, then fewest owners, fewest members, the first.

    Before the first round every group is filled up to `peers_per_group`, whatever its rates; from
    then on a member that is away does not count. `coming` are the groups of peers that are being
    measured: each counts as one member of average speed.
    """
    pending = [*coming]
    present = [m for m in state.members.values() if m.is_here or not state.started]
    usual = sum(m.rate for m in present) // len(present) if present else 1

    def need(group: Group) -> tuple[bool, int, int, int, Group]:
        own = [m for m in present if m.group == group and not m.is_leaving]
        num_members = len(own) + pending.count(group)
        is_full = not state.started and num_members >= state.terms.peers_per_group
        rates = sum(m.rate for m in own) + usual * pending.count(group)
        num_owners = len({m.owner for m in own}) + pending.count(group)
        return is_full, rates, num_owners, num_members, group

    return min(state.terms.groups, key=need)


def checkpoint_to_load(state: RoundState, group: Group, every: int) -> RoundNumber:
    """The newest checkpoint that every member of a group holds or will hold; 0: the initial state.

    Args:
        state: Of the job.
        group: Of the newcomer.
        every: Rounds from one checkpoint to the next.
    """
    sealed = state.newest_seal
    applied = [m.applied for m in state.members.values() if m.group == group]
    newest = sealed // every * every
    if applied and max(applied) < newest - every:
        newest = max(applied) // every * every
    older = max(0, newest - every)
    # Who is at the initial state past a checkpoint is new: the others have dropped what it lacks.
    members = [each for each in applied if each >= max(older, min(newest, 1))]
    kept_by_all = bool(members) and all(each >= newest for each in members)
    return RoundNumber(newest if kept_by_all else older)


# ---------------------------------------------------------------------------------------- notices


def notice(
    state: RoundState,
    what: NoticeKind,
    peer: PeerId,
    group: Group,
    address: str = "",
    evidence: Digest = ZERO_DIGEST,
) -> tuple[RoundState, SignNotice]:
    """The next Notice."""
    message = Notice(
        job=state.terms.job,
        step=state.round,
        number=state.next_notice,
        what=what,
        peer=peer,
        stage=group,
        address=address,
        evidence=evidence,
    )
    return replace(state, next_notice=state.next_notice + 1), SignNotice(message)


def joined(state: RoundState, event: Joined) -> Change:
    """A new member, with its Notice; nothing for one that is a member or a job that has ended."""
    known = event.peer in state.members or event.group not in state.terms.groups
    if known or isinstance(state.phase, Finished):
        return state, ()
    state, said = notice(state, "join", event.peer, event.group, event.address, event.lease)
    member = Member(
        event.peer,
        event.group,
        event.address,
        event.applied,
        event.owner,
        event.rate,
        event.bandwidth,
    )
    owners = {**state.owners, event.peer: event.owner}
    state = _with(replace(state, owners=owners, paused=False), member)
    match state.phase:
        case Work(open=open) | Commit(open=open) if event.peer in resting(state):
            state = with_open(state, replace(open, off=open.off | {event.peer}))
    return _started(state), (said, Send(frozenset({event.peer})))


def resting(state: RoundState) -> frozenset[PeerId]:
    """Members whose owner has failed to claim, where others of their group may work."""
    members, round = state.members.values(), state.round
    off = {m.peer for m in members if has_failed(state.claiming, m.owner, round)}
    others = {
        m.group
        for m in members
        if m.peer not in off and m.is_here and not m.is_leaving and state.may(m.peer)
    }
    return frozenset(peer for peer in off if state.members[peer].group in others)


def left(
    state: RoundState,
    peer: PeerId,
    what: Literal["leave", "suspension"] = "leave",
    evidence: Digest = ZERO_DIGEST,
) -> Change:
    """A member less, with its Notice."""
    member = state.members[peer]
    state, said = notice(state, what, peer, member.group, member.address, evidence)
    members = {name: each for name, each in state.members.items() if name != peer}
    # Who goes may be who caused a pause.
    state = replace(state, members=members, watched=state.watched - {peer}, paused=False)
    return state, (said,)


# ------------------------------------------------------------------------------------- who is here


def connected(state: RoundState, event: Connected) -> Change:
    """A member is here again, as far as it says that it has come."""
    member = state.members.get(event.peer)
    if member is None:
        return state, ()
    applied = RoundNumber(min(event.applied, state.newest_seal))
    back = replace(member, address=event.address, applied=applied, lost_at=None, redo_at=None)
    state = _started(_with(replace(state, paused=False), back))
    return state, (Send(frozenset({event.peer})),)


def disconnected(state: RoundState, peer: PeerId, at: UnixMillis) -> RoundState:
    """A member's session is gone; its place is kept for `lease_grace`."""
    member = state.members.get(peer)
    if member is None or not member.is_here:
        return state
    return _with(state, _away(member, at, state.terms.redo_after))


def leaving(state: RoundState, peer: PeerId, at: UnixMillis) -> RoundState:
    """A member that gets no more items; it goes as soon as nothing of its work is open."""
    member = state.members.get(peer)
    if member is None or member.is_leaving or isinstance(state.phase, Finished):
        return state
    return _with(state, replace(member, leaves_by=UnixMillis(at + state.terms.lease_grace)))


def resumed(state: RoundState, at: UnixMillis) -> RoundState:
    """Every session is gone, and no time has passed since the last event.

    It was we who were away: nobody loses work or pay before it has had time to come back.
    """
    at = max(at, state.at)
    away = at - state.at
    coming = {m.peer for m in state.members.values() if m.is_here or _is_coming(state, m)}
    since = state.at if state.standing_since is None else state.standing_since
    state = _moved(replace(state, at=at), since)
    for member in [*state.members.values()]:
        if member.leaves_by is not None:
            member = replace(member, leaves_by=UnixMillis(member.leaves_by + away))
        if member.peer in coming:  # `redo_at` moves with the timers
            member = _away(member, at, max(0, state.terms.redo_after - RETURN_MS))
        elif member.lost_at is not None:
            member = replace(member, lost_at=UnixMillis(member.lost_at + away))
        state = _with(state, member)
    return replace(state, standing_since=at, resumed_at=at, return_by=None)


def _is_coming(state: RoundState, member: Member) -> bool:
    is_waited_for = state.return_by is None or state.at < state.return_by
    return is_waited_for and member.lost_at == state.resumed_at


def _away(member: Member, at: UnixMillis, span: int) -> Member:
    return replace(member, lost_at=at, redo_at=UnixMillis(at + span))


def _with(state: RoundState, member: Member) -> RoundState:
    peer, is_watched = member.peer, member.is_leaving or not member.is_here
    watched = state.watched | {peer} if is_watched else state.watched - {peer}
    return replace(state, members={**state.members, peer: member}, watched=watched)


def _started(state: RoundState) -> RoundState:
    """Work begins when every group has all its peers, and does not wait for them again."""
    if state.started:
        return state
    counts = (
        sum(member.is_here and not member.is_leaving for member in in_group(state, group))
        for group in state.terms.groups
    )
    return replace(state, started=all(each >= state.terms.peers_per_group for each in counts))


def overdue(state: RoundState, at: UnixMillis) -> tuple[PeerId, ...]:
    """Members that were away for longer than `lease_grace`, in ascending order."""
    if isinstance(state.phase, Finished):
        return ()
    grace = state.terms.lease_grace
    away = (state.members[peer] for peer in state.watched)
    return tuple(sorted(m.peer for m in away if m.lost_at is not None and m.lost_at + grace <= at))


def is_due(state: RoundState, member: Member) -> bool:
    """Whether others take over what a member that is away has not done."""
    return (
        member.redo_at is not None and state.at >= member.redo_at and state.standing_since is None
    )


# --------------------------------------------------------------------------------- who may go


def free_to_go(state: RoundState) -> PeerId | None:
    """A leaving member whose work is sealed, and whose mates have applied the newest seal.

    Whoever lags behind is waited for until the leaver's `leaves_by`. From then on it goes with work
    in this round, too, where its group has nobody left to complete the round with: that is redone.
    """
    match state.phase:
        case Work(open) if open.num_commits == 0:
            members = (state.members[peer] for peer in sorted(state.watched))
            going = [member for member in members if member.is_leaving]
            bound = {claim.peer for claim in open.claims.values()} if going else set()
            for member in going:
                has_work = member.peer in bound or member.peer in open.unclaimed
                if _may_go(state, member, has_work=has_work):
                    return member.peer
    return None


def _may_go(state: RoundState, member: Member, *, has_work: bool) -> bool:
    mates = [m for m in in_group(state, member.group) if m.is_here and m.peer != member.peer]
    ready = [mate for mate in mates if state.is_current(mate)]
    is_late = member.leaves_by is not None and state.at >= member.leaves_by
    if state.standing_since is not None and not is_late:
        return False  # its mates may be on their way back
    if has_work:
        return is_late and all(mate.is_leaving for mate in ready)
    return is_late or ready == mates


# -------------------------------------------------------------------------------------- the timers


def with_timers_in_order(state: RoundState) -> RoundState:
    """Stop the round's timer while a group has nobody, or members are on their way back.

    Move it when it runs again.
    """
    members = state.members.values()
    here = {member.group for member in members if member.is_here}
    stands = len(here) < len(state.terms.groups)
    if state.return_by is None and not stands:
        state = replace(state, return_by=UnixMillis(state.at + RETURN_MS))
    stands = stands or any(_is_coming(state, state.members[peer]) for peer in state.watched)
    if stands and state.standing_since is None:
        return replace(state, standing_since=state.at)
    if not stands and state.standing_since is not None:
        return replace(_moved(state, state.standing_since), standing_since=None)
    return state


def _moved(state: RoundState, since: UnixMillis) -> RoundState:
    span = state.at - since
    members = dict(state.members)
    for peer in state.watched:
        member = members[peer]
        if member.lost_at is not None and member.redo_at is not None:
            lost = state.at - max(since, member.lost_at)
            members[peer] = replace(member, redo_at=UnixMillis(member.redo_at + lost))
    state = replace(state, members=members)

    def later(moment: UnixMillis | None) -> UnixMillis | None:
        return None if moment is None else UnixMillis(moment + span)

    match state.phase:
        case Work(open=open, ends=ends) as work:
            open = replace(open, work_ends=later(open.work_ends))
            return with_phase(state, replace(work, open=open, ends=later(ends)))
        case Commit(open=open, commit_ends=commit_ends, ends=ends) as commit:
            open = replace(open, work_ends=later(open.work_ends))
            commit_ends, ends = UnixMillis(commit_ends + span), UnixMillis(ends + span)
            commit = replace(commit, open=open, commit_ends=commit_ends, ends=ends)
            return with_phase(state, commit)
        case Reduce(ends=ends, full_at=full_at) as waiting:
            ends = UnixMillis(ends + span)
            return with_phase(state, replace(waiting, ends=ends, full_at=later(full_at)))
    return state


def passed(state: RoundState, moment: UnixMillis | None) -> bool:
    """Whether a moment of the round's timer is over."""
    return moment is not None and state.standing_since is None and state.at >= moment


def work_of(open: OpenRound, peer: PeerId) -> frozenset[Digest]:
    """Claims of a peer that are stored and not expired."""
    return frozenset(name for name, claim in open.claims.items() if claim.peer == peer)
