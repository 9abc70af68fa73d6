"""The rules of `every_step`: how a job is cut, what is dealt, when a round closes."""

from dataclasses import replace

import pytest

from contracts.terms.ids import PeerId, StageIndex
from contracts.terms.items import ItemNumber
from contracts.terms.moments import UnixMillis
from tests.support.rounds import claim_of, member, peer, result
from training.strategies.every_step.rules import EveryStep
from training.strategies.port import Member, RoundNumber, Router, View

A, B, C = peer("a"), peer("b"), peer("c")
RULES = EveryStep()
FIRST, SECOND = StageIndex(0), StageIndex(1)


def view(*members: Member, first: str = "", second: str = "", **how: object) -> View:
    """A round of items 0 to 3; digits name those that count in each of two stages, done by A."""
    counted = {
        group: {ItemNumber(int(item)): result(A, group, int(item)) for item in items}
        for group, items in ((FIRST, first), (SECOND, second))
    }
    seen = View(
        phase="work",
        newest=RoundNumber(0),
        now=UnixMillis(1),
        ends=UnixMillis(10),
        extended=False,
        issued=frozenset(map(ItemNumber, range(4))),
        counted=counted,
        missing=frozenset(),
        claims={},
        delivered=frozenset(),
        peers={each.peer: each for each in members},
        off=frozenset(),
        may_work=None,
        is_dealing=True,
    )
    return replace(seen, **how)  # type: ignore[arg-type]


def dealt(seen: View, **router: object) -> dict[PeerId, tuple[int, ...]]:
    """What each peer is given."""
    room = dict.fromkeys(seen.peers, 10)
    seen = replace(seen, router=Router(**{"room": room, **router}))  # type: ignore[arg-type]
    return {each.peer: each.items for each in RULES.assign(seen)}


def test_assign__by_rate__slower_peers_get_less() -> None:
    rates = {A: 300, B: 100}

    assert dealt(view(member(A), member(B)), rates=rates) == {A: (0, 1, 2), B: (3,)}


def test_assign__peer_not_timed_at_work_yet__is_given_one_item_first() -> None:
    seen = view(member(A, rate=300), member(B, rate=1))

    assert dealt(seen, rates={A: 300}) == {B: (0,), A: (1, 2, 3)}
    assert dealt(seen, rates={A: 300, B: 1}) == {A: (0, 1, 2, 3)}


def test_assign__items_that_another_stage_has_done__come_first() -> None:
    seen = view(member(B, SECOND), first="3")

    assert dealt(seen, room={B: 2}) == {B: (3, 0)}
    assert dealt(replace(seen, extended=True)) == {B: (3,)}


def test_assign__cap_and_room__are_kept() -> None:
    seen = view(member(A), member(B), first="0")

    given = dealt(seen, caps={A: 2, B: 1}, room={A: 5, B: 5})

    assert given == {B: (1,), A: (2,)}
    assert dealt(seen, room={B: 2}) == {B: (1, 2)}


def test_assign__item_that_is_out__is_not_dealt_again() -> None:
    out = {FIRST: {ItemNumber(item): A for item in (0, 1)}}

    assert dealt(view(member(A), member(B)), dealt=out) == {B: (2, 3)}


@pytest.mark.parametrize(
    "seen",
    [
        view(member(A), is_dealing=False),
        view(replace(member(A), lost_at=UnixMillis(1))),
        view(replace(member(A), leaves_by=UnixMillis(1))),
        view(member(A), off=frozenset({A})),
        view(member(A), may_work=frozenset({B})),
        view(member(A), newest=RoundNumber(1)),
    ],
)
def test_assign__peer_that_cannot_work__gets_nothing(seen: View) -> None:
    assert dealt(seen) == {}


@pytest.mark.parametrize(
    ("seen", "decision"),
    [
        (view(first="0123", second="012"), "wait"),
        (view(first="0123", second="0123"), "close"),
        (view(first="0", second="0", now=10), "wait"),  # what is begun is not known yet
        (view(first="0", second="0", extended=True), "close"),
        (view(first="01", second="0", extended=True), "wait"),
        (view(first="01", second="0", extended=True, now=10), "close"),
        (view(first="01", extended=True, now=10), "void"),
        (view(extended=True), "wait"),
    ],
)
def test_closes__work(seen: View, decision: str) -> None:
    assert RULES.closes(seen) == decision


def test_closes__claims__wait_for_all_or_for_their_time() -> None:
    claim = claim_of(A, 0, [0, 1, 2, 3])
    claims = {claim.digest(): claim}
    seen = view(phase="commit", claims=claims)

    assert RULES.closes(seen) == "wait"
    assert RULES.closes(replace(seen, now=UnixMillis(10))) == "reopen"
    assert RULES.closes(replace(seen, delivered=claims.keys())) == "close"
    missing = replace(seen, delivered=claims.keys(), missing=frozenset({B}))
    assert RULES.closes(missing) == "wait"
