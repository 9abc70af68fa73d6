"""States that come from others: newcomers, peers that differ, peers that leave."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from typing_extensions import Buffer

from contracts.governance.claims import decode_sealed_pay
from contracts.terms import errors
from contracts.terms.digest import blob_digest
from contracts.terms.history import Kept
from contracts.terms.ids import ZERO_DIGEST, ChunkIndex, StageIndex, StepNumber, UnitId
from contracts.terms.messages import Seal
from contracts.terms.signatures import Signed
from tests.support.fakes.counting import CountingCompute
from tests.support.pipeline import worker_of
from tests.support.swarm_job import COORDINATOR, Line, MemorySwarm, make_papers, patient_rules
from training.coordinator.answers import Answers as CoordinatorAnswers
from training.transport import calls
from training.worker import served
from training.worker.store import PAY_FILE, Store
from training.worker.work import Work

STEPS, STAGES = 8, 2
NAMES = ("ann", "bob", "cem", "dan")


def swarm_of(folder: Path, *names: str, **changed: Any) -> MemorySwarm:
    papers = make_papers(
        *names,
        **{
            "stages": STAGES,
            "peers_per_stage": 2,
            "steps": STEPS,
            "units_per_step": 6,
            "chunks": 2,
            "checkpoint_every": 2,
            "validate_every": 8,
        }
        | changed,
    )
    return MemorySwarm(papers, folder)


def assert_all_equal(swarm: MemorySwarm) -> None:
    """Each stage ended in one state, and every step was sealed with an update."""
    roots: dict[int, set[bytes]] = {}
    for compute in swarm.computes.values():
        assert isinstance(compute, CountingCompute)
        roots.setdefault(compute.stage, set()).add(compute.roots().weights)
        assert compute.counter == STEPS
    assert [len(roots[stage]) for stage in range(STAGES)] == [1] * STAGES
    assert [seal.step for seal in swarm.seals()] == list(range(1, STEPS + 1))


async def test_worker__killed_right_after_it_has_loaded__goes_on_from_there(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(tmp_path, *NAMES, "eve")
    swarm.late = {"eve": (COORDINATOR, "seal_stored", 4)}
    for step in (2, 4):
        swarm.deadly["eve", "state_loaded", step] = "eve"

    await swarm.run()

    assert swarm.restarts == 1
    assert len(swarm.lines("state_loaded", of="eve")) == 1
    assert_all_equal(swarm)


async def test_worker__session_ends_while_it_writes_its_last_checkpoint__ends_when_it_is_there(
    tmp_path: Path,
) -> None:
    may_write = threading.Event()

    class Slow(CountingCompute):
        def save(self, folder: Path, step: StepNumber) -> None:
            """See `Compute.save`."""
            assert step < last or may_write.wait(60), "nobody lets it write"
            super().save(folder, step)

    last, turns = 3, 1000  # of the loop: many more than a peer needs to end
    swarm = swarm_of(
        tmp_path, "ann", stages=1, peers_per_stage=1, steps=last, rules=patient_rules(lease_grace=1)
    )
    swarm.make_compute = lambda _stage: Slow(2)
    ann, ended = swarm.session_of("ann").key, list[asyncio.Task[None]]()

    async def end_its_session() -> None:
        if (session := swarm.parties[COORDINATOR].transport.sessions.get(ann)) is not None:
            await session.close()  # its coordinator has not ended before
        for _ in range(turns):
            await asyncio.sleep(0)
        may_write.set()

    def watch(name: str, line: Line) -> None:
        if (name, line["event"], line.get("step")) == ("ann", "seal_applied", last):
            ended.append(asyncio.ensure_future(end_its_session()))

    swarm.watch = watch
    await swarm.run()

    await asyncio.gather(*ended)
    assert swarm.refused == {}
    told = [(line["event"], line.get("step")) for name, line in swarm.log if name == "ann"]
    assert told.index(("checkpoint_stored", last)) < told.index(("finished", last))


# ------------------------------------------------------------- one worker, and seals of a job


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> MemorySwarm:
    """A job that has ended, of one peer a stage; it has kept all its averages."""
    folder = tmp_path_factory.mktemp("job")
    swarm = swarm_of(folder, "ann", "bob", peers_per_stage=1, steps=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "drop_chunks", lambda *_: None)
        asyncio.run(swarm.run())
    return swarm


def seal_of(swarm: MemorySwarm, step: int) -> list[Kept]:
    """The items under the seal of a step, itself last."""
    items, begin = swarm.items(), 2  # after spec and opening
    for end, item in enumerate(items, start=1):
        if isinstance(item, Signed) and isinstance(item.message, Seal):
            if item.message.step == step:
                return items[begin:end]
            begin = end
    raise AssertionError(f"no seal of step {step}")


@asynccontextmanager
async def worker_again(
    swarm: MemorySwarm, folder: Path, compute: type[CountingCompute] = CountingCompute
) -> AsyncIterator[tuple[Work, list[str]]]:
    """The first stage's worker again, alone, with the averages of the job but no state."""
    stage = StageIndex(0)
    (name,) = (n for n, each in swarm.computes.items() if each.is_first)
    told = list[str]()

    def tell(event: str, **_: object) -> None:
        told.append(event)

    making = worker_of(swarm.papers, name, folder, tell, lambda s: compute(2, s, STAGES))
    async with making as (work, _):
        await work.states.take_stage(stage, StepNumber(0))
        copytree(swarm.folder / name / "chunks", folder / name / "chunks")
        yield work, told


async def take(work: Work, swarm: MemorySwarm, *steps: int) -> list[tuple[StepNumber, bytes]]:
    return [await work.states.take_seal(seal_of(swarm, step), StepNumber(step)) for step in steps]


class Spoilt(CountingCompute):
    """Its third update goes wrong, the first `times` times that it is done."""

    times = 1

    def apply(self, chunks: Sequence[Buffer], sealed_norm: int) -> None:
        """See `Compute.apply`."""
        super().apply(chunks, sealed_norm)
        if self.counter == 3 and Spoilt.times:
            self.weights[0] += Spoilt.times
            Spoilt.times -= 1


async def test_states__a_sealed_job__every_state_is_the_one_that_was_committed_to(
    tmp_path: Path, sealed: MemorySwarm
) -> None:
    async with worker_again(sealed, tmp_path / "again") as (work, _):
        taken = await take(work, sealed, 1, 2, 3, 4, 5)

        roots = [work.book.state_root(StageIndex(0), StepNumber(step)) for step in range(6)]
        assert [root for _, root in taken] == [*roots[1:5], work.station.roots.state]
        assert roots[5] is None  # no seal has said so yet


async def test_states__ours_differs_from_the_others__rebuilt_by_the_next_seal_and_kept(
    tmp_path: Path, sealed: MemorySwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Spoilt, "times", 1)
    async with worker_again(sealed, tmp_path / "again", Spoilt) as (work, told):
        (spoilt,) = (await take(work, sealed, 1, 2, 3))[2:]
        assert "state_differs" not in told

        taken = await take(work, sealed, 4, 5)

        assert told.count("state_differs") == told.count("state_rebuilt") == 1
        assert (
            work.book.roots[StepNumber(3)]
            == work.book.state_root(StageIndex(0), StepNumber(3))
            != spoilt[1]
        )
        assert taken[0][1] == work.book.state_root(StageIndex(0), StepNumber(4))
        before = work.station.roots
        await work.states.resume()  # as after a restart
        assert (work.station.roots, work.station.applied) == (before, 5)
        assert told.count("state_rebuilt") == 1


async def test_states__own_derivation_comes_out_the_same__disputed_and_kept(
    tmp_path: Path, sealed: MemorySwarm
) -> None:
    class Other(CountingCompute):
        def apply(self, chunks: Sequence[Buffer], sealed_norm: int) -> None:
            """See `Compute.apply`."""
            super().apply(chunks, sealed_norm)
            self.weights[0] += self.counter == 3

    async with worker_again(sealed, tmp_path / "again", Other) as (work, told):
        ours = (await take(work, sealed, 1, 2, 3))[2][1]

        await take(work, sealed, 4, 5)

        assert told.count("state_disputed") == 1
        assert work.book.roots[StepNumber(3)] == ours


async def test_states__computed_twice_and_never_alike__breaks(
    tmp_path: Path, sealed: MemorySwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Spoilt, "times", 2)
    async with worker_again(sealed, tmp_path / "again", Spoilt) as (work, _):
        await take(work, sealed, 1, 2, 3)

        with pytest.raises(errors.InvariantBroken, match="twice alike"):
            await take(work, sealed, 4)

        assert work.broken.done()


async def test_states__a_newcomer__stores_seals_and_answers_zero_until_it_can_load(
    tmp_path: Path, sealed: MemorySwarm
) -> None:
    async with worker_again(sealed, tmp_path / "again") as (work, _):
        await work.states.take_stage(StageIndex(0), StepNumber(4))

        taken = await take(work, sealed, 1, 2, 3)

        assert [root for _, root in taken] == [ZERO_DIGEST] * 3
        assert (work.book.sealed, work.station.applied) == (3, 0)
        with pytest.raises(
            errors.Unavailable, match="no member with a checkpoint of step 4 is reached"
        ):
            await take(work, sealed, 4)
        assert work.book.sealed == 4


async def test_states__a_newcomer_for_whom_nobody_has_a_mean_any_more__joins_anew(
    tmp_path: Path, sealed: MemorySwarm
) -> None:
    async with worker_again(sealed, tmp_path / "again") as (work, _):
        work.station.store.drop_chunks(StepNumber(5))
        for joined_in in (1, 4):
            await work.states.take_stage(
                StageIndex(0), StepNumber(0), joined_in=StepNumber(joined_in)
            )
            with pytest.raises(errors.Unavailable):
                await take(work, sealed, 1)
            assert work.states.outdated.is_set() == (joined_in == 4)


async def test_states__work_that_no_seal_counts__is_noted_until_a_step_without_any(
    tmp_path: Path, sealed: MemorySwarm
) -> None:
    async with worker_again(sealed, tmp_path / "again") as (work, _):
        for step in (1, 2):  # forward passes whose backward passes nobody asks for
            await work.units.forward(
                calls.Task(direction="forward", step=step, unit=UnitId(0), attempt=0)
            )
            await take(work, sealed, step)
        await take(work, sealed, 3)

        (pay,) = [path.read_bytes() for path in (tmp_path / "again").rglob(PAY_FILE)]
        assert decode_sealed_pay(pay).left_out == 2


async def test_states__checkpoint_and_ranges__only_what_is_there(
    tmp_path: Path, sealed: MemorySwarm
) -> None:
    async with worker_again(sealed, tmp_path / "again") as (work, _):
        await take(work, sealed, 1, 2)
        stage, step = StageIndex(0), StepNumber(2)

        view = await work.states.view(stage, step)
        # Who joins before all have this first checkpoint begins with the initial state.
        assert work.station.store.chunk(StepNumber(1), ChunkIndex(0)) is not None
        half = view.num_bytes // 2

        pieces = [
            await work.states.range(stage, step, start, end)
            for start, end in ((0, half), (half, view.num_bytes))
        ]
        assert len(b"".join(pieces)) == view.num_bytes
        for stage_, step_ in ((1, 2), (0, 1)):
            with pytest.raises(errors.NotFound):
                await work.states.view(StageIndex(stage_), StepNumber(step_))


async def test_states__checkpoint_of_several_ranges__is_named_as_a_whole_and_read_once(
    tmp_path: Path, sealed: MemorySwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with worker_again(sealed, tmp_path / "again") as (work, _):
        await take(work, sealed, 1, 2)
        stage, step = StageIndex(0), StepNumber(2)
        data = work.station.compute.checkpoint(work.station.checkpoints, step).read_bytes()
        read = list[int]()
        view_of = served._view_of

        def counted(path: Path) -> calls.StateView:
            read.append(1)
            return view_of(path)

        monkeypatch.setattr(served, "RANGE", len(data) // 2 - 1)
        monkeypatch.setattr(served, "_view_of", counted)

        views = await asyncio.gather(*(work.states.view(stage, step) for _ in range(5)))

        assert set(views) == {calls.StateView(digest=blob_digest(data), num_bytes=len(data))}
        assert len(read) == 1


async def test_states__member_is_measured_for_another_stage__keeps_its_seat(
    tmp_path: Path, sealed: MemorySwarm
) -> None:
    async with worker_again(sealed, tmp_path / "again") as (work, _):
        await take(work, sealed, 1)

        with pytest.raises(errors.Conflict, match="member of stage 0"):
            await work.states.measure(StageIndex(1), 1)
        await work.states.measure(StageIndex(0), 1)

        assert (work.station.stage, work.station.applied) == (0, 1)


# ------------------------------------------------------------------- a coordinator that says no


async def test_worker__coordinator_answers_a_join_with_any_error__asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = swarm_of(tmp_path, "ann", stages=1, peers_per_stage=1, steps=1)
    answers = [errors.WrongBytes("a lie"), errors.Refused("no"), errors.Overloaded("later")]
    join, left = CoordinatorAnswers.join, list[errors.TallystickError](answers)

    async def refuse_thrice(self: CoordinatorAnswers, *given: Any) -> Any:
        if left:
            raise left.pop(0)
        return await join(self, *given)

    monkeypatch.setattr(CoordinatorAnswers, "join", refuse_thrice)

    await swarm.run()

    assert {each.code for each in answers} <= {line["code"] for line in swarm.lines("waits")}
    assert (swarm.refused, len(swarm.seals())) == ({}, 1)


async def test_states__device_fails_in_an_update__ends_instead_of_going_on_with_half_of_it(
    tmp_path: Path, sealed: MemorySwarm
) -> None:
    class Failing(CountingCompute):
        def apply(self, chunks: Sequence[Buffer], sealed_norm: int) -> None:
            """See `Compute.apply`."""
            super().apply(chunks, sealed_norm)
            raise RuntimeError("out of memory")

    async with worker_again(sealed, tmp_path / "again", Failing) as (work, _):
        with pytest.raises(errors.InvariantBroken, match="out of memory"):
            await take(work, sealed, 1)

        assert work.broken.done()
