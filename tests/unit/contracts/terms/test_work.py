"""Claims and their leaves: which forms are refused, and under which names they stand."""

from typing import Any

import pytest

from contracts.terms.encoding import decode, encode
from contracts.terms.errors import Malformed
from contracts.terms.ids import ZERO_DIGEST, StageIndex
from contracts.terms.items import MAX_ITEMS, ItemNumber
from contracts.terms.kinds import decode_message
from contracts.terms.work import (
    MAX_SEQ,
    Findings,
    Leaf,
    RoundClosed,
    WorkClaim,
    findings_leaf,
    findings_of,
    leaf_names,
)

ONE, TWO, ZERO = b"1" * 32, b"2" * 32, bytes(32)
OUTPUT = {"bucket": 3, "digest": TWO, "norm_squared": 2**100}
WORK: dict[str, Any] = {
    "kind": "work_claim.v1", "job": ONE, "peer": ONE, "previous": ONE, "round": 5, "what": "work",
    "group": 1, "seq": 0, "attempt": 0, "base": ONE, "items": ((0, 2), (5, 6)), "subject": ZERO,
    "leaves": ONE, "outputs": (OUTPUT,), "reports": (ONE, TWO),
}  # fmt: skip
_NO_WORK = {"base": ZERO, "items": (), "leaves": ZERO, "reports": ()}
CLAIMS: dict[str, dict[str, Any]] = {
    "work": WORK,
    "bucket": WORK | _NO_WORK | {"what": "bucket", "subject": ONE},
    "report": WORK
    | _NO_WORK
    | {"what": "report", "previous": ZERO, "subject": ONE, "leaves": ONE, "outputs": ()},
    "state": WORK | _NO_WORK | {"what": "state", "base": ONE, "outputs": (OUTPUT | {"bucket": 0},)},
}
CLOSED: dict[str, Any] = {
    "kind": "round_closed.v2", "job": ONE, "round": 5, "bases": (ONE,),
    "claims": ((ONE, 4), (TWO, 0)), "reducers": (ONE,), "given": ((0, ((0, 2),)), (2, ((7, 8),))),
    "opened_at": 1, "commit_ends": 2, "closed_at": 3,
}  # fmt: skip


def claim(what: str, /, **changed: Any) -> WorkClaim:
    found = decode_message(encode(CLAIMS[what] | changed))
    assert isinstance(found, WorkClaim)
    return found


@pytest.mark.parametrize("value", [*CLAIMS.values(), CLOSED], ids=[*CLAIMS, "closed"])
def test_decode_message__claim_of_each_kind_or_round__comes_back(value: dict[str, Any]) -> None:
    message = decode_message(encode(value))

    assert decode_message(message.encoded()) == message


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("work", {"items": ()}),
        ("work", {"items": ((0, 2), (2, 3))}),
        ("work", {"items": ((0, MAX_ITEMS + 1),)}),
        ("work", {"base": ZERO}),
        ("work", {"previous": ZERO}),
        ("work", {"leaves": ZERO}),
        ("work", {"subject": ONE}),
        ("work", {"outputs": ()}),
        ("work", {"outputs": (OUTPUT, OUTPUT)}),
        ("work", {"reports": (TWO, ONE)}),
        ("work", {"reports": (ONE, ONE)}),
        ("work", {"seq": MAX_SEQ + 1}),
        ("work", {"attempt": 1}),
        ("bucket", {"items": ((0, 1),)}),
        ("bucket", {"outputs": (OUTPUT, OUTPUT | {"bucket": 4})}),
        ("bucket", {"subject": ZERO}),
        ("bucket", {"leaves": ONE}),
        ("bucket", {"seq": 1}),
        ("report", {"previous": ONE}),
        ("report", {"outputs": (OUTPUT,)}),
        ("report", {"leaves": ZERO}),
        ("report", {"reports": (ONE,)}),
        ("state", {"base": ZERO}),
        ("state", {"subject": ONE}),
        ("work", {"what": "other"}),
    ],
)
def test_work_claim__field_that_its_kind_does_not_have__is_malformed(
    what: str, change: dict[str, Any]
) -> None:
    with pytest.raises(Malformed):
        claim(what, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"claims": ((TWO, 1), (ONE, 1))},
        {"claims": ((ONE, 1), (ONE, 2))},
        {"claims": ()},
        {"given": ((2, ((0, 1),)), (0, ((0, 1),)))},
        {"bases": ()},
    ],
)
def test_round_closed__not_in_canonical_order__is_malformed(change: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        RoundClosed.from_value(CLOSED | change)


@pytest.mark.parametrize("name", ["", "x" * 33, "a b", "\u00e9"])
def test_leaf__name_of_another_form_or_order__is_malformed(name: str) -> None:
    value = {"item": 0, "base_round": 0, "given": False, "numbers": ()}

    Leaf.from_value(value | {"tensors": (("a", ONE), ("b", ONE))})
    for tensors in (((name, ONE),), (("b", ONE), ("a", ONE)), (("a", ONE), ("a", TWO))):
        with pytest.raises(Malformed):
            Leaf.from_value(value | {"tensors": tensors})


def test_leaf__tensor_that_it_does_not_name__is_zero() -> None:
    leaf = Leaf(item=ItemNumber(4), base_round=1, given=False, tensors=(("a", ONE),), numbers=())  # type: ignore[arg-type]  # bytes are a digest

    assert (leaf.tensor("a"), leaf.tensor("b")) == (ONE, ZERO_DIGEST)


def test_leaf_names__both_sides_of_a_boundary__call_a_tensor_alike() -> None:
    first, middle, last = (leaf_names(StageIndex(stage), 3, ItemNumber(7)) for stage in range(3))

    assert (middle.x, last.x) == (first.y, middle.y) == ("y/0/7", "y/1/7")
    assert (first.dy, middle.dy) == (middle.dx, last.dx) == ("dx/1/7", "dx/2/7")
    assert (first.rows, last.rows) == ("rows/0/7", "rows/2/7")
    assert (first.x, first.dx, last.y, last.dy, middle.rows) == ("", "", "", "", "")
    assert middle.all == ("dx/1/7", "dx/2/7", "y/0/7", "y/1/7")
    assert leaf_names(StageIndex(0), 1, ItemNumber(7)).all == ("rows/0/7",)


@pytest.mark.parametrize(
    "found",
    [Findings("match"), Findings("mismatch", (5, 0), (-3, 2**62)), Findings("missing", (), (1,))],
)
def test_findings__leaf_of_a_report__says_what_was_found(found: Findings) -> None:
    leaf = findings_leaf(found.verdict, found.distances, found.projections)

    assert findings_of([Leaf.from_value(decode(encode(leaf.value())))]) == found


@pytest.mark.parametrize(
    "change",
    [
        {"numbers": ()},
        {"numbers": (0,)},
        {"numbers": (3, 0)},
        {"numbers": (-1, 0)},
        {"numbers": (0, 2, 5)},
        {"numbers": (0, -1)},
        {"numbers": (0, 1, -5)},
        {"numbers": (0, 65, *range(65))},
        {"item": 1},
        {"given": True},
        {"tensors": (("a", ONE),)},
    ],
)
def test_findings_of__leaf_that_is_no_report__is_malformed(change: dict[str, Any]) -> None:
    leaf = findings_leaf("match", (1,), (2,)).model_copy(update=change)

    with pytest.raises(Malformed):
        findings_of([leaf])


def test_findings_of__not_one_leaf__is_malformed() -> None:
    for leaves in ([], [findings_leaf("match")] * 2):
        with pytest.raises(Malformed):
            findings_of(leaves)


def test_stated_name__of_each_kind__leaves_content_out() -> None:
    same: list[tuple[str, dict[str, Any]]] = [
        ("work", {"base": TWO, "items": ((9, 10),), "group": 2}),
        ("bucket", {"subject": TWO, "previous": TWO}),
        ("report", {"leaves": TWO, "round": 6}),
        ("state", {"base": TWO}),
    ]
    other: list[tuple[str, dict[str, Any]]] = [
        ("work", {"seq": 1}),
        ("work", {"round": 6}),
        ("work", {"peer": TWO}),
        ("bucket", {"outputs": (OUTPUT | {"bucket": 4},)}),
        ("bucket", {"group": 2}),
        ("report", {"subject": TWO}),
        ("report", {"attempt": 7}),
    ]

    for what, change in same:
        assert claim(what, **change).stated_name() == claim(what).stated_name()
    for what, change in other:
        assert claim(what, **change).stated_name() != claim(what).stated_name()
    assert len({claim(what).stated_name() for what in CLAIMS}) == len(CLAIMS)


def test_draw_name__content_of_a_claim__does_not_change_it() -> None:
    content: dict[str, Any] = {"base": TWO, "leaves": TWO, "reports": (), "previous": TWO}

    assert claim("work", **content).draw_name() == claim("work").draw_name()
    assert claim("bucket", subject=TWO).draw_name() == claim("bucket").draw_name()
    assert claim("report", leaves=TWO).draw_name() == claim("report").draw_name()
    for what, change in (
        ("work", {"seq": 2}),
        ("bucket", {"outputs": (OUTPUT | {"bucket": 4},)}),
        ("report", {"attempt": 7}),
    ):
        assert claim(what, **change).draw_name() != claim(what).draw_name()
    assert len({claim(what).draw_name() for what in CLAIMS}) == len(CLAIMS)
