"""A job as a state machine: one event in, the next state and what to do about it out. Pure.

    Work --all that is issued counts--> Commit --all that is claimed is delivered--> Reduce
    --all buckets are reduced and held--> Seal --the seal is stored--> Work, Finished

What is lost, late or expired goes from Commit back to Work, in its group alone; claims that are
stored stay. Seal is also reached without an update: a void round, or one without work. Results are
taken in `working.py`; from there to RoundClosed decides `closing.py`, up to the seal `reducing.py`,
what comes after `sealing.py`; who is a member `membership.py`. Coordinator, tests and simulations
run this one function.

Invariants
- An event that does not fit changes nothing; a repeated one neither. So replay of the journal is
  the state, and whoever repeats a message is safe.
- RoundClosed is signed once a round, over the same items in all groups; then the set never changes.
- Timers run only while every group has a member that the coordinator reaches.
- With one working peer a group, a seal comes within 2 `round_ms` + 16 (2 `commit_ms` +
  `deliver_ms`) + 2 `reduce_ms` + `hold_ms`.

Source: docs/protocol.md 3. Units: Unix milliseconds.
"""

from dataclasses import replace
from typing import assert_never

from contracts.terms.ids import Digest, PeerId
from contracts.terms.moments import UnixMillis
from training.rounds import events
from training.rounds.closing import (
    begin_commit,
    begin_delivery,
    blame_late,
    close_round,
    delivered,
    differing,
    is_waiting,
    keep_late,
    keep_shards,
    lost_claims,
    reopen,
    take_claim,
    take_held,
    with_lacking,
    without_delivered,
)
from training.rounds.membership import (
    connected,
    disconnected,
    free_to_go,
    joined,
    leaving,
    left,
    notice,
    overdue,
    passed,
    resumed,
    with_timers_in_order,
    work_of,
)
from training.rounds.owed import owed
from training.rounds.reducing import (
    keep_buckets,
    late,
    may_seal,
    pass_on_from_the_lost,
    take_held_bucket,
    take_reduced,
    with_full,
    with_holders,
)
from training.rounds.sealing import MAX_VOIDS, seal_nothing, seal_update, sealed
from training.rounds.state import (
    NO_BYTES,
    Commit,
    Finished,
    Reduce,
    RoundState,
    Seal,
    Work,
    with_phase,
)
from training.rounds.working import (
    expire,
    fail,
    give_up,
    give_up_the_lost,
    is_stuck,
    lose,
    take_results,
)
from training.strategies.port import IDLE, Closing, Decision, RoundNumber, Router, View


def advance(state: RoundState, event: events.Event, rules: Closing) -> events.Change:
    """Apply one event, then everything that follows from it."""
    before = state
    state, effects = _note(state, event)
    if state is before and state.at >= event.at:
        return state, ()
    state = with_phase(state, state.phase, UnixMillis(max(state.at, event.at)))
    is_other = isinstance(event, events.Controlled) or (
        state.members is not before.members and not isinstance(event, events.Applied)
    )
    if is_other or state.standing_since is not None:
        timed = with_timers_in_order(state)
        if is_other or timed is not state:
            state = with_holders(with_lacking(timed))
    while change := _progress(state, rules):
        state, more = change
        effects += more
    return state, _told(before, state, effects)


def _told(
    before: RoundState, state: RoundState, effects: tuple[events.Effect, ...]
) -> tuple[events.Effect, ...]:
    """One `Send`, to those who are owed something else than before."""
    named = [effect.peers for effect in effects if isinstance(effect, events.Send)]
    if not named:
        return effects
    others = tuple(effect for effect in effects if not isinstance(effect, events.Send))
    peers = frozenset(
        peer
        for peer in frozenset().union(*named)
        if (now := owed(state, peer)) is not None and now != owed(before, peer)
    )
    return (*others, events.Send(peers)) if peers else others


# ------------------------------------------------------------------- what an event says


def _note(state: RoundState, event: events.Event) -> events.Change:
    """Take the fact into the state; consequences come later."""
    match event:
        case events.Joined():
            return joined(state, event)
        case events.Connected():
            return connected(state, event)
        case events.Disconnected(peer, at):
            return disconnected(state, peer, at), ()
        case events.LeaveAsked(peer, at):
            return leaving(state, peer, at), ()
        case events.ItemsDone():
            return take_results(state, event), ()
        case events.ItemsLost():
            return lose(state, event), ()
        case events.WorkClaimed(claim) if claim.what == "work":
            return take_claim(state, event)
        case events.WorkClaimed(claim) if claim.what == "report":
            return _unsealed(state, claim.digest()), ()
        case events.WorkClaimed():
            return state, ()
        case events.Held():
            return _held(state, event), ()
        case events.Reduced():
            return take_reduced(state, event)
        case events.Sealed():
            state, effects = sealed(state, event)
            return _without_barred(state), effects
        case events.Applied():
            return _applied(state, event)
        case events.Controlled():
            return _controlled(state, event)
        case events.Checked():
            return _checked(state, event)
        case events.Ticked(at):
            return _without_overdue(state, at)
    assert_never(event)


def _unsealed(state: RoundState, name: Digest) -> RoundState:
    if isinstance(state.phase, Finished) or name in state.unsealed:
        return state
    return replace(state, unsealed=state.unsealed | {name})


def _held(state: RoundState, event: events.Held) -> RoundState:
    match state.phase:
        case Reduce():
            return take_held_bucket(state, event)
        case Work(open=open) | Commit(open=open) as phase:
            if (fresh := take_held(open, event)) is open:
                return state
            phase = replace(phase, open=fresh)
            if isinstance(phase, Commit):
                phase = replace(phase, lacking=without_delivered(phase.lacking, event))
            return with_phase(state, phase)
    return state


def _applied(state: RoundState, event: events.Applied) -> events.Change:
    member = state.members.get(event.peer)
    if member is None or not member.applied < event.round <= state.newest_seal:
        return state, ()
    member = replace(member, applied=event.round)
    members = {**state.members, event.peer: member}
    return replace(state, members=members), (events.Send(frozenset({event.peer})),)


def _controlled(state: RoundState, event: events.Controlled) -> events.Change:
    match event.what:
        case "stop":
            return _stopping(state, event.at), ()
        case "hold":
            return _holding(state), ()
        case "go_on":
            is_so = state.hold_from is None and not state.paused
            return state if is_so else replace(state, hold_from=None, paused=False, voids=0), ()
        case "resumed":
            state = resumed(state, event.at)
            if isinstance(state.phase, Commit | Reduce):
                state = with_phase(state, replace(state.phase, keeping=NO_BYTES))
            return state, keep_late(state)


def _stopping(state: RoundState, at: UnixMillis) -> RoundState:
    """The next seal is the last; what is begun is waited for as long as for claims."""
    if state.stopping or isinstance(state.phase, Finished):
        return state
    match state.phase:
        case Work(ends=int(ends)) as phase:
            ends = UnixMillis(min(ends, at + state.terms.commit_ms))
            state = with_phase(state, replace(phase, ends=ends, extended=True))
    return replace(state, stopping=True)


def _holding(state: RoundState) -> RoundState:
    """A round that is in work is done first; one that is not, as nothing goes out, waits."""
    if state.hold_from is not None:
        return state
    is_in_work = not _is_untouched(state) or _goes_out(state)
    return replace(state, hold_from=RoundNumber(state.round + is_in_work))


def _goes_out(state: RoundState) -> bool:
    """Whether some of a round that nobody has reported may be out."""
    return state.goes_out and state.standing_since is None


def _is_untouched(state: RoundState) -> bool:
    """Whether nobody has done anything of the round; what was handed on to it is not of it."""
    match state.phase:
        case Work(open=open):
            return not (open.unclaimed or open.num_commits)
    return False


def _checked(state: RoundState, event: events.Checked) -> events.Change:
    if isinstance(state.phase, Finished):
        return state, ()
    before = state
    state = replace(
        state,
        may_work=event.may_work,
        takes_work=event.takes_work,
        is_clear=event.is_clear,
        unsealed=state.unsealed | event.unsealed,
        seal_wanted=event.seal_wanted,
        paused=state.paused and event.may_work == state.may_work,
    )
    effects: tuple[events.Effect, ...] = ()
    if not isinstance(state.phase, Seal):  # what its seal holds is settled
        for due in event.notices:
            state, more = _noticed(state, due)
            effects += more
    state = _without_barred(state)
    return (before if state == before else state), effects


def _noticed(state: RoundState, due: events.NoticeDue) -> events.Change:
    """A Notice that draws ask for; whoever is suspended is no member, and its work is lost."""
    if due.what != "suspension":
        name = due.what, due.peer, due.subject
        if name in state.noticed:
            return state, ()
        state, said = notice(state, due.what, due.peer, due.group, evidence=due.subject)
        state = replace(state, noticed=state.noticed | {name})
        return _unsealed(state, said.message.digest()), (said,)
    if due.peer not in state.members:
        return state, ()
    state, effects = _without(state, due.peer, due)
    match state.phase:
        case Work(open=open) | Commit(open=open):
            state = expire(state, work_of(open, due.peer))
    return state, effects


def _without_barred(state: RoundState) -> RoundState:
    """Who may not work any more loses what RoundClosed does not name yet."""
    match state.phase:
        case Work(open=open) | Commit(open=open) if state.may_work is not None:
            for peer in sorted(open.unclaimed.keys() - state.may_work):
                state = give_up(state, peer)
            claims = open.claims.items()
            return expire(state, {name for name, claim in claims if not state.may(claim.peer)})
    return state


def _without_overdue(state: RoundState, at: UnixMillis) -> events.Change:
    effects: tuple[events.Effect, ...] = ()
    for peer in overdue(state, at):
        state, more = _without(state, peer)
        effects += more
    return state, effects


def _without(
    state: RoundState, peer: PeerId, convicted: events.NoticeDue | None = None
) -> events.Change:
    """A member less. What it has claimed still counts, if others get its shards in time."""
    state = give_up(state, peer)
    if convicted is None:
        return left(state, peer)
    state, effects = left(state, peer, "suspension", convicted.subject)
    return _unsealed(state, convicted.subject), effects


# -------------------------------------------------------------------- what follows from it


def _progress(state: RoundState, rules: Closing) -> events.Change | None:
    """The next transition that is due, with its effects; None when nothing is."""
    if isinstance(state.phase, Work | Commit | Reduce) and _is_given_up(state):
        return seal_nothing(state, "void")
    match state.phase:
        case Work():
            return _work(state, rules)
        case Commit():
            return _commit(state, rules)
        case Reduce():
            return _reduce(state)
    return None


def _is_given_up(state: RoundState) -> bool:
    """A job that is to stop does not wait for a group that has nobody, while it has work.

    But for its members after a restart: it was we who were away, and the round is as good as done.
    """
    if not state.stopping or state.standing_since is None or state.draining:
        return False
    have_members = {m.group for m in state.members.values()} >= {*state.terms.groups}
    return state.at >= state.resumed_at + state.terms.lease_grace or not have_members


def _work(state: RoundState, rules: Closing) -> events.Change | None:
    phase = state.phase
    assert isinstance(phase, Work)
    if state.watched and (peer := free_to_go(state)) is not None:
        state, effects = _without(state, peer)
        return with_timers_in_order(state), effects
    if is_without_work(state):
        return seal_nothing(state, "empty")
    if state.is_idle or not state.started:
        return None
    if state.voids >= MAX_VOIDS:
        return replace(state, paused=True, voids=0), ()
    if phase.ends is None:
        return _opened(state), keep_late(state)
    # Who has items of its own in a round keeps them until claims are asked for.
    takes_over = state.watched and state.terms.layout.most_items is None
    if takes_over and (given_up := give_up_the_lost(state)) is not state:
        return given_up, ()
    if not state.takes_work or state.standing_since is not None:
        return None
    if is_stuck(state, phase.open):
        return seal_nothing(state, "void")
    match _decided(state, rules):
        case "close":
            return begin_commit(give_up_the_lost(state)) or seal_nothing(state, "void")
        case "void":
            return seal_nothing(state, "void")
    return _extended(state) if passed(state, phase.ends) else None


def is_without_work(state: RoundState) -> bool:
    """Whether the round is sealed as one without work.

    In a pause draws go on, as they may convict who caused it; at the end until none is open. A job
    that is to stop before anything was done, or while draws let nothing be closed as their budget
    is spent, needs no round with work either.
    """
    if state.draining:
        return state.seal_wanted or (state.is_clear and not state.unsealed)
    if state.is_idle and state.seal_wanted:
        return True
    works = state.started and not state.is_idle and state.takes_work
    return state.stopping and not works and _is_untouched(state)


def _opened(state: RoundState) -> RoundState:
    """Items go out from now on."""
    assert isinstance(state.phase, Work)
    phase, ends = state.phase, UnixMillis(state.at + state.terms.round_ms)
    open = replace(phase.open, opened_at=state.at, work_ends=ends)
    return with_phase(state, replace(phase, open=open, ends=ends))


def _extended(state: RoundState) -> events.Change:
    """The strategy waits at the end of a phase: once more as long, then the round is void."""
    phase = state.phase
    assert isinstance(phase, Work | Commit)
    if phase.extended:
        return seal_nothing(state, "void")
    terms = state.terms
    span = terms.round_ms if isinstance(phase, Work) else terms.deliver_ms
    assert phase.ends is not None
    ends = UnixMillis(phase.ends + span)
    return with_phase(state, replace(phase, ends=ends, extended=True)), ()


def _commit(state: RoundState, rules: Closing) -> events.Change | None:
    assert isinstance(state.phase, Commit)
    phase = state.phase
    if state.watched and (given_up := give_up_the_lost(state)) is not state:
        return given_up, ()
    if not phase.is_delivering:
        if phase.open.unclaimed and not passed(state, phase.ends):
            return None
        if phase.open.unclaimed and _decided(state, rules) == "reopen":
            return reopen(state), ()
        if odd := differing(state, phase.open):
            return fail(state, odd), ()
        return begin_delivery(state), ()
    if state.standing_since is not None:
        return None
    if state.watched and phase.lacking and (lost := lost_claims(state)):
        return expire(state, lost), ()
    if phase.lacking and (keeping := keep_shards(state)):
        return keeping
    is_over = passed(state, phase.ends)
    if phase.lacking and not is_over and is_waiting(state, phase):
        return None
    match _decided(state, rules):
        case "close" if delivered(phase):
            state, effects = close_round(blame_late(state))
            return with_holders(state), effects
        case "close" | "void":
            return seal_nothing(state, "void")
        case "reopen":
            return reopen(state), ()
    return _extended(state) if is_over else None


def _reduce(state: RoundState) -> events.Change | None:
    full = with_full(state)
    if full is not state:
        return full, ()
    if may_seal(state):
        return seal_update(state)
    assert isinstance(state.phase, Reduce)
    if state.phase.thin and (keeping := keep_buckets(state)):
        return keeping
    if state.standing_since is None and (passed_on := pass_on_from_the_lost(state)):
        return passed_on
    if passed(state, state.phase.ends):
        return late(state) or seal_nothing(state, "void")
    return None


# ----------------------------------------------------------------------------- what rules are asked


def _decided(state: RoundState, rules: Closing) -> Decision:
    return rules.closes(view(state, state.at))


def view(state: RoundState, now: UnixMillis, router: Router = IDLE) -> View:
    """The round as its strategy sees it, while items are worked on or claims come in."""
    phase = state.phase
    assert isinstance(phase, Work | Commit)
    open = phase.open
    return View(
        phase="work" if isinstance(phase, Work) else "commit",
        newest=state.newest_seal,
        now=now,
        ends=phase.ends,
        extended=phase.extended,
        issued=open.issued,
        num_issued=open.num_issued,
        counted=open.counted,
        missing=open.unclaimed.keys(),
        claims=open.claims,
        late=state.late,
        delivered=delivered(phase) if isinstance(phase, Commit) else NO_BYTES,
        peers=state.members,
        off=open.off,
        may_work=state.may_work,
        is_dealing=state.goes_out,
        router=router,
    )
