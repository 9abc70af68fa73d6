"""States that come from others: newcomers, peers that differ, peers that end."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any
from unittest.mock import Mock

import pytest

from contracts.terms import errors
from contracts.terms.digest import blob_digest
from contracts.terms.history import kept_digest
from contracts.terms.ids import ZERO_DIGEST, Digest, StageIndex, StepNumber
from tests.support.fakes.counting import CountingState, CountingStrategy
from tests.support.lone_worker import seal_of, sealed_job, worker_of
from tests.support.swarm_job import COORDINATOR, Line, MemorySwarm, make_papers, patient_rules
from training.coordinator.handlers import Handlers
from training.strategies.port import RoundNumber
from training.transport import calls
from training.worker import files as served_files
from training.worker.engine import Engine
from training.worker.turns import Rank
from training.worker.work import Work

FIRST, NEVER = StageIndex(0), StepNumber(0)


def swarm_of(folder: Path, *names: str, **changed: Any) -> MemorySwarm:
    papers = make_papers(*names, **{"checkpoint_every": 2, "validate_every": 9} | changed)
    return MemorySwarm(papers, folder)


async def test_worker__killed_right_after_it_has_loaded__goes_on_from_there(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann", "eve", peers_per_stage=1, steps=6)
    swarm.late = {"eve": (COORDINATOR, "seal_stored", 4)}
    for step in (2, 4):
        swarm.deadly["eve", "state_loaded", step] = "eve"

    await swarm.run()

    assert swarm.restarts == 1
    assert len(swarm.lines("state_loaded", of="eve")) == 1
    assert [len(roots) for roots in swarm.state_roots()] == [1]
    assert [seal.step for seal in swarm.seals()] == [1, 2, 3, 4, 5, 6]


async def test_worker__killed_before_a_checkpoint_is_published__publishes_it_when_it_is_back(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(
        tmp_path, "ann", "bob", steps=10, checkpoint_every=2, publish_every=4, peers_per_stage=2
    )
    swarm.deadly["ann", "checkpoint_stored", 8] = "ann"

    await swarm.run()

    assert swarm.restarts == 1
    turns = {name: turn for name, _, turn in swarm.published}
    assert sorted(turns.values()) == [0, 1]
    assert sorted(swarm.published) == [
        (name, step, turns[name]) for name in ("ann", "bob") for step in (4, 8)
    ]


async def test_worker__lost_its_disk_and_a_bucket_is_gone_everywhere__loads_the_next_checkpoint(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, "ann", "eve", steps=8)
    swarm.deadly["eve", "seal_applied", 5] = "eve"

    def watch(name: str, line: Line) -> None:
        if (name, line["event"], line.get("step")) == ("eve", "seal_applied", 5):
            rmtree(tmp_path / "eve")
        if (name, line["event"], line.get("step")) == ("eve", "state_loaded", 4):
            rmtree(tmp_path / "ann" / "buckets" / "00000005")

    swarm.watch = watch
    await swarm.run()

    assert [line["step"] for line in swarm.lines("state_loaded", of="eve")] == [4, 6]
    assert [len(roots) for roots in swarm.state_roots()] == [1]


async def test_worker__session_ends_while_it_writes_its_last_checkpoint__ends_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, turns = 2, 1000  # of the loop: many more than a peer needs to end
    swarm = swarm_of(tmp_path, "ann", steps=last, rules=patient_rules(lease_grace=1))
    save, may_write, ended = CountingState.save, threading.Event(), list[asyncio.Task[None]]()

    def save_late(self: CountingState, folder: Path, round: RoundNumber) -> None:
        assert may_write.wait(60), "nobody lets it write"
        save(self, folder, round)

    async def end_its_session() -> None:
        sessions = swarm.parties[COORDINATOR].transport.sessions
        if (session := sessions.get(swarm.session_of("ann").key)) is not None:
            await session.close()  # its coordinator has not ended before
        for _ in range(turns):
            await asyncio.sleep(0)
        may_write.set()

    def watch(name: str, line: Line) -> None:
        if (name, line["event"], line.get("step")) == ("ann", "seal_applied", last):
            ended.append(asyncio.ensure_future(end_its_session()))

    monkeypatch.setattr(CountingState, "save", save_late)
    swarm.watch = watch
    await swarm.run()

    await asyncio.gather(*ended)
    told = [line["event"] for name, line in swarm.log if name == "ann"]
    assert told.index("checkpoint_stored") < told.index("finished")


async def test_worker__coordinator_answers_a_join_with_any_error__asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = swarm_of(tmp_path, "ann", steps=1)
    answers = [errors.WrongBytes("a lie"), errors.Refused("no"), errors.Overloaded("later")]
    join, left = Handlers.join, list[errors.TallystickError](answers)

    async def refuse_thrice(self: Handlers, *given: Any) -> Any:
        if left:
            raise left.pop(0)
        return await join(self, *given)

    monkeypatch.setattr(Handlers, "join", refuse_thrice)

    await swarm.run()

    assert {each.code for each in answers} <= {line["code"] for line in swarm.lines("waits")}
    assert (swarm.refused, len(swarm.seals())) == ({}, 1)


# ------------------------------------------------------------- one worker, and seals of a job


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> MemorySwarm:
    """A job of two stages that has ended."""
    folder = tmp_path_factory.mktemp("job")
    return sealed_job(folder, "ann", "bob", steps=5, checkpoint_every=2)


@asynccontextmanager
async def worker_again(swarm: MemorySwarm, folder: Path) -> AsyncIterator[tuple[Work, list[str]]]:
    """The first stage's worker again, alone, with the buckets of the job but no state."""
    told = list[str]()
    copytree(swarm.folder / "ann" / "buckets", folder / "buckets")
    async with worker_of(
        swarm.papers, "ann", folder, lambda event, **_: told.append(event)
    ) as work:
        await work.states.take_group(FIRST, NEVER)
        yield work, told


async def take(work: Work, swarm: MemorySwarm, *steps: int) -> list[Digest]:
    """Hand over seals, whole; the roots that are answered."""
    roots = []
    for step in steps:
        given = {kept_digest(item): item for item in seal_of(swarm, step)}
        taken = await work.states.take_seal([*given], given, StepNumber(step))
        assert taken is not None and taken[0] == step
        roots.append(taken[1])
    return roots


def spoil(patch: pytest.MonkeyPatch, *spoils: int | Exception) -> None:
    """Add one of these to what the third update comes to, each time that it is done."""
    apply, left = CountingStrategy.apply, [*spoils]

    def spoilt(self: CountingStrategy, *given: Any) -> CountingState:
        changed = apply(self, *given)
        if changed.counter == 3 and left:
            if isinstance(spoil := left.pop(0), Exception):
                raise spoil
            changed.weights[0] += spoil
        return changed

    patch.setattr(CountingStrategy, "apply", spoilt)


@pytest.mark.parametrize(
    ("spoils", "end"), [((1,), "state_rebuilt"), ((1, 1), "state_disputed")], ids=["once", "always"]
)
async def test_states__ours_differs_from_the_others__derived_again_from_sealed_bytes_and_kept(
    tmp_path: Path, sealed: MemorySwarm, monkeypatch: pytest.MonkeyPatch,
    spoils: tuple[int, ...], end: str,
) -> None:  # fmt: skip
    spoil(monkeypatch, *spoils)
    async with worker_again(sealed, tmp_path) as (work, told):
        spoilt = (await take(work, sealed, 1, 2, 3))[2]
        assert "state_differs" not in told

        await take(work, sealed, 4, 5)

        right = work.book.state_root(FIRST, StepNumber(3))
        assert spoilt != right
        assert work.book.roots[StepNumber(3)] == (right if end == "state_rebuilt" else spoilt)
        before = work.station.roots
        await work.states.resume()  # as after a restart
        assert (work.station.roots, work.station.applied) == (before, 5)
        assert [each for each in told if each in ("state_rebuilt", "state_disputed")] == [end]


@pytest.mark.parametrize(
    ("spoils", "why"),
    [((1, 2), "twice alike"), ((RuntimeError("out of memory"),), "out of memory")],
    ids=["never alike", "device fails"],
)
async def test_states__an_update_that_cannot_be_made__ends_instead_of_going_on_with_half_of_it(
    tmp_path: Path, sealed: MemorySwarm, monkeypatch: pytest.MonkeyPatch, spoils: Any, why: str
) -> None:
    spoil(monkeypatch, *spoils)
    async with worker_again(sealed, tmp_path) as (work, _):
        with pytest.raises(errors.InvariantBroken, match=why):
            await take(work, sealed, 1, 2, 3, 4)

        assert work.broken.done()


async def test_states__a_newcomer__stores_seals_and_answers_zero_until_it_can_load(
    tmp_path: Path, sealed: MemorySwarm
) -> None:
    async with worker_again(sealed, tmp_path) as (work, _):
        await work.states.take_group(FIRST, StepNumber(4))

        assert await take(work, sealed, 1, 2, 3) == [ZERO_DIGEST] * 3
        assert (work.book.sealed, work.station.applied) == (3, 0)
        with pytest.raises(errors.Unavailable, match="no member with a checkpoint of round 4"):
            await take(work, sealed, 4)
        assert work.book.sealed == 4


async def test_states__joins_again_while_a_segment_is_computed__does_not_wait_for_its_end(
    tmp_path: Path, sealed: MemorySwarm
) -> None:
    """Else the coordinator that was restarted would deal what it computes to others meanwhile."""
    async with worker_again(sealed, tmp_path) as (work, _):
        await work.states.take_group(FIRST, StepNumber(0))
        may_end = asyncio.Event()
        segment = asyncio.create_task(work.station.engine.at(Rank.STEP, may_end.wait))
        await asyncio.sleep(0)

        async with asyncio.timeout(10):
            await work.states.take_group(FIRST, StepNumber(0))

        may_end.set()
        await segment


async def test_states__a_newcomer_for_whom_nobody_has_a_bucket_any_more__joins_anew(
    tmp_path: Path, sealed: MemorySwarm
) -> None:
    async with worker_again(sealed, tmp_path) as (work, _):
        await take(work, sealed, 1)
        work.station.store.drop(["buckets"], lambda _: False)
        for joined_in, goes_on_from in ((2, 1), (4, 0)):
            await work.states.take_group(FIRST, NEVER, joined_in=StepNumber(joined_in))
            with pytest.raises(errors.Unavailable):
                await take(work, sealed, 2)
            assert work.states.outdated.is_set() == (joined_in == 4)
            assert work.states.goes_on_from == goes_on_from


async def test_states__mates_withhold_the_checkpoint__a_peer_that_is_outdated_stays_so(
    tmp_path: Path, sealed: MemorySwarm
) -> None:
    async with worker_again(sealed, tmp_path) as (work, _):
        await work.states.take_group(FIRST, StepNumber(4))
        await take(work, sealed, 1, 2, 3)
        work.states.outdated.set()

        with pytest.raises(errors.Unavailable, match="no member with a checkpoint of round 2"):
            await work.states.take_group(FIRST, StepNumber(2))

        assert work.states.outdated.is_set()


async def test_states__checkpoints__buckets_go_only_with_the_second_and_ranges_are_what_is_there(
    tmp_path: Path, sealed: MemorySwarm
) -> None:
    async with worker_again(sealed, tmp_path) as (work, _):

        def rounds() -> set[int]:
            return {int(path.name) for path in (tmp_path / "buckets").iterdir()}

        await take(work, sealed, 1, 2)
        assert 1 in rounds()  # who joins before all have this first one begins with no state
        served, file = work.station.served, work.states.file(FIRST, StepNumber(2))
        view = await served.view(file)
        half = view.num_bytes // 2
        pieces = [
            await served.range(file, start, end)
            for start, end in ((0, half), (half, view.num_bytes))
        ]
        assert blob_digest(b"".join(pieces)) == view.digest
        for group, round in ((1, 2), (0, 1)):
            with pytest.raises(errors.NotFound):
                await served.view(work.states.file(StageIndex(group), StepNumber(round)))

        await take(work, sealed, 3, 4)
        assert rounds() == {3, 4, 5}


async def test_states__member_is_measured_for_another_group__can_go_on_in_its_own(
    tmp_path: Path, sealed: MemorySwarm
) -> None:
    async with worker_again(sealed, tmp_path) as (work, _):
        await take(work, sealed, 1)

        await work.states.measure(StageIndex(1), 1)
        await work.states.take_group(FIRST, StepNumber(0))

        assert (work.station.seat, work.station.applied) == (0, 1)


async def test_served__a_file_of_several_ranges__is_named_as_a_whole_and_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, data, engine = tmp_path / "file", bytes(range(100)), Engine()
    file.write_bytes(data)
    view_of = Mock(wraps=served_files._view_of)
    monkeypatch.setattr(served_files, "RANGE", 30)
    monkeypatch.setattr(served_files, "_view_of", view_of)
    files = served_files.ServedFiles(engine)

    views = await asyncio.gather(*(files.view(file) for _ in range(5)))

    assert set(views) == {
        calls.FileView(digest=blob_digest(data), num_bytes=len(data), state_root=ZERO_DIGEST)
    }
    assert view_of.call_count == 1
    await engine.close()
