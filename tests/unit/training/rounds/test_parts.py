"""Members, dealing and the journal of rounds, each by itself."""

from collections import Counter
from dataclasses import replace

import pytest

from contracts.terms.encoding import encode
from contracts.terms.errors import Malformed, UnknownVersion
from contracts.terms.ids import PeerId, StageIndex
from contracts.terms.moments import UnixMillis
from tests.support.rounds import Shell, joining, layout, owner, peer, terms
from training.rounds import events
from training.rounds.dealing import Ring, deal
from training.rounds.journaled import decode_event
from training.rounds.membership import checkpoint_to_load
from training.rounds.owed import all_applied, next_deadline
from training.rounds.state import Failings, RoundState, Work
from training.strategies.port import RoundNumber

A, B, C = peer("a"), peer("b"), peer("c")


def shell_of(groups: int = 1, peers: int = 3, buckets: int = 6) -> Shell:
    """A job whose peers a, b, c and so on went from group to group."""
    shell = Shell(terms(layout(groups, 4, 3, buckets), peers // groups))
    for number in range(peers):
        shell.tell(joining(peer("abcdef"[number]), number % groups))
    return shell


def at_round_ten(shell: Shell, applied: dict[PeerId, int]) -> RoundState:
    """Nine rounds are sealed, and a member has applied so many of them."""
    members = {
        who: replace(member, applied=RoundNumber(applied[who]))
        for who, member in shell.state.members.items()
    }
    return replace(shell.state, round=RoundNumber(10), members=members)


@pytest.mark.parametrize(("applied", "expected"), [(9, 8), (8, 8), (7, 4), (4, 4)])
def test_checkpoint__newest_that_all_of_the_group_hold(applied: int, expected: int) -> None:
    state = at_round_ten(shell_of(), {A: 9, B: applied, C: 0})

    assert checkpoint_to_load(state, StageIndex(0), every=4) == expected


def test_checkpoint__a_member_is_a_little_late__need_not_load_what_a_mate_may_withhold() -> None:
    state = at_round_ten(shell_of(peers=2), {A: 7, B: 9})

    assert checkpoint_to_load(state, StageIndex(0), every=4) <= 7
    assert all_applied(state) == 7


def test_checkpoint__nobody_else_in_the_group__is_not_told_to_load() -> None:
    state = at_round_ten(shell_of(peers=1), {A: 1})

    assert checkpoint_to_load(state, StageIndex(0), every=4) == 0


def test_deal__whole_buckets_in_proportion_to_bandwidth() -> None:
    shell = shell_of()
    members = dict(shell.state.members)
    members[A] = replace(members[A], bandwidth=4000)
    assert isinstance(shell.state.phase, Work)

    dealing = deal(replace(shell.state, members=members), shell.state.phase.open).dealing

    assert Counter(dealing.values()) == {A: 4, B: 1, C: 1}


def test_deal__reducer_that_still_can__keeps_its_buckets() -> None:
    shell = shell_of()
    assert isinstance(shell.state.phase, Work)
    first = deal(shell.state, shell.state.phase.open)
    shell.tell(events.Disconnected(C, shell.now))

    again = deal(shell.state, first).dealing

    assert C not in again.values()
    assert all(again[bucket] == who for bucket, who in first.dealing.items() if who != C)


def test_deal__owner_that_failed__rests_while_others_can() -> None:
    shell = shell_of()
    assert isinstance(shell.state.phase, Work)
    shell.work(A, 0)
    shell.work(B, 1)
    failed = {shell.state.owners[A]: Failings(1, RoundNumber(0))}
    state = replace(shell.state, reducing=failed)
    assert isinstance(state.phase, Work)

    assert set(deal(state, state.phase.open).dealing.values()) == {B}


def test_ring__stands_in_once_each_and_differs_by_bucket() -> None:
    shell = shell_of(peers=6)
    ring = Ring(shell.state, StageIndex(0))

    orders = []
    for bucket in shell.terms.buckets:
        asked: list[PeerId] = []
        while (who := ring.stand_in(bucket, asked)) is not None:
            asked.append(who)
        orders.append(tuple(asked))

    assert all(sorted(order) == sorted(shell.state.members) for order in orders)
    assert len({order[0] for order in orders}) == 6


def test_ring__other_owner__is_connected_if_there_is_one() -> None:
    shell = Shell(terms(layout(), 3))
    for who, of in ((A, "x"), (B, "y"), (C, "z")):
        shell.tell(joining(who, of=owner(of)))
    shell.tell(events.Disconnected(B, shell.now))

    found = Ring(shell.state, StageIndex(0)).other_owner(shell.terms.buckets[0], owner("x"))

    assert found is not None and found.peer == C
    assert Ring(shell.state, StageIndex(0)).other_owner(shell.terms.buckets[0], owner("z"))


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"event": "Unheard", "values": {}}, UnknownVersion),
        ({"event": "Ticked", "values": {"at": "now"}}, Malformed),
        ({"event": "Ticked"}, Malformed),
    ],
)
def test_journal__no_event__is_refused(value: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_event(encode(value))  # type: ignore[arg-type]


def test_next_deadline__nothing_is_waited_for__is_none() -> None:
    shell = Shell(terms())

    assert next_deadline(shell.state) is None
    shell.tell(joining(A))
    assert next_deadline(shell.state) == shell.now + shell.terms.round_ms
    assert next_deadline(shell.state, after=UnixMillis(10**6)) is None
