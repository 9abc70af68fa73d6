"""Whole rounds of real workers that count, under a coordinator that a test leads by hand.

What is compared with is a `CountingStrategy` of the test's own, that has the whole model.
"""

import asyncio
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from contracts.governance.claims import SealedPay, decode_sealed_pay
from contracts.terms.digest import formed_digest, formed_tensor
from contracts.terms.errors import Equivocation
from contracts.terms.history import claim_leaves_root
from contracts.terms.ids import ChunkIndex, PeerId, StageIndex, StepNumber
from contracts.terms.items import ItemNumber, ranges_of
from contracts.terms.work import Leaf, WorkClaim
from tallystick.gym.around import Around, Computing
from tests.support.fakes.counting import CountingStrategy, rows_of
from tests.support.fakes.memory_source import MemorySource, at_once
from tests.support.history import JobMaker, Member, make_digest, make_members
from tests.support.scripted_rounds import ScriptedCoordinator, ScriptedJob
from training.strategies.port import Direction, Group, Items, RoundNumber, Source
from training.transport import calls
from training.worker.ports import Behaviour, Wanted
from training.worker.store import PAY_FILE, Store

ITEMS = tuple(map(ItemNumber, range(6)))
FIRST = StageIndex(0)


def job_of(folder: Path, *names: str, stages: int = 1, **changed: Any) -> ScriptedJob:
    """A job of these members, of two buckets a stage."""
    members = make_members(names, stages=stages)
    return ScriptedJob(JobMaker(members=members, spec_changes=changed), folder)


def issued(coordinator: ScriptedCoordinator) -> Sequence[ItemNumber]:
    """Items of the round."""
    return coordinator.maker.record.cursor.issue(coordinator.maker.spec.batch.units_per_step)


async def work_and_claim(coordinator: ScriptedCoordinator) -> None:
    """All issued items, dealt in turn, are claimed."""
    coordinator.deal_buckets()
    dealt = await coordinator.compute(*issued(coordinator))
    for member in coordinator.maker.members:
        await coordinator.claim(member, dealt[member.session.peer])


async def one_round(coordinator: ScriptedCoordinator) -> list[calls.SealTaken]:
    """A round from its first item to its seal."""
    await work_and_claim(coordinator)
    await coordinator.exchange()
    return await coordinator.seal()


async def outputs_of(job: ScriptedJob, items: Sequence[ItemNumber]) -> Any:
    """What one strategy claims of items of a job of one stage, in its initial state."""
    strategy, source = CountingStrategy(job.maker.spec, at_once), MemorySource(rows_of)
    strategy.start(strategy.first_state(Group(0)), RoundNumber(1))
    for item in items:
        await strategy.run(item, "whole", source)
    return tuple(output for output, _ in strategy.commit(Items(items)).shards)


async def leaf_of(job: ScriptedJob, item: ItemNumber) -> Leaf:
    """What one strategy says of an item alone, in its initial state."""
    strategy, source = CountingStrategy(job.maker.spec, at_once), MemorySource(rows_of)
    strategy.start(strategy.first_state(Group(0)), RoundNumber(1))
    leaf = await strategy.run(item, "whole", source)
    assert leaf is not None
    return leaf


# ------------------------------------------------------------------------------------- whole rounds


async def test_rounds__a_shard_that_its_reducer_would_hold_alone__another_is_asked_to_hold_it(
    tmp_path: Path,
) -> None:
    job = job_of(tmp_path, "ann", "bob")
    ann, bob = (member.session.peer for member in job.maker.members)

    async with job.running() as coordinator:
        await work_and_claim(coordinator)
        alone = claimed(coordinator, ann).outputs[0].digest  # of ann's own bucket
        coordinator.holds[bob] = {alone}
        coordinator.changes.mark()
        await coordinator.until(lambda: alone in coordinator.held[bob])


def claimed(coordinator: ScriptedCoordinator, peer: PeerId) -> WorkClaim:
    """The first claim of a peer in the round."""
    return coordinator.claims[peer][0][0].message


# ------------------------------------------------------------------------------------------- claims


async def test_claim__other_items_than_are_in_the_gradient__it_is_built_again(
    tmp_path: Path,
) -> None:
    job = job_of(tmp_path, "ann")
    (ann,) = job.maker.members

    async with job.running() as coordinator:
        await coordinator.compute(*ITEMS[:4])
        first = await coordinator.claim(ann, ITEMS[0:4:2])
        second = await coordinator.claim(ann, ITEMS[1:4:2])
        again = await coordinator.claim(ann, ITEMS[0:4:2])

    assert isinstance(first, WorkClaim) and isinstance(second, WorkClaim)
    assert (first.seq, first.numbers, second.seq, second.numbers) == (0, (0, 2), 1, (1, 3))
    assert first.outputs == await outputs_of(job, ITEMS[0:4:2])
    assert second.outputs == await outputs_of(job, ITEMS[1:4:2])
    assert again == first


class OnePath(Around):
    """Where an item goes on from the ones before it, and its leaf says so."""

    async def run(self, item: ItemNumber, direction: Direction, source: Source) -> Leaf | None:
        """See `Strategy.run`."""
        inner: Any = self._inner
        before = len(inner.items)
        leaf: Leaf = await inner.run(item, direction, source)
        return leaf.model_copy(update={"numbers": (leaf.numbers[0] + before,)})


async def test_claim__item_that_came_after_one_that_is_not_claimed__is_lacking_not_told_falsely(
    tmp_path: Path,
) -> None:
    """Its leaf is of a path that the claim's difference does not take: a replay would convict."""
    job = job_of(tmp_path, "ann")
    (ann,) = job.maker.members
    job.behaviours[ann.session.peer.hex()] = Computing(OnePath)

    async with job.running() as coordinator:
        await coordinator.compute(*ITEMS[:2])
        assert await coordinator.claim(ann, ITEMS[1:2]) == ranges_of(ITEMS[1:2])
        await coordinator.compute(ITEMS[1])  # from the base this time
        claim = await coordinator.claim(ann, ITEMS[1:2])

    assert isinstance(claim, WorkClaim) and claim.outputs == await outputs_of(job, ITEMS[1:2])
    assert claim.leaves == claim_leaves_root([await leaf_of(job, ITEMS[1])])


async def test_claim__computed_in_another_order__has_the_bytes_of_ascending_items(
    tmp_path: Path,
) -> None:
    job = job_of(tmp_path, "ann")
    (ann,) = job.maker.members

    async with job.running() as coordinator:
        await coordinator.compute(ITEMS[2], ITEMS[0], ITEMS[1])
        claim = await coordinator.claim(ann, ITEMS[:3])

    assert isinstance(claim, WorkClaim)
    assert claim.outputs == await outputs_of(job, ITEMS[:3])
    assert job.events("gradient_dropped")


async def test_claim__an_item_that_others_used_as_somebody_gone_had_made_it__is_given(
    tmp_path: Path,
) -> None:
    job = job_of(tmp_path, "ann", "bob", stages=2)
    ann, bob = job.maker.members
    item, theirs = ITEMS[0], make_digest("made by a peer that is gone")

    async with job.running() as coordinator:
        y = dict((await coordinator.done(ann, coordinator.task("forward", item, {}))).tensors)
        name = "y/0/0"
        task = coordinator.task("whole", item, {name: (y[name], ann.session.peer)})
        dx = dict((await coordinator.done(bob, task)).tensors)["dx/1/0"]
        back = coordinator.task(
            "backward", item, {"dx/1/0": (dx, bob.session.peer)}, used={name: theirs}
        )
        result = await coordinator.done(ann, back)
        lacked = await coordinator.claim(ann, [item])
        claim = await coordinator.claim(ann, [item], given=[item])
        _, leaves = coordinator.claims[ann.session.peer][0]

    assert result.given and dict(result.tensors)[name] == theirs
    assert lacked == ((0, 1),)
    assert isinstance(claim, WorkClaim)
    assert leaves[0].given and leaves[0].tensor(name) == theirs


# -------------------------------------------------------------------------------------------- items


async def test_items__a_new_session__begins_with_all_that_no_claim_covers(tmp_path: Path) -> None:
    job = job_of(tmp_path, "ann")
    (ann,) = job.maker.members

    async with job.running() as coordinator:
        await coordinator.compute(*ITEMS[:3])
        await coordinator.claim(ann, ITEMS[:1])
        coordinator.results.clear()
        coordinator.joined.clear()
        coordinator.known.clear()
        await coordinator.transport.sessions[ann.session.key].close()
        await coordinator.until(lambda: len(coordinator.results) == 2)

    assert {name.item for _, name in coordinator.results} == {1, 2}


async def test_items__an_input_that_nobody_has__is_named_as_lacking(tmp_path: Path) -> None:
    job = job_of(tmp_path, "ann", "bob", stages=2)
    ann, bob = job.maker.members
    nothing = make_digest("nothing")

    async with job.running() as coordinator:
        task = coordinator.task("whole", ITEMS[0], {"y/0/0": (nothing, ann.session.peer)})
        failure = await coordinator.outcome(bob, task)

    assert isinstance(failure, calls.Failure)
    assert (failure.code, failure.lacks) == ("not_found", nothing)


async def test_items__one_that_no_seal_could_cover__is_not_computed(tmp_path: Path) -> None:
    job = job_of(tmp_path, "ann")
    (ann,) = job.maker.members

    async with job.running() as coordinator:
        await one_round(coordinator)
        outcomes = [
            await coordinator.outcome(ann, coordinator.task("whole", ItemNumber(item), {}))
            for item in (0, 2**17)
        ]

    assert [getattr(each, "code", None) for each in outcomes] == ["conflict", "conflict"]


@pytest.mark.parametrize(("is_named_right", "code"), [(True, "not_finite"), (False, "not_found")])
async def test_items__an_input_that_nobody_can_use__is_blamed_and_costs_no_other_item(
    tmp_path: Path, is_named_right: bool, code: str
) -> None:
    job = job_of(tmp_path, "ann", "bob", stages=2)
    ann, bob = job.maker.members
    junk = formed_tensor("float32", (1, 1, 5), struct.pack("<5f", 1, 2, float("inf"), 4, 5))
    digest = formed_digest(junk) if is_named_right else make_digest("other bytes")
    Store(job.folder_of(ann)).put("tensors", StepNumber(1), digest, junk)

    async with job.running() as coordinator:
        await coordinator.compute(ITEMS[0])
        task = coordinator.task("whole", ITEMS[1], {"y/0/1": (digest, ann.session.peer)})
        failure = await coordinator.outcome(bob, task)
        claim = await coordinator.claim(bob, ITEMS[:1])

    assert isinstance(failure, calls.Failure)
    assert (failure.code, failure.lacks) == (code, digest)
    assert isinstance(claim, WorkClaim)
    kept = [path.stem for path in job.folder_of(bob).glob("tensors/*/*.bin")]
    assert (digest.hex() in kept) == is_named_right


class Stalled(Behaviour):
    """Gives nothing of the open round, and says nothing."""

    async def serves(self, wanted: Wanted) -> bool:
        """Never."""
        await asyncio.get_running_loop().create_future()
        return False


async def test_items__dropped_before_it_has_begun__is_held_no_more_and_no_failure(
    tmp_path: Path,
) -> None:
    job = job_of(tmp_path, "ann", "bob", stages=2)
    ann, bob = job.maker.members
    job.behaviours[ann.session.peer.hex()] = Stalled()

    async with job.running() as coordinator:
        y = dict((await coordinator.done(ann, coordinator.task("forward", ITEMS[0], {}))).tensors)
        task = coordinator.task("whole", ITEMS[0], {"y/0/0": (y["y/0/0"], ann.session.peer)})
        coordinator.deal(bob, task)
        peer = bob.session.peer
        await coordinator.until(lambda: bool(coordinator.holding[peer]))
        coordinator.drops[peer] = [*coordinator.holding[peer]]
        coordinator.changes.mark()
        await coordinator.until(lambda: not coordinator.holding[peer])

    assert not coordinator.failures


# ----------------------------------------------------------------------------------------- exchange


async def test_exchange__a_claim_of_round_closed_was_not_shown__nothing_is_reduced_without_it(
    tmp_path: Path,
) -> None:
    """Else a coordinator could have an honest reducer sign a false mean."""
    job = job_of(tmp_path, "ann", "bob")

    async with job.running() as coordinator:
        await work_and_claim(coordinator)
        closed = coordinator.signed_closed()
        hidden = coordinator.told.pop()  # bob's claim; ann has heard of it only if she was quick
        coordinator.told.append(hidden[::-1])
        coordinator.tell(closed)
        reducing = asyncio.ensure_future(coordinator.reduce(closed, FIRST, ChunkIndex(0)))
        await coordinator.until(lambda: len(job.events("round_closed")) == 2)
        coordinator.told.append(hidden)
        coordinator.changes.mark()
        bucket = (await reducing).message

    assert bucket.subject == closed.message.digest()


async def test_exchange__two_round_closed__the_second_is_an_equivocation(tmp_path: Path) -> None:
    job = job_of(tmp_path, "ann", "bob")

    async with job.running() as coordinator:
        await work_and_claim(coordinator)
        first = coordinator.signed_closed()
        second = coordinator.signed_closed(closed_at=first.message.closed_at + 1)
        bucket = await coordinator.reduce(first, FIRST, ChunkIndex(0))
        with pytest.raises(Equivocation):
            await coordinator.reduce(second, FIRST, ChunkIndex(0))
        again = await coordinator.reduce(first, FIRST, ChunkIndex(0))

    assert again == bucket


# -------------------------------------------------------------------------------------------- seals


async def test_seals__worked_and_nothing_of_it_was_sealed__the_agent_reads_how_often(
    tmp_path: Path,
) -> None:
    job = job_of(tmp_path, "ann", "bob")
    ann, _ = job.maker.members

    def left_out(member: Member) -> int:
        paid: SealedPay = decode_sealed_pay((job.folder_of(member) / PAY_FILE).read_bytes())
        return paid.left_out

    async with job.running() as coordinator:
        await coordinator.done(ann, coordinator.task("whole", ITEMS[0], {}))
        coordinator.keep_beginning()
        await coordinator.seal()
        assert [left_out(each) for each in job.maker.members] == [1, 0]
        await one_round(coordinator)
        assert [left_out(each) for each in job.maker.members] == [0, 0]
