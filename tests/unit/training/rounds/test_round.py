"""One round from its first item to the next one, and every way back or out of it."""

from dataclasses import replace

import pytest

from contracts.terms.ids import PeerId, StageIndex
from contracts.terms.items import ItemNumber
from contracts.terms.moments import UnixMillis
from tests.support.rounds import (
    RULES,
    Shell,
    bucket_claim,
    claim_of,
    joining,
    layout,
    name,
    owner,
    peer,
    result,
    terms,
)
from training.rounds import events
from training.rounds.machine import advance
from training.rounds.membership import RETURN_MS
from training.rounds.owed import AskBuckets, AskClaim, owed
from training.rounds.state import (
    COORDINATOR,
    Commit,
    Failings,
    Reduce,
    Work,
    has_failed,
)
from training.strategies.port import RoundNumber

A, B, C = peer("a"), peer("b"), peer("c")


def shell_of(*peers: PeerId, items: int = 4, rounds: int = 3, buckets: int = 2) -> Shell:
    """A job of one group that these peers, each of its own owner, have joined."""
    shell = Shell(terms(layout(1, items, rounds, buckets), len(peers)))
    for who in peers:
        shell.tell(joining(who))
    return shell


def in_commit(*peers: PeerId) -> Shell:
    """A and B have done two items each and are asked for claims."""
    shell = shell_of(*(peers or (A, B)))
    shell.work(A, 0, 1)
    shell.work(B, 2, 3)
    return shell


def in_reduce(*peers: PeerId) -> Shell:
    """RoundClosed is out."""
    shell = in_commit(*peers)
    shell.claim(A, B)
    assert isinstance(shell.state.phase, Commit)
    shell.deliver(*shell.state.phase.lacking)
    return shell


def work(shell: Shell) -> Work:
    """The phase, while items are worked on."""
    assert isinstance(shell.state.phase, Work)
    return shell.state.phase


def commit(shell: Shell) -> Commit:
    """The phase, while claims come in."""
    assert isinstance(shell.state.phase, Commit)
    return shell.state.phase


def reduce(shell: Shell) -> Reduce:
    """The phase, while buckets come in."""
    assert isinstance(shell.state.phase, Reduce)
    return shell.state.phase


def effects_of(shell: Shell, kind: type[events.Effect]) -> list[events.Effect]:
    """Everything of a kind that was asked for."""
    return [e for moment in shell.moments for e in moment.effects if isinstance(e, kind)]


# -------------------------------------------------------------------------------- straight through


def test_round_closed__names_claims_reducers_and_what_is_given() -> None:
    shell = shell_of(A, B)
    shell.work(A, 0, 1)
    shell.work(B, 2)
    shell.tell(events.ItemsDone(B, (result(B, 0, 3, given=True),), shell.now))
    shell.claim(A, B)
    shell.deliver(*commit(shell).lacking)

    closed = reduce(shell).closed
    assert closed.weights == {name: 4 for name in reduce(shell).open.claims}
    assert set(closed.reducers) == {A, B}
    assert closed.given == ((StageIndex(0), ((ItemNumber(3), ItemNumber(4)),)),)
    assert closed.bases == (name("base", 0),)


# ------------------------------------------------------------------------------------------- work


def test_items_done__second_result_of_an_item__does_not_count() -> None:
    shell = shell_of(A, B)
    shell.work(A, 0)
    before = shell.state

    shell.work(B, 0)

    assert shell.state == before


@pytest.mark.parametrize("twist", ["not issued", "another group", "of somebody else"])
def test_items_done__does_not_fit__changes_nothing(twist: str) -> None:
    shell = shell_of(A, B)
    made = {
        "not issued": result(A, 0, 9),
        "another group": result(A, 1, 0),
        "of somebody else": result(B, 0, 0),
    }[twist]

    state, effects = advance(shell.state, events.ItemsDone(A, (made,), shell.now), RULES)

    assert (state, effects) == (shell.state, ())


def test_items_done__another_tensor_than_the_neighbour_named__does_not_count() -> None:
    shell = Shell(terms(layout(2), 1))
    shell.tell(joining(A, 0))
    shell.tell(joining(B, 1))
    shell.work(B, 0)  # made from y/0/0 as it should be

    shell.work(A, 0, salt=1)  # says that it sent another one

    assert not work(shell).open.counted[StageIndex(0)]
    shell.work(A, 0)
    assert work(shell).open.counted[StageIndex(0)]


def test_items_lost__by_their_peer__are_open_in_its_group_alone() -> None:
    shell = Shell(terms(layout(2), 1))
    shell.tell(joining(A, 0))
    shell.tell(joining(B, 1))
    shell.work(A, 0, 1)
    shell.work(B, 0, 1)

    shell.tell(events.ItemsLost(A, (ItemNumber(0), ItemNumber(3)), shell.now))

    counted = work(shell).open.counted
    assert counted[StageIndex(0)].keys() == {1} and counted[StageIndex(1)].keys() == {0, 1}


def test_items_lost__nobody_has_their_tensors__start_over_in_all_groups() -> None:
    shell = Shell(terms(layout(2), 1))
    shell.tell(joining(A, 0))
    shell.tell(joining(B, 1))
    shell.work(A, 0, 1)
    shell.work(B, 0)

    shell.tell(events.ItemsLost(None, (ItemNumber(0),), shell.now))

    open = work(shell).open
    assert open.counted[StageIndex(0)].keys() == {1} and not open.counted[StageIndex(1)]
    assert 0 in open.issued


def test_items_lost__peer_is_silent__gets_none_until_the_next_round() -> None:
    shell = shell_of(A, B)
    shell.work(A, 0)

    shell.tell(events.ItemsLost(A, (), shell.now, off=True))

    assert A in work(shell).open.off and not work(shell).open.unclaimed
    shell.work(A, 1)
    assert not work(shell).open.unclaimed


def test_items_lost__peer_is_off_for_some_items__the_others_stay_its_work() -> None:
    shell = shell_of(A, B)
    shell.work(A, 0, 1)

    shell.tell(events.ItemsLost(A, (ItemNumber(1),), shell.now, off=True))

    assert A in work(shell).open.off and work(shell).open.unclaimed == {A: {0}}


def test_work__everybody_of_a_group_is_off__round_is_void() -> None:
    shell = shell_of(A)
    shell.tell(events.ItemsLost(A, (), shell.now, off=True))

    assert shell.seal_due == (1, "void", False)


def test_peer_lost__items_of_its_own__stay_its_work_until_claims_are_asked_for() -> None:
    shell = Shell(terms(replace(layout(1, 4, 3, 2), most_items=4), 2))
    for who in (A, B):
        shell.tell(joining(who))
    shell.work(A, 0)
    shell.tell(events.Disconnected(A, shell.now))
    shell.pass_time(shell.now + shell.terms.redo_after)

    assert work(shell).open.unclaimed == {A: {0}}
    shell.work(B, 1, 2, 3)
    assert commit(shell).open.unclaimed == {B: {1, 2, 3}}


def test_work__who_is_not_off_is_away_for_a_moment__it_is_waited_for() -> None:
    shell = shell_of(A, B)
    shell.tell(events.ItemsLost(A, (), shell.now, off=True))

    shell.tell(events.Disconnected(B, shell.now))

    assert shell.seal_due is None
    shell.pass_time(shell.now + shell.terms.redo_after)
    assert shell.seal_due == (1, "void", False)


def test_peer_lost__longer_than_redo_after__its_items_go_to_others() -> None:
    shell = shell_of(A, B)
    shell.work(A, 0)
    shell.tell(events.Disconnected(A, shell.now))

    shell.pass_time(shell.now + shell.terms.redo_after - 1)
    assert work(shell).open.unclaimed
    shell.pass_time(shell.now + 1)
    assert not work(shell).open.unclaimed


def test_peer_lost__nobody_else_can_do_its_items__they_wait_for_it() -> None:
    shell = shell_of(A)
    shell.work(A, 0)
    shell.tell(events.Disconnected(A, shell.now))
    shell.pass_time(shell.now + 5000)
    shell.tell(events.Connected(A, "", RoundNumber(0), shell.now))

    assert work(shell).open.unclaimed == {A: {0}}


# ----------------------------------------------------------------------------------------- commit


def test_commit__asks_each_for_exactly_what_counts_as_its_work() -> None:
    shell = in_commit()

    asked = owed(shell.state, A)

    assert isinstance(asked, AskClaim)
    assert asked.round == 1 and asked.seq == 0 and asked.items == {0, 1}
    assert effects_of(shell, events.Send)[-1] == events.Send(frozenset({A, B}))


def test_claim__of_other_items_than_count__is_refused() -> None:
    shell = in_commit()
    before = shell.state

    shell.tell(events.WorkClaimed(claim_of(A, 0, [0, 2]), shell.now))

    assert shell.state == before


def test_claim__signed_under_a_higher_seq__counts() -> None:
    shell = in_commit()
    shell.tell(events.WorkClaimed(claim_of(A, 0, [0], seq=3), shell.now))

    asked = owed(shell.state, A)

    assert isinstance(asked, AskClaim)
    assert asked.seq == 4 and asked.items == {1}


def test_claim__with_the_last_seq__leaves_its_peer_off() -> None:
    shell = in_commit()

    shell.tell(events.WorkClaimed(claim_of(A, 0, [0], seq=15), shell.now))

    assert A in work(shell).open.off and len(work(shell).open.claims) == 1


def test_claim__from_another_base_than_most_owners__expires() -> None:
    shell = shell_of(A, B, C)
    shell.work(A, 0, 1)
    shell.work(B, 2)
    shell.work(C, 3)
    shell.claim(B, C)

    shell.tell(events.WorkClaimed(claim_of(A, 0, [0, 1], base=name("odd")), shell.now))

    assert work(shell).open.off == {A}
    assert {claim.peer for claim in work(shell).open.claims.values()} == {B, C}


def test_item_lost__under_a_claim__its_peer_claims_the_rest_anew() -> None:
    shell = in_commit()
    shell.claim(A)

    shell.tell(events.ItemsLost(None, (ItemNumber(0),), shell.now))

    open = work(shell).open
    assert not open.claims and open.unclaimed[A] == {1}
    shell.work(B, 0)
    asked = owed(shell.state, A)
    assert isinstance(asked, AskClaim)
    assert asked.seq == 1 and asked.items == {1}


def test_commit__too_many_times__round_is_void() -> None:
    shell = in_commit()
    for _ in range(16):
        shell.tell(events.ItemsLost(None, (ItemNumber(0),), shell.now))
        shell.work(A, 0)

    assert shell.seal_due == (1, "void", False)


# --------------------------------------------------------------------------------------- delivery


def test_delivery__one_owner__its_reducers_copies_are_enough() -> None:
    shell = Shell(terms(layout(), 2))
    for who in (A, B):
        shell.tell(joining(who, of=owner("x")))
    shell.work(A, 0, 1)
    shell.work(B, 2, 3)
    shell.claim(A, B)

    claims = {claim.peer: claim for claim in commit(shell).open.claims.values()}
    for reducer, shards in commit(shell).lacking.items():
        assert shards.isdisjoint({out.digest for out in claims[reducer].outputs})


def test_delivery__reducer_denies__coordinators_copy_counts() -> None:
    shell = in_commit()
    shell.claim(A, B)
    shell.deliver(A)

    shell.pass_time(shell.now + shell.terms.deliver_ms // 2)
    assert set(shell.keeping) == commit(shell).lacking[B]
    shell.deliver(COORDINATOR)

    assert len(reduce(shell).closed.claims) == 2


def test_delivery__shard_that_nobody_gives__its_claim_expires() -> None:
    shell = in_commit()
    shell.claim(A, B)
    shell.deliver(A)  # but nobody has what A is to give to B

    shell.pass_time(shell.now + shell.terms.deliver_ms)

    assert work(shell).open.off == {A}
    assert {claim.peer for claim in work(shell).open.claims.values()} == {B}


def test_delivery__only_a_lost_peer_has_what_it_claimed__its_items_go_to_others() -> None:
    shell = in_commit()
    shell.claim(A, B)
    shell.deliver(A)
    shell.tell(events.Disconnected(A, shell.now))

    shell.pass_time(shell.now + shell.terms.redo_after - 1)
    assert len(commit(shell).open.claims) == 2
    shell.pass_time(shell.now + 1)
    assert {claim.peer for claim in work(shell).open.claims.values()} == {B}
    assert not shell.state.claiming  # it is at no fault

    shell.tell(events.Connected(A, "", RoundNumber(0), shell.now))
    shell.work(B, 0, 1)
    shell.claim(B)
    shell.deliver(A)
    assert {claim.peer for claim in reduce(shell).open.claims.values()} == {B}
    shell.reduce(B)
    shell.hold(A)
    shell.store_seal()
    shell.apply(A, B)
    shell.work(A, 4)
    assert work(shell).open.unclaimed == {A: {4}}


@pytest.mark.parametrize("how", ["is back", "others hold it", "nobody can do it again"])
def test_delivery__what_a_lost_peer_claimed_can_be_had__its_claim_stays(how: str) -> None:
    shell = in_commit()
    shell.claim(A, B)
    shell.deliver(A)
    if how == "others hold it":
        shell.deliver(B)
    if how == "nobody can do it again":
        shell.tell(events.LeaveAsked(B, shell.now))
    shell.tell(events.Disconnected(A, shell.now))
    if how == "is back":
        shell.tell(events.Connected(A, "", RoundNumber(0), shell.now))

    shell.pass_time(shell.now + shell.terms.redo_after)

    open = shell.state.open
    assert open is not None and {claim.peer for claim in open.claims.values()} == {A, B}


def test_delivery__lost_reducer_of_the_only_owner__its_own_shard_is_waited_for() -> None:
    shell = Shell(terms(layout(), 2))
    for who in (A, B):
        shell.tell(joining(who, of=owner("x")))
    shell.work(A, 0, 1)
    shell.work(B, 2, 3)
    shell.claim(A, B)
    [bucket] = [each for each, who in commit(shell).open.dealing.items() if who == A]
    shell.tell(events.Disconnected(A, shell.now))
    shell.deliver(B)

    assert {each.peer for each in commit(shell).open.claims.values()} == {A, B}
    [own] = [each for each in commit(shell).open.claims.values() if each.peer == A]
    assert own.outputs[bucket[1]].digest in commit(shell).lacking[COORDINATOR]


# ----------------------------------------------------------------------------------------- reduce


def test_reduce__one_owner_and_the_coordinator_hold__is_enough_after_a_while() -> None:
    shell = in_reduce()
    shell.reduce(A, B)

    shell.pass_time(shell.now + shell.terms.reduce_ms // 2)
    assert set(shell.keeping) == reduce(shell).thin
    shell.hold(COORDINATOR)
    assert shell.seal_due is None
    shell.pass_time(shell.now + shell.terms.hold_ms)

    assert shell.seal_due is not None
    assert has_failed(shell.state.holding, shell.state.owners[A], RoundNumber(2))


def test_reduce__dealt_reducer_is_late__the_next_is_asked_and_its_owner_has_failed() -> None:
    shell = in_reduce()
    shell.reduce(A)

    shell.pass_time(shell.now + shell.terms.reduce_ms)

    asked = owed(shell.state, A)
    assert isinstance(asked, AskBuckets) and len(asked.buckets) == 1
    assert has_failed(shell.state.reducing, shell.state.owners[B], RoundNumber(2))
    shell.reduce(A)
    shell.hold(A, B)
    assert shell.seal_due is not None and shell.seal_due[1] == "update"


def test_reduce__claimed_and_given_to_nobody__the_next_ones_claim_counts() -> None:
    shell = in_reduce()
    shell.reduce(A)
    closed = reduce(shell).closed
    (bucket,) = reduce(shell).owing[B]
    shell.tell(events.Reduced(bucket_claim(B, closed, bucket, salt=1), b"s" * 64, shell.now))
    (good,) = reduce(shell).open.held[A] & reduce(shell).holders.keys()
    shell.tell(events.Held(B, frozenset({good}), shell.now))

    shell.pass_time(shell.now + shell.terms.reduce_ms)
    shell.reduce(A)

    assert reduce(shell).buckets[bucket].message.peer == A
    before = shell.state
    shell.tell(events.Reduced(bucket_claim(B, closed, bucket, salt=1), b"s" * 64, shell.now))
    assert shell.state == before


def test_reduce__reducer_is_lost__the_next_is_asked_without_blame() -> None:
    shell = in_reduce(A, B, C)
    shell.tell(events.Disconnected(B, shell.now))

    shell.pass_time(shell.now + shell.terms.redo_after)

    assert B not in reduce(shell).owing and not shell.state.reducing


def test_reduce__only_a_lost_peer_has_a_bucket__the_next_is_asked() -> None:
    shell = in_reduce(A, B, C)
    shell.reduce(A, B)
    shell.tell(events.Disconnected(B, shell.now))
    assert not reduce(shell).owing

    shell.pass_time(shell.now + shell.terms.redo_after)

    [stand_in] = reduce(shell).owing
    assert stand_in != B and not shell.state.reducing
    shell.reduce(stand_in)
    shell.hold(A, C)
    assert shell.seal_due == (1, "update", False)


def test_reduce__coordinator_was_away__reducers_have_time_to_come_back() -> None:
    shell = in_reduce(A, B, C)
    shell.now = UnixMillis(shell.now + 10 * RETURN_MS)
    shell.crash()
    for who in (A, C):
        shell.tell(events.Connected(who, "", RoundNumber(0), shell.now))
    asked = reduce(shell).owing[B]

    shell.pass_time(shell.now + min(RETURN_MS, shell.terms.reduce_ms) - 1)

    assert shell.terms.redo_after < RETURN_MS
    assert reduce(shell).owing[B] == asked


def test_resumed__who_was_here__is_waited_for_before_any_timer_runs() -> None:
    shell = in_reduce(A, B, C)
    ends = reduce(shell).ends
    left = ends - shell.state.at
    shell.now = UnixMillis(shell.now + 10 * RETURN_MS)
    shell.crash()
    shell.tell(events.Connected(A, "", RoundNumber(0), shell.now))
    asked = reduce(shell).owing

    shell.pass_time(shell.now + RETURN_MS - 1)  # longer than the phase had left

    assert left < RETURN_MS and reduce(shell).owing == asked and shell.state.standing_since
    for who in (B, C):
        shell.tell(events.Connected(who, "", RoundNumber(0), shell.now))
    assert shell.state.standing_since is None and reduce(shell).ends - shell.now == left


def test_resumed__who_was_here_stays_away__others_go_on_after_the_time_to_come_back() -> None:
    shell = in_reduce(A, B, C)
    shell.crash()
    for who in (A, C):
        shell.tell(events.Connected(who, "", RoundNumber(0), shell.now))

    shell.pass_time(shell.now + RETURN_MS)

    assert shell.state.standing_since is None and B not in reduce(shell).owing


def test_resumed__twice_in_a_moment__gives_all_the_time_again() -> None:
    shell = in_reduce(A, B, C)
    shell.crash()
    for who in (A, C):
        shell.tell(events.Connected(who, "", RoundNumber(0), shell.now))
    shell.pass_time(shell.now + RETURN_MS - 1)
    shell.crash()
    for who in (A, C):
        shell.tell(events.Connected(who, "", RoundNumber(0), shell.now))

    shell.pass_time(shell.now + RETURN_MS - 1)

    assert B in reduce(shell).owing


def test_resumed__group_is_away_for_longer__all_of_it_have_their_time_from_the_first_one() -> None:
    shell = in_reduce(A, B, C)
    shell.crash()
    asked = reduce(shell).owing
    shell.pass_time(shell.now + 2 * RETURN_MS)
    shell.tell(events.Connected(A, "", RoundNumber(0), shell.now))

    shell.pass_time(shell.now + RETURN_MS - 1)
    assert reduce(shell).owing == asked

    shell.pass_time(shell.now + 1)
    assert B not in reduce(shell).owing


def test_resumed__a_leaver_from_whom_a_newcomer_loads__does_not_go_before_that_is_back() -> None:
    shell = in_reduce(A, B)
    shell.reduce(A, B)
    shell.hold(A, B)
    shell.store_seal()
    shell.apply(A, B)
    shell.tell(joining(C, 0, applied=0, at=shell.now))
    shell.tell(events.LeaveAsked(A, shell.now))
    assert A in shell.state.members

    shell.crash()
    assert A in shell.state.members

    shell.pass_time(shell.now + shell.terms.lease_grace)
    assert A not in shell.state.members


def test_resumed__who_was_away_before__keeps_what_is_left_of_its_lease() -> None:
    shell = in_reduce(A, B, C)
    shell.tell(events.Disconnected(B, shell.now))
    shell.now = UnixMillis(shell.now + 10 * shell.terms.lease_grace)
    shell.crash()

    shell.pass_time(shell.now + shell.terms.lease_grace - 1)
    assert B in shell.state.members

    shell.pass_time(shell.now + 1)
    assert B not in shell.state.members


@pytest.mark.parametrize("holder", [C, COORDINATOR])
def test_reduce__others_have_a_lost_peers_bucket__nobody_is_asked(holder: PeerId) -> None:
    shell = in_reduce(A, B, C)
    shell.reduce(A, B)
    shell.hold(holder)
    shell.tell(events.Disconnected(B, shell.now))

    shell.pass_time(shell.now + shell.terms.redo_after)

    assert not isinstance(shell.state.phase, Reduce) or not reduce(shell).owing


def test_failings__of_one_owner__are_remembered_twice_as_long_each() -> None:
    once = Failings().and_one(RoundNumber(5))
    twice = once.and_one(RoundNumber(5)).and_one(RoundNumber(9))

    assert (once.until, twice.until) == (8, 14)


# ------------------------------------------------------------------------- void, empty, outside


def test_voids__three_that_blame_nobody_new__pause_until_somebody_comes() -> None:
    shell = shell_of(A)
    for _ in range(3):
        shell.tell(events.ItemsLost(A, (), shell.now, off=True))
        shell.store_seal()
        shell.apply(A)

    assert shell.state.paused and not shell.state.goes_out
    shell.tell(joining(B, applied=3))
    assert not shell.state.paused


def test_checked__peer_may_not_work__its_claim_expires() -> None:
    shell = in_commit()
    shell.claim(A)

    shell.tell(events.Checked(frozenset({B}), True, True, frozenset(), False, (), shell.now))

    assert not work(shell).open.claims and work(shell).open.unclaimed == {B: {2, 3}}


def test_takes_work__too_many_rounds_are_undrawn__round_is_not_closed() -> None:
    shell = shell_of(A)
    shell.tell(events.Checked(None, False, False, frozenset(), False, (), shell.now))
    shell.work(A, 0, 1, 2, 3)
    shell.pass_time(shell.now + 100_000)
    assert work(shell)

    shell.tell(events.Checked(None, True, False, frozenset(), False, (), shell.now))

    assert isinstance(shell.state.phase, Commit)


def test_report__no_seal_holds_it__the_job_does_not_end() -> None:
    shell = Shell(terms(layout(1, 4, 1, 1), is_checked=True))
    shell.tell(joining(A))
    shell.work(A, 0, 1, 2, 3)
    shell.claim(A)
    shell.reduce(A)
    shell.store_seal()
    report = claim_of(A, 0, [0]).model_copy(
        update={"what": "report", "items": (), "outputs": (), "base": bytes(32)}
    )
    shell.tell(events.WorkClaimed(report, shell.now))
    shell.tell(events.Checked(None, True, True, frozenset(), False, (), shell.now))
    assert shell.seal_due is None

    shell.tell(events.Checked(None, True, True, frozenset(), True, (), shell.now))

    assert shell.seal_due == (2, "empty", False)


@pytest.mark.parametrize(
    "event",
    [
        events.Disconnected(C, UnixMillis(1000)),
        events.Connected(C, "", RoundNumber(0), UnixMillis(1000)),
        events.LeaveAsked(C, UnixMillis(1000)),
        events.Applied(A, RoundNumber(5), UnixMillis(1000)),
        events.Sealed(RoundNumber(1), False, UnixMillis(1000)),
        events.Controlled("go_on", UnixMillis(1000)),
        events.WorkClaimed(claim_of(A, 0, [0]), UnixMillis(1000)),
        events.ItemsLost(C, (), UnixMillis(1000), off=True),
        joining(A),
    ],
)
def test_event__does_not_fit__changes_nothing(event: events.Event) -> None:
    shell = shell_of(A, B)

    assert advance(shell.state, event, RULES) == (shell.state, ())


def test_notice__of_a_missed_report__is_said_once_a_round() -> None:
    shell = shell_of(A, B)
    due = events.NoticeDue("missed_report", A, StageIndex(0), name("subject"))
    for _ in range(2):
        shell.tell(events.Checked(None, True, True, frozenset(), False, (due,), shell.now))
        shell.tell(events.Controlled("hold", shell.now))

    assert len(effects_of(shell, events.SignNotice)) == 3


# --------------------------------------------------------------------------- members and timers
