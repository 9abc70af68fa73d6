"""One item's way through its stages: what is asked in which order, and what a loss costs."""

from dataclasses import replace

import pytest

from contracts.terms.errors import Malformed
from contracts.terms.ids import Digest, PeerId, StageIndex
from contracts.terms.items import ItemNumber
from contracts.terms.work import leaf_names
from tests.support.history import make_digest, make_session
from training.strategies.every_step.passes import (
    Call,
    Way,
    check_answer,
    holders_of,
    lost,
    next_call,
    with_answer,
)
from training.strategies.port import Result

ITEM = ItemNumber(3)
S0, S1, S2 = (StageIndex(stage) for stage in range(3))
WHOLE = Way(ITEM, 3)


def peer(name: str) -> PeerId:
    return make_session(name).peer


def answer(call: Call, *, made: str = "", who: str = "", groups: int = 3) -> Result:
    """What an honest peer answers; `made` tells its tensors from those of others."""
    names = leaf_names(call.group, groups, ITEM)
    wanted = (names.x, names.y) if call.direction in ("forward", "evaluate") else names.all
    own: dict[str, Digest] = {name: make_digest(name, *made) for name in wanted if name}
    own |= {names.rows: make_digest("rows")} if names.rows in own else {}
    is_last = call.group == groups - 1
    return Result(
        call.group,
        ITEM,
        peer(who or f"p{call.group}"),
        tuple(sorted((own | dict(call.inputs) | dict(call.used)).items())),
        5 if is_last else None,
    )


def step_on(way: Way, *, made: str = "", who: str = "") -> Way:
    """The next call, answered by the peer of its stage or by `who`."""
    call = next_call(way)
    assert call is not None
    passed = answer(call, made=made, who=who, groups=way.num_groups)
    check_answer(way, call, passed)
    return with_answer(way, call, passed)


def finished(way: Way, made: str = "") -> tuple[list[tuple[str, int]], Way]:
    """All calls to the end of the way, and the way there."""
    calls: list[tuple[str, int]] = []
    while (call := next_call(way)) is not None:
        calls.append((call.direction, call.group))
        way = step_on(way, made=made)
    return calls, way


def without(way: Way, *groups: StageIndex) -> Way:
    """Nothing is known of these stages any more."""
    done = {group: each for group, each in way.done.items() if group not in groups}
    return replace(way, done=done, forwards={})


def test_way__nothing_is_done__up_to_the_last_stage_and_down_again() -> None:
    calls, way = finished(WHOLE)

    assert calls == [
        ("forward", 0), ("forward", 1), ("whole", 2), ("backward", 1), ("backward", 0)
    ]  # fmt: skip
    tensors: dict[str, Digest] = {}
    for passed in way.done.values():
        for name, digest in passed.tensors:
            assert tensors.setdefault(name, digest) == digest


@pytest.mark.parametrize(
    ("opened", "calls"),
    [
        ([S0], [("backward", 0)]),
        ([S1], [("backward", 1)]),
        ([S2], [("whole", 2)]),
        ([S0, S1], [("forward", 0), ("backward", 1), ("backward", 0)]),
        ([S1, S2], [("forward", 1), ("whole", 2), ("backward", 1)]),
    ],
)
def test_way__stages_opened_again__only_they_work_and_say_what_neighbours_used(
    opened: list[StageIndex], calls: list[tuple[str, int]]
) -> None:
    _, way = finished(WHOLE)

    again, ended = finished(without(way, *opened), made="other")

    assert again == calls
    for group, passed in way.done.items():
        beside = [own for own in ended.done.values() if own is not passed]
        for name, digest in passed.tensors if group not in opened else ():
            assert all(own.tensor(name) in (None, digest) for own in beside)


def test_lost__output_of_a_forward_pass__is_made_again_and_what_was_made_of_it() -> None:
    way = step_on(step_on(WHOLE))
    name = leaf_names(S0, 3, ITEM).y
    digest = dict(way.forwards[S0].tensors)[name]
    assert holders_of(way, name, digest) == (peer("p0"), peer("p1"))

    again = lost(way, digest)

    assert again is not None
    assert finished(step_on(again, made="other"))[0][0] == ("forward", 1)
    assert finished(step_on(again))[0][0] == ("whole", 2), "the same bytes: the rest stands"


def test_lost__tensor_of_a_result_that_counts__cannot_be_made_again() -> None:
    _, way = finished(WHOLE)
    below = without(way, S0)
    call = next_call(below)
    assert call is not None

    assert lost(below, dict(call.inputs)[leaf_names(S0, 3, ITEM).dy]) is None


def test_check_answer__other_tensors_than_asked_for__is_refused() -> None:
    way = step_on(step_on(WHOLE))
    call = next_call(way)
    assert call is not None
    good = answer(call)
    name = leaf_names(S2, 3, ITEM).x
    bad = [
        replace(good, tensors=tuple(each for each in good.tensors if each[0] != name)),
        replace(good, tensors=(*good.tensors, ("z", make_digest("z")))),
        replace(good, loss=None),
    ]

    for passed in bad:
        with pytest.raises(Malformed):
            check_answer(way, call, passed)
