"""The invariants of the round machine over simulated histories of a job, whatever its peers do.

Peers are lost and come back, are silent or slow, deny what they hold, withhold what they made, lie
about buckets; the coordinator is killed and starts again from its journal.
"""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from contracts.terms.ids import Digest, PeerId
from contracts.terms.items import count
from contracts.terms.messages import Notice
from contracts.terms.work import RoundClosed
from tests.support.rounds import Moment, World, history, replay
from training.rounds.events import (
    Checked,
    Connected,
    Controlled,
    Disconnected,
    Joined,
    LeaveAsked,
    Sealed,
    Send,
    SignNotice,
    SignRoundClosed,
)
from training.rounds.journaled import decode_event, encode_event
from training.rounds.machine import advance
from training.rounds.owed import owed
from training.rounds.sealing import merged_claims
from training.rounds.state import (
    COORDINATOR,
    Commit,
    Finished,
    OpenRound,
    Reduce,
    RoundState,
    Seal,
    Work,
    first_state,
)

seeds = st.integers(0, 2**32)
"""A history is named by a seed: lists that hypothesis draws are too short for a third round."""


def open_of(state: RoundState) -> OpenRound | None:
    """The open round of a state."""
    return getattr(state.phase, "open", None)


def closed_by(moment: Moment) -> RoundClosed | None:
    """The RoundClosed that a moment signs."""
    signed = [each.message for each in moment.effects if isinstance(each, SignRoundClosed)]
    assert len(signed) <= 1
    return signed[0] if signed else None


def check_fold(world: World) -> None:
    """1: the state is the fold of the journal, which gives every event back as it was."""
    events = [moment.event for moment in world.shell.moments]
    stored = [*map(encode_event, events)]
    assert [*map(decode_event, stored)] == events
    assert replay(world.shell.terms, stored, world.rules) == world.state


def check_counted_once(world: World) -> None:
    """2: an item counts once in a group, for as long as its peer or its claim does, and fits."""
    for moment in world.shell.moments:
        if not isinstance(moment.state.phase, Work | Commit):
            continue
        open = moment.state.phase.open
        bound: dict[object, PeerId] = {}
        claims = [(claim.peer, claim.group, claim.numbers) for claim in open.claims.values()]
        members = moment.state.members
        owed = [(who, members[who].group, items) for who, items in open.unclaimed.items()]
        for who, group, items in [*claims, *owed]:
            for item in items:
                assert (group, item) not in bound
                bound[group, item] = who
        counted = {
            (group, item): result.peer
            for group, results in open.counted.items()
            for item, result in results.items()
        }
        assert counted == bound
        names: dict[str, Digest] = {}
        for results in open.counted.values():
            for result in results.values():
                for name, digest in result.tensors:
                    assert names.setdefault(name, digest) == digest


def check_closed(world: World) -> None:
    """3: RoundClosed covers the same items in all groups, and its evidence is with others."""
    is_late_merged = world.shell.terms.layout.merges_late
    for moment in world.shell.moments:
        closed = closed_by(moment)
        if closed is None:
            continue
        state, open = moment.state, open_of(moment.state)
        assert open is not None
        items: dict[object, set[int]] = {group: set() for group in state.terms.groups}
        for name in closed.weights:
            claim = open.claims[name]
            items[claim.group].update(claim.numbers)
            assert state.may(claim.peer)
            assert claim.base == closed.bases[claim.group] or state.is_late(claim)
            own = state.owners[claim.peer]
            others = {m.owner for m in state.members.values() if m.group == claim.group} - {own}
            for output in claim.outputs:
                holders = {who for who, held in open.held.items() if output.digest in held}
                elsewhere = {who for who in holders if state.owners.get(who) != own}
                assert elsewhere or not others
        assert is_late_merged or all(each == open.issued for each in items.values())


def check_set_is_fixed(world: World) -> None:
    """4: after RoundClosed the round is sealed with all of its claims, or with none."""
    closed: RoundClosed | None = None
    for moment in world.shell.moments:
        if isinstance(moment.event, Sealed):
            closed = None
        if (signed := closed_by(moment)) is not None:
            assert closed is None
            closed = signed
        match moment.state.phase:
            case Reduce() | Seal(what="update") as phase:
                assert phase.closed == closed
                assert closed is not None and closed.weights.keys() <= phase.open.claims.keys()
            case Work() | Commit():
                assert closed is None


def check_sealed_once(world: World) -> None:
    """5: a claim and an item are sealed once; a void round seals nothing and hands claims on."""
    claims: set[Digest] = set()
    items: set[int] = set()
    for moment in world.shell.moments:
        before, state = moment.before, moment.state
        if not isinstance(moment.event, Sealed) or not isinstance(before.phase, Seal):
            continue
        merged = merged_claims(before.phase)
        if before.phase.what != "update":
            assert not merged and state.cursor == before.cursor
            if (after := open_of(state)) is not None:
                assert after.claims.keys() <= before.phase.open.claims.keys()
            continue
        own = {item for claim in merged.values() for item in claim.numbers}
        assert not claims & merged.keys() and not items & own
        claims |= merged.keys()
        items |= own
        assert state.updates == before.updates + 1
        sealed = state.cursor.next - count(state.cursor.unsealed)
        assert sealed == len(items) == before.sealed_items + len(own)


def check_holders(world: World) -> None:
    """6: of what a seal names enough have all, or one and the coordinator."""
    for moment in world.shell.moments:
        state, phase = moment.state, moment.state.phase
        if not isinstance(phase, Seal) or isinstance(moment.before.phase, Seal):
            continue  # after a restart a seal is asked for again as it is
        if phase.what != "update":
            continue
        assert {*phase.buckets} == {*state.terms.buckets}
        for bucket, signed in phase.buckets.items():
            groups = {g for g, own in state.terms.layout.outputs.items() if bucket in own}
            members = [m for m in state.members.values() if m.group in groups]
            digest = signed.message.outputs[0].digest
            having = {who for who, held in phase.open.held.items() if digest in held}
            owners = {m.owner for m in members if m.is_here and m.peer in having}
            needed = min(2, len({m.owner for m in members}))
            assert len(owners) >= (min(1, needed) if COORDINATOR in having else needed)


def check_batch(world: World) -> None:
    """7: a batch has its full size, unless the time in which items are begun is over."""
    for moment in world.shell.moments:
        closed, layout = closed_by(moment), world.shell.terms.layout
        if closed is None:
            continue
        state, open = moment.state, open_of(moment.state)
        assert open is not None and open.work_ends is not None
        full = min(layout.items_per_round, layout.ordered_items - state.sealed_items)
        assert len(open.issued) == full or state.stopping or state.at >= open.work_ends


def check_timers(world: World) -> None:
    """9: timers stand while somebody is waited for; else no phase outlives its own."""
    for moment in world.shell.moments:
        state = moment.state
        here = {member.group for member in state.members.values() if member.is_here}
        if not isinstance(state.phase, Finished):
            is_coming = (state.return_by is None or state.at < state.return_by) and any(
                member.lost_at == state.resumed_at for member in state.members.values()
            )
            assert (state.standing_since is not None) == (
                is_coming or here != {*state.terms.groups}
            )
        waits = state.is_idle or not state.takes_work or state.standing_since is not None
        ends = getattr(state.phase, "ends", None)
        assert ends is None or waits or state.at < ends
        work = open_of(state)
        if isinstance(state.phase, Work) and work is not None and state.goes_out:
            assert work.opened_at is not None or state.voids


def check_notices(world: World) -> None:
    """Notices are numbered without gaps, and say each change of membership once."""
    notices: list[Notice] = [
        e.message for m in world.shell.moments for e in m.effects if isinstance(e, SignNotice)
    ]
    assert [notice.number for notice in notices] == list(range(len(notices)))
    members: set[PeerId] = set()
    for notice in notices:
        if notice.what != "missed_report":
            assert (notice.peer in members) == (notice.what != "join")
            members ^= {notice.peer}


def check_repetition(world: World) -> None:
    """An event that comes again at the same moment changes nothing and asks for nothing."""
    for moment in world.shell.moments:
        if isinstance(moment.event, Joined | Connected | Disconnected | LeaveAsked | Sealed):
            continue  # who is here may change in between; a seal is followed by the next round
        if isinstance(moment.event, Controlled | Checked):
            continue  # a restart asks again; what is allowed may have moved the round on
        state, effects = advance(moment.state, moment.event, world.rules)
        assert effects == ()
        assert state == moment.state


def check_sent(world: World) -> None:
    """Whoever is owed something else than before is named in `Send`, and nobody besides."""
    for moment in world.shell.moments:
        sent = [each.peers for each in moment.effects if isinstance(each, Send)]
        changed = {
            who
            for who in moment.state.members
            if (now := owed(moment.state, who)) is not None and now != owed(moment.before, who)
        }
        assert frozenset().union(*sent) == changed


def check_late(world: World) -> None:
    """Of local steps: what is merged is of the newest state or the one before, as members see it.

    No seal holds more items of a peer than it may do in a round.
    """
    most = world.shell.terms.layout.most_items
    updates = [0, 0]  # rounds of the two newest
    bases: dict[int, Digest] = {}  # what they were made from
    for moment in world.shell.moments:
        phase = moment.before.phase
        if not isinstance(moment.event, Sealed) or not isinstance(phase, Seal):
            continue
        if phase.what != "update":
            continue
        assert phase.closed is not None and most is not None
        merged = merged_claims(phase).values()
        items = Counter[PeerId]()
        for claim in merged:
            items[claim.peer] += len(claim.numbers)
            assert claim.round > updates[0]
            is_late = claim.round <= updates[1]
            assert claim.base == (bases[updates[1]] if is_late else phase.closed.bases[0])
        assert all(number <= most for number in items.values())
        assert any(claim.round > updates[1] for claim in merged)
        updates = [updates[1], moment.before.round]
        bases[moment.before.round] = phase.closed.bases[0]


CHECKS = (
    check_fold, check_counted_once, check_closed, check_set_is_fixed, check_sealed_once,
    check_holders, check_batch, check_timers, check_notices, check_repetition, check_sent,
)  # fmt: skip


@given(seeds)
def test_machine__any_history__keeps_its_invariants(seed: int) -> None:
    world = history(seed)

    for check in CHECKS:
        check(world)


@given(seeds)
def test_machine__any_history_of_local_steps__keeps_its_invariants(seed: int) -> None:
    world = history(seed, 800, is_local=True)

    for check in (*CHECKS, check_late):
        if check is not check_batch:  # what is not done comes in a later round
            check(world)


@given(seeds)
def test_machine__one_steady_peer_a_group__seals_in_time(seed: int) -> None:
    """8: whatever the others do."""
    world = history(seed, 200)
    if isinstance(world.state.phase, Finished):
        return
    world.settle()
    terms, begun, round = world.shell.terms, world.shell.now, world.state.round
    longest = 2 * terms.round_ms + 16 * (2 * terms.commit_ms + terms.deliver_ms)
    longest += 2 * terms.reduce_ms + terms.hold_ms

    while world.state.newest_seal < round:
        world.live(10)
        assert world.shell.now <= begun + longest


def test_histories_of_local_steps__of_many_seeds__merge_late_claims_and_let_some_expire() -> None:
    reached: set[str] = set()

    for seed in range(60):
        for moment in history(seed, 800, is_local=True).shell.moments:
            late, phase = moment.before.late, moment.before.phase
            if late and isinstance(moment.event, Sealed) and isinstance(phase, Seal):
                merged = merged_claims(phase).keys()
                reached |= {"merged"} if late & merged else set()
                reached |= {phase.what} if late - merged else set()

    assert reached >= {"merged", "update", "void"}


def test_histories__of_many_seeds__reach_every_phase() -> None:
    reached: set[str] = set()

    for seed in range(25):
        moments = history(seed).shell.moments
        for moment in moments:
            reached.add(type(moment.state.phase).__name__)
            reached.update(type(effect).__name__ for effect in moment.effects)
            if isinstance(moment.state.phase, Seal):
                reached.add(moment.state.phase.what)
        reached |= {
            "back to work"
            for one, other in pairwise(moments)
            if isinstance(one.state.phase, Commit) and isinstance(other.state.phase, Work)
        }

    assert reached >= {
        "Work", "Commit", "Reduce", "Seal", "Finished", "SignNotice", "SignRoundClosed",
        "KeepBytes", "Send", "update", "void", "empty", "back to work",
    }  # fmt: skip
    assert first_state(history(0, 0).shell.terms).phase != Finished()
