"""Passes through stages: what is computed, answered again, replaced, subtracted and refused."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.digest import tensor_digest
from contracts.terms.errors import Conflict, NotFound, Unavailable, WrongBytes
from contracts.terms.ids import ZERO_DIGEST, Digest, StepNumber, UnitId
from contracts.terms.messages import UnitLeaf
from tests.support.fakes.counting import CountingCompute
from tests.support.pipeline import UNIT, Pipeline, pipeline
from training.averaging.slices import Slice
from training.transport import calls
from training.worker.ports import Passed
from training.worker.tensors import Kept

OTHER = UnitId(1)


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Pipeline]:
    """A worker in each of three stages, a second one in the middle, and odd ones at the ends.

    Those have other weights than their mates, so they send other tensors for the same unit.
    """
    names = ("ann0", "odd0", "ann1", "bob1", "ann2", "odd2")
    async with pipeline(tmp_path, *names, peers_per_stage=1) as found:
        for name in ("odd0", "odd2"):
            compute = found.works[name].station.compute
            assert isinstance(compute, CountingCompute)
            compute.weights[0] += 5
        yield found


async def evaluate(swarm: Pipeline, name: str, x: calls.Held | None) -> UnitLeaf:
    asked = calls.Task(direction="evaluate", step=1, unit=UNIT, attempt=0, x=x)
    return await swarm.works[name].units.evaluate(asked)


def gradient(swarm: Pipeline, name: str) -> tuple[Slice, ...]:
    return swarm.works[name].station.compute.gradient()


def in_gradient(swarm: Pipeline, name: str) -> tuple[UnitId, ...]:
    return swarm.works[name].station.compute.units


async def test_units__the_same_question_again__the_same_answer_and_nothing_computed(
    three: Pipeline,
) -> None:
    once = await three.through("ann0", "ann1", "ann2")

    again = await three.through("ann0", "ann1", "ann2", attempt=5)

    assert again == once
    assert len(three.told("unit_done")) == 3


async def test_units__forward_twice_at_once__computed_once(three: Pipeline) -> None:
    answers = await asyncio.gather(three.forward("ann0"), three.forward("ann0"))

    assert answers[0] == answers[1]
    assert len(three.told("unit_forward")) == 1


async def test_units__forward_ran_elsewhere__backward_repeats_it_from_x(three: Pipeline) -> None:
    first, middle, last = await three.through("ann0", "ann1", "ann2")

    redone = await three.backward(
        "bob1",
        three.held(first.y, "ann0", "ann1"),
        three.held(last.dx, "ann2"),
        y=last.x,
        dx=first.dy,
    )

    assert redone == middle


async def test_units__neighbours_used_other_tensors__leaf_carries_theirs(three: Pipeline) -> None:
    first, _, last = await three.through("ann0", "ann1", "ann2")
    theirs = Digest(three.peer("ann0"))  # any 32 bytes that are no digest of ours

    redone = await three.backward(
        "bob1", three.held(first.y, "ann0"), three.held(last.dx, "ann2"), y=theirs, dx=first.dy
    )

    assert (redone.y, redone.dx) == (theirs, first.dy)
    assert [line["tensors"] for line in three.told("redo_differs")] == ["y"]


async def test_redo__of_the_last_stage__carries_the_dx_that_was_used_and_tells_the_difference(
    three: Pipeline,
) -> None:
    _, middle, last = await three.through("ann0", "ann1", "odd2")
    x = three.held(middle.y, "ann1")

    redone = [await three.forward("ann2", x, dx=last.dx) for _ in range(2)]

    assert [(each.x, each.dx) for each in redone] == [(middle.y, last.dx)] * 2
    assert [line["tensors"] for line in three.told("redo_differs")] == ["dx"]


async def test_units__the_receiver_has_it_too__serves_when_the_sender_is_gone(
    three: Pipeline,
) -> None:
    first, middle, last = await three.through("ann0", "ann1", "ann2")
    await three.transports["ann0"].close()

    redone = await three.backward(
        "bob1", three.held(first.y, "ann0", "ann1"), three.held(last.dx, "ann2")
    )

    assert redone == middle


async def test_units__another_dy_comes__subtracted_and_counted_if_the_attempt_is_higher(
    three: Pipeline,
) -> None:
    _, middle, _ = await three.through("ann0", "ann1", "ann2")
    x = three.held(middle.x, "ann0")
    other = await three.forward("odd2", three.held(middle.y, "ann1"))
    dy, before = three.held(other.dx, "odd2"), gradient(three, "ann1")

    with pytest.raises(Conflict, match="attempt 0"):
        await three.backward("ann1", x, dy, attempt=0)
    assert gradient(three, "ann1") == before
    replaced = await three.backward("ann1", x, dy, attempt=1)

    assert (replaced.x, replaced.y, replaced.dy) == (middle.x, middle.y, other.dx)
    fresh = await three.backward("bob1", x, dy)
    assert fresh == replaced
    assert gradient(three, "ann1") == gradient(three, "bob1") != before


async def test_units__another_x_comes__the_older_copy_is_subtracted(three: Pipeline) -> None:
    _, middle, last = await three.through("ann0", "ann1", "ann2")
    other = await three.forward("odd0")
    x, before = three.held(other.y, "odd0"), gradient(three, "ann1")

    with pytest.raises(Conflict):
        await three.forward("ann1", x, attempt=0)
    assert gradient(three, "ann1") == before
    replaced = await three.forward("ann1", x, attempt=1)

    assert replaced.x == other.y != middle.x
    assert in_gradient(three, "ann1") == ()
    with pytest.raises(Conflict):  # the older copy, asked for once more by somebody slow
        await three.backward("ann1", three.held(middle.x, "ann0"), three.held(last.dx, "ann2"))


async def test_units__backward_with_another_x_than_the_kept_graph__uses_the_x_it_names(
    three: Pipeline,
) -> None:
    first, other = await three.forward("ann0"), await three.forward("odd0")
    middle = await three.forward("ann1", three.held(first.y, "ann0"))
    last = await three.forward("ann2", three.held(middle.y, "ann1"))
    x, dy = three.held(other.y, "odd0"), three.held(last.dx, "ann2")

    done = await three.backward("ann1", x, dy, attempt=1)

    assert done == await three.backward("bob1", x, dy)
    assert done.y != middle.y


async def test_units__nobody_has_x__not_found_with_its_digest(three: Pipeline) -> None:
    missing = three.held(ZERO_DIGEST, "ann0", "odd0")

    with pytest.raises(NotFound) as caught:
        await three.forward("ann1", missing)

    assert caught.value.data["digest"] == ZERO_DIGEST.hex()


async def test_units__a_holder_is_not_reached__unavailable(three: Pipeline) -> None:
    first = await three.forward("ann0")
    await three.transports["ann0"].close()

    with pytest.raises(Unavailable):
        await three.forward("ann1", three.held(first.y, "ann0", "odd0"))


@pytest.mark.parametrize("wrong", ["unit", "kind"])
async def test_units__tensor_of_another_unit_or_kind__is_not_taken(
    three: Pipeline, wrong: str
) -> None:
    first, _, last = await three.through("ann0", "ann1", "ann2")

    with pytest.raises(NotFound):
        if wrong == "unit":
            await three.forward("bob1", three.held(first.y, "ann0"), unit=OTHER)
        else:
            await three.forward("bob1", three.held(last.dx, "ann2"))

    assert {line["code"] for line in three.told("not_fetched")} == {"malformed"}


async def test_tensors__wrong_bytes_on_disk__are_not_handed_out(three: Pipeline) -> None:
    first = await three.forward("ann0")
    (path,) = three.works["ann0"].station.folder.glob(f"tensors/*/{first.y.hex()}.bin")
    path.write_bytes(path.read_bytes()[::-1])

    with pytest.raises(NotFound):
        await three.forward("ann1", three.held(first.y, "ann0"))


async def test_tensors__a_process_before_has_signed__no_second_value_under_the_name(
    three: Pipeline,
) -> None:
    first, other = await three.forward("ann0"), await three.forward("odd0")
    await three.forward("ann1", three.held(first.y, "ann0"), attempt=3)
    await three.works["ann1"].states.resume()  # as a new process would: no copy is known

    with pytest.raises(Conflict, match="attempt 3 had another y"):
        await three.forward("ann1", three.held(other.y, "odd0"), attempt=3)

    assert in_gradient(three, "ann1") == ()
    assert (await three.forward("ann1", three.held(other.y, "odd0"), attempt=4)).x == other.y


# ------------------------------------------------------------------------------------- commits


async def test_commit__units_of_others_are_in_the_gradient__are_subtracted(
    three: Pipeline,
) -> None:
    for unit in (UNIT, OTHER):
        await three.through("ann0", "ann1", "ann2", unit=unit)
    (_, middle, _) = await three.through("ann0", "bob1", "ann2")
    both = gradient(three, "ann1")

    committed = await three.works["ann1"].commits.commit(three.close(ann1=(0,), bob1=(1,)))

    assert isinstance(committed, list)
    (own,) = committed
    assert own.leaves.leaves == (middle,)
    parts = [part.digest for part in own.signed.message.parts]
    assert parts == [piece.digest for piece in gradient(three, "bob1")]
    assert parts != [piece.digest for piece in both]


async def test_commit__a_unit_is_not_complete__is_lacked_and_nothing_is_bound(
    three: Pipeline,
) -> None:
    await three.through("ann0", "ann1", "ann2")
    await three.forward("ann0", unit=OTHER)

    answer = await three.works["ann0"].commits.commit(three.close(ann0=(0, 1)))

    assert answer == (OTHER,)
    assert three.works["ann0"].book.commits == []


async def test_commit__revision_gives_back_a_subtracted_unit__counted_again_in_a_second_round(
    three: Pipeline,
) -> None:
    leaves = [(await three.through("ann0", "ann1", "ann2", unit=unit))[1] for unit in (UNIT, OTHER)]
    commits = three.works["ann1"].commits
    await commits.commit(three.close(ann1=(0,), bob1=(1,)))

    committed = await commits.commit(three.close(revision=1, ann1=(0, 1)))

    assert isinstance(committed, list)
    assert [own.signed.message.round for own in committed] == [0, 1]
    assert [own.leaves.leaves for own in committed] == [(leaf,) for leaf in leaves]
    await three.through("ann0", "bob1", "ann2", unit=OTHER)
    alone = [piece.digest for piece in gradient(three, "bob1")]
    assert [part.digest for part in committed[1].signed.message.parts] == alone


async def test_commit__tensor_of_a_unit_is_lost__the_unit_is_lacked(three: Pipeline) -> None:
    _, middle, _ = await three.through("ann0", "ann1", "ann2")
    station = three.works["ann1"].station
    station.compute.begin_step()  # as after a tensor that was not finite
    (path,) = station.folder.glob(f"tensors/*/{middle.dy.hex()}.bin")
    path.unlink()

    answer = await three.works["ann1"].commits.commit(three.close(ann1=(0,)))

    assert answer == (UNIT,)
    assert three.works["ann1"].held() == ()


async def test_commit__bound_unit_is_asked_for_with_another_x__conflict(three: Pipeline) -> None:
    await three.through("ann0", "ann1", "ann2")
    other = await three.forward("odd0")
    await three.works["ann1"].commits.commit(three.close(ann1=(0,)))

    with pytest.raises(Conflict, match="committed"):
        await three.forward("ann1", three.held(other.y, "odd0"), attempt=9)


# ------------------------------------------------------------------------------ neighbours that lie


async def test_units__dy_of_another_shape_than_our_y__is_refused_before_it_is_computed_with(
    three: Pipeline,
) -> None:
    _, middle, last = await three.through("ann0", "ann1", "ann2")
    first = await three.forward("ann0", unit=OTHER)
    await three.forward("ann1", three.held(first.y, "ann0"), unit=OTHER)
    dy, before = await lying_dy(three, last.dx, unit=OTHER), gradient(three, "ann1")

    with pytest.raises(WrongBytes, match="dy is not of the shape") as caught:
        await three.backward("ann1", three.held(first.y, "ann0"), dy, unit=OTHER)

    assert caught.value.data["digest"] == dy.digest.hex(), "so that it is made again"
    assert gradient(three, "ann1") == before
    assert middle.dy == last.dx


async def lying_dy(swarm: Pipeline, honest: Digest, *, unit: UnitId = UNIT) -> calls.Held:
    """The bytes of a dy of the last stage, signed once more as of another shape, and unit."""
    kept = swarm.works["ann2"].station.tensors.get(StepNumber(1), honest)
    shape = (*kept.header.message.shape, 1)
    name = tensor_digest("float32", shape, kept.data)
    lie = kept.header.message.model_copy(
        update={"shape": shape, "tensor_digest": name, "unit": unit, "attempt": 9}
    )
    signed = swarm.papers.members["ann2"].session.sign(lie)
    swarm.works["ann2"].station.tensors.put(Kept(signed, kept.data))
    return swarm.held(name, "ann2")


async def test_units__device_fails_in_the_middle_of_a_pass__nothing_of_it_is_in_the_gradient(
    three: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three.through("ann0", "ann1", "ann2")
    compute = three.works["ann2"].station.compute
    assert isinstance(compute, CountingCompute)
    alone = gradient(three, "ann2")
    backward = compute.backward

    def half(*given: Any) -> Passed:
        backward(*given)
        compute._units.remove(OTHER)  # the sums have it, the list of units does not
        raise RuntimeError("out of memory")

    middle = await forward_to_the_last(three, OTHER)
    monkeypatch.setattr(compute, "backward", half)
    with pytest.raises(Unavailable, match="broke off"):
        await three.forward("ann2", three.held(middle.y, "ann1"), unit=OTHER)
    monkeypatch.undo()
    committed = await three.works["ann2"].commits.commit(three.close(ann2=(0,)))

    assert isinstance(committed, list)
    (own,) = committed
    parts = [part.digest for part in own.signed.message.parts]
    assert parts == [piece.digest for piece in alone]


async def forward_to_the_last(swarm: Pipeline, unit: UnitId) -> UnitLeaf:
    """A unit's forward passes through the first two stages; the leaf of the second."""
    first = await swarm.forward("ann0", unit=unit)
    return await swarm.forward("ann1", swarm.held(first.y, "ann0"), unit=unit)


async def test_units__validation_under_a_name_of_training__no_second_value(
    three: Pipeline,
) -> None:
    (first, *_) = await three.through("ann0", "ann1", "ann2", attempt=0)
    station = three.works["ann0"].station
    station.tensors.drop(StepNumber(1))
    await station.note_state(StepNumber(1))
    compute = station.compute
    assert isinstance(compute, CountingCompute)
    compute.weights[0] += 1  # the update of that step

    with pytest.raises(Conflict, match="attempt 0 had another y"):
        await evaluate(three, "ann0", None)

    assert first.y != ZERO_DIGEST
