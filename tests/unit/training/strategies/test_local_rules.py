"""The rules of `local`: what a replica is given next, and when a round closes."""

from dataclasses import replace

import pytest

from contracts.terms.ids import PeerId
from contracts.terms.items import ItemNumber
from contracts.terms.messages import LocalSpec
from contracts.terms.moments import UnixMillis
from tests.support.history import make_spec
from tests.support.rounds import claim_of, member, peer, result
from training.strategies.local.rules import GROUP, Local
from training.strategies.port import Member, RoundNumber, Router, View

A, B, C = peer("a"), peer("b"), peer("c")
SPEC = make_spec(
    strategy="local",
    units_per_step=6,
    local=LocalSpec(
        inner_steps=2, segments=2, rewarm_steps=5, outer_rate=10**6, outer_momentum=0,
        round_time=1000, quorum=2,
    ),
)  # fmt: skip
RULES = Local(SPEC)
SECOND = 10**9 // 1000  # items per 1e6 seconds of who takes a second for one, in ms


def view(*members: Member, done: dict[PeerId, str] | None = None, **how: object) -> View:
    """A round of items 0 to 5 that lasts until 10,000; digits name what each peer has done."""
    counted = {
        ItemNumber(int(item)): result(who, GROUP, int(item))
        for who, items in (done or {}).items()
        for item in items
    }
    seen = View(
        phase="work",
        newest=RoundNumber(0),
        now=UnixMillis(1),
        ends=UnixMillis(10_000),
        extended=False,
        issued=frozenset(map(ItemNumber, range(6))),
        counted={GROUP: counted},
        missing=frozenset(),
        claims={},
        delivered=frozenset(),
        peers={each.peer: each for each in members},
        off=frozenset(),
        may_work=None,
        is_dealing=True,
        num_issued=6,
    )
    return replace(seen, **how)  # type: ignore[arg-type]


def dealt(seen: View, **router: object) -> dict[PeerId, tuple[int, ...]]:
    """What each peer is given."""
    room = dict.fromkeys(seen.peers, 2)
    seen = replace(seen, router=Router(**{"room": room, **router}))  # type: ignore[arg-type]
    return {each.peer: each.items for each in RULES.assign(seen)}


def test_layout__of_a_job__one_group_whatever_the_speed() -> None:
    layout = RULES.layout(SPEC)

    assert (layout.groups, layout.most_items, layout.norms_grow) == ((GROUP,), 2, True)


def test_assign__everybody__gets_one_more_up_to_what_a_peer_may_do() -> None:
    assert dealt(view(member(A), member(B))) == {A: (0,), B: (1,)}
    assert dealt(view(member(A), member(B), done={A: "01"})) == {B: (2,)}


def test_assign__reopened_item__goes_to_nobody_who_is_beyond_it() -> None:
    seen = view(member(A), member(B), done={A: "3"}, issued=frozenset({ItemNumber(1)}))

    assert dealt(seen) == {B: (1,)}


def test_assign__no_time_left_for_one_more__waits_for_the_next_round() -> None:
    slow, fast = member(A, rate=SECOND // 8), member(B, rate=SECOND)
    seen = view(slow, fast, done={A: "0", B: "1"}, now=UnixMillis(5_000))

    assert dealt(seen) == {B: (2,)}
    assert dealt(replace(seen, extended=True)) == {}


@pytest.mark.parametrize(
    ("done", "now", "decision"),
    [
        ({}, 1, "wait"),
        ({}, 10_000, "wait"),  # once more as long
        ({A: "01", B: "2"}, 1, "wait"),
        ({A: "01", B: "2"}, 10_000, "close"),
        ({A: "01", B: "23"}, 1, "close"),  # all have done what they may
    ],
)
def test_closes__work__at_its_time_or_when_all_are_through(
    done: dict[PeerId, str], now: int, decision: str
) -> None:
    assert RULES.closes(view(member(A), member(B), done=done, now=UnixMillis(now))) == decision


@pytest.mark.parametrize(("now", "decision"), [(499, "wait"), (500, "close")])
def test_closes__work__one_is_away_for_a_moment__is_waited_for(now: int, decision: str) -> None:
    away = replace(member(C), lost_at=UnixMillis(1), redo_at=UnixMillis(500))
    seen = view(member(A), member(B), away, done={A: "03", B: "14", C: "2"})

    assert RULES.closes(replace(seen, now=UnixMillis(now))) == decision


@pytest.mark.parametrize(("now", "decision"), [(1, "wait"), (10_000, "close")])
def test_closes__work__one_is_through_before_others_have_the_state__waits_for_a_quorum(
    now: int, decision: str
) -> None:
    """Else its claim alone would be asked for, and the round be void when its time is over."""
    newest = RoundNumber(1)
    seen = view(member(A, applied=newest), member(B), done={A: "01"}, newest=newest)

    assert RULES.closes(replace(seen, now=UnixMillis(now))) == decision


@pytest.mark.parametrize(
    ("delivered", "now", "decision"),
    [
        ((A,), 1, "wait"),
        ((A,), 10_000, "wait"),  # no quorum
        ((A, B), 1, "wait"),
        ((A, B), 10_000, "close"),
        ((A, B, C), 1, "close"),
    ],
)
def test_closes__commit__a_quorum_at_its_time_or_all(
    delivered: tuple[PeerId, ...], now: int, decision: str
) -> None:
    members = [member(A), member(B), member(C)]
    shape = RULES.layout(SPEC)
    claims = {who: claim_of(who, 0, [number], shape=shape) for number, who in enumerate((A, B, C))}
    seen = view(
        *members, done={A: "0", B: "1", C: "2"}, phase="commit", now=UnixMillis(now),
        claims={each.digest(): each for each in claims.values()},
        delivered={claims[who].digest() for who in delivered},
    )  # fmt: skip

    assert RULES.closes(seen) == decision


@pytest.mark.parametrize(("num_issued", "decision"), [(1, "close"), (6, "wait")])
def test_closes__one_owner_alone__is_merged_at_the_end_of_a_job_only(
    num_issued: int, decision: str
) -> None:
    claim = claim_of(A, 0, [0], shape=RULES.layout(SPEC))
    seen = view(
        member(A), member(B), done={A: "0"}, phase="commit", issued=frozenset({ItemNumber(0)}),
        claims={claim.digest(): claim}, delivered={claim.digest()}, num_issued=num_issued,
    )  # fmt: skip

    assert RULES.closes(seen) == decision


@pytest.mark.parametrize(
    ("done", "now", "decision"),
    [
        ({A: "01"}, 10_000, "wait"),  # nobody began from the newest state
        ({A: "01", B: "23"}, 1, "wait"),  # of one owner
        ({A: "01", B: "23", C: "45"}, 1, "close"),
    ],
)
def test_closes__work__late_claims_are_no_quorum(
    done: dict[PeerId, str], now: int, decision: str
) -> None:
    late = claim_of(A, 0, [0, 1], shape=RULES.layout(SPEC))
    seen = view(
        member(A), member(B), *([member(C)] if C in done else []), done=done, now=UnixMillis(now),
        claims={late.digest(): late}, late={late.digest()},
    )  # fmt: skip

    assert RULES.closes(seen) == decision


def test_closes__commit__does_not_wait_for_late_claims_and_counts_them_for_no_quorum() -> None:
    shape = RULES.layout(SPEC)
    claims = [claim_of(who, 0, [number], shape=shape) for number, who in enumerate((A, B, C))]
    names = [claim.digest() for claim in claims]
    seen = view(
        member(A), member(B), member(C), done={A: "0", B: "1", C: "2"}, phase="commit",
        claims=dict(zip(names, claims, strict=True)), late={names[0]}, delivered={*names[1:]},
    )  # fmt: skip

    assert RULES.closes(seen) == "close"
    assert RULES.closes(replace(seen, delivered={*names[:2]}, now=UnixMillis(10_000))) == "wait"
