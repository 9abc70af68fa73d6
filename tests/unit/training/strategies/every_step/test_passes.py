"""One unit's way through its stages: what is asked in which order, and what a loss costs."""

from collections.abc import Mapping
from itertools import pairwise

import pytest

from contracts.terms.errors import Malformed
from contracts.terms.ids import ZERO_DIGEST, Digest, PeerId, StageIndex, UnitId
from contracts.terms.messages import UnitLeaf
from tests.support.history import make_digest, make_session
from training.strategies.every_step.passes import (
    AskBackward,
    AskForward,
    Call,
    Copies,
    Passed,
    Stretch,
    Way,
    check_answer,
    copies_of,
    lost,
    next_call,
    set_out,
    stretches_of,
    with_answer,
)
from training.swarm.state import Copy

UNIT = UnitId(3)
S0, S1, S2, S3 = (StageIndex(stage) for stage in range(4))
WHOLE = Stretch(UNIT, S0, S2)


def peer(name: str) -> PeerId:
    return make_session(name).peer


def copy(stage: int, **changed: Digest) -> Copy:
    """A copy in the middle of four stages, fitting its neighbours."""
    values = {
        "x": make_digest("y", stage - 1),
        "y": make_digest("y", stage),
        "dy": make_digest("dx", stage + 1),
        "dx": make_digest("dx", stage),
    } | changed
    return Copy(peer(f"p{stage}"), attempt=1, **values)


def answer(stretch: Stretch, call: Call, *, made: str = "") -> UnitLeaf:
    """What an honest peer answers; `made` tells its tensors from those of others."""
    is_first = call.stage == stretch.first and stretch.below is None
    is_last = stretch.ends_at(call.stage)
    backward = isinstance(call, AskBackward)
    y = make_digest("y", call.stage, *made)
    dx = make_digest("dx", call.stage, *made)
    dx = call.dx if call.dx != ZERO_DIGEST else dx
    if isinstance(call, AskBackward):
        y = call.y
    return UnitLeaf(
        unit=UNIT,
        x=call.x.digest if call.x else make_digest("rows"),
        y=ZERO_DIGEST if is_last else y,
        dy=call.dy.digest if isinstance(call, AskBackward) else ZERO_DIGEST,
        dx=dx if (backward or is_last) and not is_first else ZERO_DIGEST,
        loss=5 if is_last else None,
    )


def step_on(way: Way, *, who: str | None = None, made: str = "", attempt: int = 1) -> Way:
    """The next call, answered by the peer of its stage or by `who`."""
    call = next_call(way)
    assert call is not None
    computed = answer(way.stretch, call, made=made)
    check_answer(way.stretch, call, computed)
    return with_answer(way, call, Passed(peer(who or f"p{call.stage}"), attempt, computed))


def calls_of(way: Way) -> list[tuple[str, int]]:
    """All calls to the end of the way."""
    found = []
    while (call := next_call(way)) is not None:
        found.append((type(call).__name__, int(call.stage)))
        way = step_on(way)
    return found


def finished(way: Way) -> Way:
    while next_call(way) is not None:
        way = step_on(way)
    return way


def assert_links_hold(stretch: Stretch, copies: Copies) -> None:
    ends = [stretch.below] if stretch.below else []
    row = [*ends, *(each for _, each in copies), *([stretch.above] if stretch.above else [])]
    for lower, upper in pairwise(row):
        assert (lower.y, lower.dy) == (upper.x, upper.dx)


def test_way__whole_unit__goes_up_and_down_once() -> None:
    way = set_out(WHOLE)

    assert calls_of(way) == [
        ("AskForward", 0),
        ("AskForward", 1),
        ("AskForward", 2),
        ("AskBackward", 1),
        ("AskBackward", 0),
    ]
    copies = copies_of(finished(way))
    assert [stage for (stage, _), _ in copies] == [0, 1, 2]
    assert_links_hold(WHOLE, copies)


def test_way__one_stage_between_two_copies__is_one_backward_with_their_digests() -> None:
    stretch = Stretch(UNIT, S1, S1, below=copy(0), above=copy(2))

    call = next_call(set_out(stretch))

    assert isinstance(call, AskBackward)
    assert call.x is not None
    assert (call.x.digest, call.x.holders) == (copy(0).y, (peer("p0"),))
    assert (call.dy.digest, call.dy.holders) == (copy(2).dx, (peer("p2"),))
    assert (call.y, call.dx, call.sticky) == (copy(2).x, copy(0).dy, None)
    assert_links_hold(stretch, copies_of(finished(set_out(stretch))))


def test_way__last_stage_above_a_copy__carries_the_dx_that_was_really_used() -> None:
    # Whoever did it before sent another dx than honest work makes: the copy below is made of that.
    stretch = Stretch(UNIT, S2, S2, below=copy(1, dy=make_digest("junk")))
    way = set_out(stretch)

    call = next_call(way)

    assert isinstance(call, AskForward)
    assert call.dx == make_digest("junk")
    assert_links_hold(stretch, copies_of(finished(way)))
    with pytest.raises(Malformed):
        own = answer(stretch, call).model_copy(update={"dx": make_digest("dx", 2)})
        check_answer(stretch, call, own)


def test_way__two_stages_between_copies__only_the_lower_goes_forward() -> None:
    stretch = Stretch(UNIT, S1, S2, below=copy(0), above=copy(3))

    expected = [("AskForward", 1), ("AskBackward", 2), ("AskBackward", 1)]
    assert calls_of(set_out(stretch)) == expected
    assert_links_hold(stretch, copies_of(finished(set_out(stretch))))


def test_way__backward__goes_to_who_keeps_the_graph() -> None:
    way = set_out(WHOLE)
    for who in ("p0", "q1", "p2"):
        way = step_on(way, who=who, attempt=7)

    call = next_call(way)

    assert isinstance(call, AskBackward)
    assert call.sticky is not None
    assert (call.sticky.peer, call.sticky.attempt) == (peer("q1"), 7)


def test_way__tensor_read__reader_holds_it_too() -> None:
    way = step_on(step_on(set_out(WHOLE)), who="q1")

    call = next_call(lost_y(way, S1))

    assert isinstance(call, AskForward)
    assert call.x is not None
    assert call.x.holders == (peer("p0"), peer("q1"))


def lost_y(way: Way, stage: StageIndex) -> Way:
    again = lost(way, way.forwards[stage].leaf.y)
    assert again is not None
    return again


def test_lost__y_of_the_stage_below__is_made_again_and_the_rest_stands() -> None:
    way = step_on(step_on(step_on(set_out(WHOLE))))

    again = lost_y(way, S1)

    assert calls_of(again) == [("AskForward", 1), ("AskBackward", 1), ("AskBackward", 0)]


def test_lost__y_made_again_with_other_bytes__higher_stages_start_over() -> None:
    way = lost_y(step_on(step_on(step_on(set_out(WHOLE)))), S0)

    way = step_on(way, who="q0", made="!")

    assert calls_of(way)[:2] == [("AskForward", 1), ("AskForward", 2)]
    assert_links_hold(WHOLE, copies_of(finished(way)))


def test_lost__dx_of_the_last_stage__is_made_again_by_a_forward() -> None:
    way = step_on(step_on(step_on(set_out(WHOLE))))

    again = lost(way, way.backwards[S2].leaf.dx)

    assert again is not None
    assert calls_of(again) == [("AskForward", 2), ("AskBackward", 1), ("AskBackward", 0)]


@pytest.mark.parametrize("end", ["x", "dy"])
def test_lost__tensor_of_a_counted_copy__cannot_be_made_again(end: str) -> None:
    way = set_out(Stretch(UNIT, S1, S1, below=copy(0), above=copy(2)))
    missing = copy(0).y if end == "x" else copy(2).dx

    assert lost(way, missing) is None


@pytest.mark.parametrize(
    ("stage", "changed"),
    [
        (S0, {"y": ZERO_DIGEST}),
        (S0, {"loss": 3}),
        (S1, {"x": make_digest("another")}),
        (S2, {"loss": None}),
        (S2, {"dx": ZERO_DIGEST}),
        (S2, {"y": make_digest("y")}),
    ],
)
def test_check_answer__forward_that_does_not_fit__is_refused(
    stage: StageIndex, changed: Mapping[str, object]
) -> None:
    way = set_out(WHOLE)
    for _ in range(stage):
        way = step_on(way)
    call = next_call(way)
    assert call is not None
    honest = answer(WHOLE, call)

    check_answer(WHOLE, call, honest)
    with pytest.raises(Malformed):
        check_answer(WHOLE, call, honest.model_copy(update=dict(changed)))


@pytest.mark.parametrize("name", ["y", "dy", "dx"])
def test_check_answer__redo_with_another_digest__is_refused(name: str) -> None:
    stretch = Stretch(UNIT, S1, S1, below=copy(0), above=copy(2))
    call = next_call(set_out(stretch))
    assert call is not None
    honest = answer(stretch, call)

    with pytest.raises(Malformed):
        check_answer(stretch, call, honest.model_copy(update={name: make_digest("another")}))


def test_stretches_of__two_gaps__each_between_its_copies() -> None:
    copies = {S1: copy(1), S2: copy(2)}

    low, high = stretches_of(UNIT, frozenset({S0, S3}), copies)

    assert (low.first, low.last, low.below, low.above) == (S0, S0, None, copies[S1])
    assert (high.first, high.last, high.below, high.above) == (S3, S3, copies[S2], None)
    assert stretches_of(UNIT, frozenset({S0, S1}), {}) == (Stretch(UNIT, S0, S1),)
