"""Work of sealed steps: is all of it here when somebody is drawn, and gone when nobody can be?

A job with retention runs to its end; then its members are opened again over the folders that they
left, and audit each other, and an outside auditor audits them. Nobody is drawn here: who is and
what a verdict means is `verification`'s.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from contracts.terms.errors import Forbidden, Malformed, NotFound, Unavailable, WrongBytes
from contracts.terms.history import Leaves
from contracts.terms.ids import ZERO_DIGEST, ChunkIndex, Digest, PeerId, StageIndex, StepNumber
from contracts.terms.messages import GradCommit, UnitLeaf
from tests.support.fakes.counting import CountingCompute, CountingReplayer
from tests.support.fakes.memory_transport import MemoryNetwork, MemoryTransport
from tests.support.history import make_session, messages_of
from tests.support.pipeline import worker_of
from tests.support.swarm_job import MemorySwarm, make_papers
from training.transport import calls
from training.worker import keeping as keeping_module
from training.worker.answers import Answers
from training.worker.book import WorkerBook
from training.worker.download import RANGE
from training.worker.engine import Engine
from training.worker.keeping import Keeping
from training.worker.peers import Peers
from training.worker.ports import Compute, ReplayedUnit
from training.worker.retention import Retention
from training.worker.shared_files import CheckpointFile
from training.worker.work import Work
from verification.auditing.job import Fetcher
from verification.auditing.loop import MemberJob
from verification.auditing.replays import DownloadedWeights, Replays

NAMES, STAGES, STEPS, CHUNKS = ("ann", "bob", "cem", "dan"), 2, 5, 2
SEED = bytes(range(32))


def keep(patch: pytest.MonkeyPatch, retention: Retention) -> None:
    """Keep work in a job in which nobody is drawn, as if every draw were open."""
    patch.setattr(keeping_module, "retention_of", lambda _rules: retention)
    patch.setattr(WorkerBook, "oldest_needed", StepNumber(0))


def run_job(folder: Path, retention: Retention) -> MemorySwarm:
    """A job of four peers in two stages, whose folders stay as they are at its end."""
    papers = make_papers(
        *NAMES,
        stages=STAGES,
        peers_per_stage=2,
        steps=STEPS,
        units_per_step=6,
        chunks=CHUNKS,
        checkpoint_every=2,
        validate_every=STEPS,
    )
    swarm = MemorySwarm(papers, folder)
    with pytest.MonkeyPatch.context() as patch:
        keep(patch, retention)
        if retention.most:
            patch.setattr(Keeping, "clear", lambda _self: None)
        asyncio.run(swarm.run())
    return swarm


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> MemorySwarm:
    """A job that has kept everything."""
    return run_job(tmp_path_factory.mktemp("job"), Retention(most=16))


@dataclass(frozen=True)
class PeerStep:
    """What one peer has bound itself to in one step."""

    commit: GradCommit
    leaves: tuple[UnitLeaf, ...]

    @property
    def name(self) -> str:
        """For a reader."""
        return f"step {self.commit.step}, stage {self.commit.stage}, round {self.commit.round}"


def peer_steps(swarm: MemorySwarm) -> list[PeerStep]:
    items = swarm.items()
    leaves = {item.grad_commit: item.leaves for item in items if isinstance(item, Leaves)}
    commits = messages_of(items, GradCommit)
    return [PeerStep(commit, leaves[commit.digest()]) for commit in commits]


@dataclass
class Members:
    """The members of a job that has ended, open again."""

    swarm: MemorySwarm
    network: MemoryNetwork
    stack: AsyncExitStack
    works: dict[str, Work] = field(default_factory=dict)
    views: list[calls.MemberView] = field(default_factory=list)
    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def teller(self, name: str) -> Any:
        """The log of one party."""

        def tell(event: str, **fields: object) -> None:
            self.told.append((name, {"event": event, **fields}))

        return tell

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Log lines of one event."""
        return [line for _, line in self.told if line["event"] == event]

    def of(self, commit: GradCommit) -> Work:
        """The member that a GradCommit is of."""
        return next(w for w in self.works.values() if w.station.peer == commit.peer)

    def mate_of(self, commit: GradCommit) -> Work:
        """The other member of its stage."""
        return next(
            work
            for work in self.works.values()
            if work.station.stage == commit.stage and work.station.peer != commit.peer
        )


@asynccontextmanager
async def reopened(
    swarm: MemorySwarm, folder: Path, retention: Retention | None = None
) -> AsyncIterator[Members]:
    """All members over copies of their folders, at their last state."""
    papers = swarm.papers

    def make_compute(stage: StageIndex) -> Compute:
        return CountingCompute(CHUNKS, stage, STAGES)

    async with AsyncExitStack() as stack:
        found = Members(swarm, MemoryNetwork(), stack)
        for name in NAMES:
            copytree(swarm.folder / name, folder / name)
            making = worker_of(
                papers, name, folder, found.teller(name), make_compute, found.network
            )
            work, transport = await stack.enter_async_context(making)
            work.keeping.retention = retention or Retention(most=16)
            await work.states.resume()
            address = await transport.serve(Answers(work).dispatcher(), listen="memory:0")
            found.works[name] = work
            found.views.append(
                calls.MemberView(
                    session_key=transport.key, stage=work.station.stage, address=address or ""
                )
            )
        for work in found.works.values():
            work.station.peers.set_members(found.views)
        yield found


@dataclass
class Outsider:
    """Somebody without a lease who audits a stage."""

    peers: Peers
    replays: Replays
    fetcher: Fetcher
    weights: DownloadedWeights

    def replays_in(self, _stage: StageIndex) -> Replays:
        """Of the one stage that it knows."""
        return self.replays


async def outsider_of(
    members: Members,
    folder: Path,
    stage: int,
    *,
    is_trusted: bool = True,
    doer: PeerId | None = None,
) -> Outsider:
    spec, session = members.swarm.papers.spec.message, make_session("outsider")
    transport = MemoryTransport(members.network, session.key, calls.METHODS)
    members.stack.push_async_callback(transport.close)
    engine, tell = Engine(), members.teller("outsider")
    members.stack.push_async_callback(engine.close)
    peers = Peers(transport, spec, members.swarm.papers.signed_opening().message, tell)
    # It knows the members of this stage only; those who have signed x may be gone.
    peers.set_members(view for view in members.views if view.stage == stage)
    for work in members.works.values():
        work.station.peers.trust_outside([session.key] if is_trusted else [])
    replayer = CountingReplayer(CHUNKS, stage, STAGES)
    weights = DownloadedWeights(
        peers,
        StageIndex(stage),
        folder / "outside",
        engine=engine,
        replayer=replayer,
        most_bytes=10**6,
        tell=tell,
        doer=lambda: doer,
    )
    fetcher = Fetcher(engine, peers, peers.fetch_part)
    return Outsider(peers, Replays(engine, lambda: replayer, weights), fetcher, weights)


async def replay(
    auditor: MemberJob | Outsider, subject: PeerStep
) -> tuple[list[ReplayedUnit], list[Digest]]:
    """A peer-step once more, from what its owner hands out; its units, and its parts' digests."""
    commit, found = subject.commit, []

    async def fetched(digest: Digest) -> bytes | None:
        if digest == ZERO_DIGEST:
            return None
        return (await auditor.fetcher.tensor(commit.step, digest, [commit.peer])).data

    async with auditor.replays_in(StageIndex(commit.stage)).begin(
        commit.step, commit.state_root, SEED
    ) as running:
        for leaf in subject.leaves:
            x = None if commit.stage == 0 else await fetched(leaf.x)
            found.append(await running.unit(leaf.unit, x, await fetched(leaf.dy)))
        return found, [piece.digest for piece in await running.gradient()]


def assert_is_the_claim(subject: PeerStep, units: Sequence[ReplayedUnit]) -> None:
    claimed = [(leaf.x, leaf.y, leaf.dx, leaf.loss) for leaf in subject.leaves]
    found = [
        (
            each.x,
            each.y.digest if each.y else ZERO_DIGEST,
            each.dx.digest if each.dx else ZERO_DIGEST,
            each.loss,
        )
        for each in units
    ]
    assert found == claimed, subject.name


# -------------------------------------------------------------------------------------- members


async def test_members__owner_has_lost_its_tensors__those_it_had_them_from_serve_them(
    job: MemorySwarm, tmp_path: Path
) -> None:
    subject = next(s for s in peer_steps(job) if s.commit.stage == 1 and s.commit.step == 2)
    leaf = subject.leaves[0]
    async with reopened(job, tmp_path) as members:
        members.of(subject.commit).station.tensors.drop(StepNumber(STEPS))
        fetcher = MemberJob(members.mate_of(subject.commit)).fetcher
        owner = [subject.commit.peer]
        everybody = [member.session.peer for member in job.papers.members.values()]

        for holders in (owner, []):
            with pytest.raises(Unavailable):  # there is no coordinator that could find it
                await fetcher.tensor(subject.commit.step, leaf.x, holders)
        kept = await fetcher.tensor(subject.commit.step, leaf.x, everybody)

        header = next(
            work.station.tensors.header(subject.commit.step, leaf.x)
            for work in members.works.values()
            if work.station.tensors.has(subject.commit.step, leaf.x)
        )
        assert len(kept.data) == 4 * header.shape[-1]


async def test_members__everybody_else_has_lost_it__who_audited_serves_what_it_took(
    job: MemorySwarm, tmp_path: Path
) -> None:
    subject = next(s for s in peer_steps(job) if s.commit.stage == 1 and s.commit.step == 2)
    leaf, step = subject.leaves[0], subject.commit.step
    async with reopened(job, tmp_path) as members:
        auditor = members.mate_of(subject.commit)
        await replay(MemberJob(auditor), subject)
        for work in members.works.values():
            work.station.tensors.drop(StepNumber(STEPS))
        outsider = await outsider_of(members, tmp_path, 1)
        holder = [auditor.station.peer]

        assert await outsider.fetcher.tensor(step, leaf.x, holder)

        auditor.keeping.narrow(step, [], [])
        await auditor.keeping.drop()
        with pytest.raises(Unavailable):
            await outsider.fetcher.tensor(step, leaf.x, holder)


async def test_members__state_root_of_a_claim_is_another__the_replay_does_not_begin(
    job: MemorySwarm, tmp_path: Path
) -> None:
    subject = peer_steps(job)[-1]
    async with reopened(job, tmp_path) as members:
        replays = MemberJob(members.mate_of(subject.commit)).replays_in(
            StageIndex(subject.commit.stage)
        )

        with pytest.raises(WrongBytes):
            async with replays.begin(subject.commit.step, ZERO_DIGEST, SEED):
                raise AssertionError("it has begun")
        with pytest.raises(NotFound):
            async with replays.begin(StepNumber(STEPS + 9), ZERO_DIGEST, SEED):
                raise AssertionError("it has begun")


# ------------------------------------------------------------------------------------- outsiders


async def test_outsider__whose_work_is_audited__is_asked_for_weights_only_if_nobody_else_has_them(
    job: MemorySwarm, tmp_path: Path
) -> None:
    subject = next(s for s in peer_steps(job) if s.commit.stage == 0 and s.commit.step == 3)
    step, root = subject.commit.step, subject.commit.state_root
    async with reopened(job, tmp_path) as members:
        doer, mate = members.of(subject.commit), members.mate_of(subject.commit)
        outsider = await outsider_of(members, tmp_path, 0, doer=subject.commit.peer)
        file = doer.station.folder / "weights" / "00000002.weights"
        lying = CountingCompute(CHUNKS, 0, STAGES)
        lying.save_weights(file, doer.station.compute.roots_of_weights(file))

        path = await outsider.weights(step, root)

        assert not members.lines("weights_not_loaded")
        path.unlink()
        (mate.station.folder / "weights" / "00000002.weights").unlink()
        with pytest.raises(WrongBytes):  # of the doer, who lies
            await outsider.weights(step, root)


async def test_outsider__asks_for_what_no_audit_needs__is_refused(
    job: MemorySwarm, tmp_path: Path
) -> None:
    subject = next(s for s in peer_steps(job) if s.commit.stage == 0)
    async with reopened(job, tmp_path) as members:
        outsider = await outsider_of(members, tmp_path, 0)

        with pytest.raises(Forbidden):
            await CheckpointFile(outsider.peers, StageIndex(0), StepNumber(2)).view(
                subject.commit.peer
            )


async def test_outsider__nobody_has_drawn_it__is_not_let_in(
    job: MemorySwarm, tmp_path: Path
) -> None:
    subject = peer_steps(job)[0]
    async with reopened(job, tmp_path) as members:
        outsider = await outsider_of(members, tmp_path, subject.commit.stage, is_trusted=False)

        with pytest.raises(Unavailable):
            await outsider.weights(subject.commit.step, subject.commit.state_root)


async def test_weights__view_and_ranges__only_what_is_there(
    job: MemorySwarm, tmp_path: Path
) -> None:
    async with reopened(job, tmp_path) as members:
        keeping = members.works["ann"].keeping
        stage, step = members.works["ann"].station.stage, StepNumber(2)

        view = await keeping.view(stage, step)
        data = await keeping.range(stage, step, 0, view.num_bytes)

        assert view.num_bytes == len(data) and view.counter == 2
        for start, end in ((0, view.num_bytes + 1), (5, 5), (0, RANGE + 1)):
            with pytest.raises(Malformed):
                await keeping.range(stage, step, start, end)
        for stage_, step_ in ((1 - stage, 2), (stage, 77)):
            with pytest.raises(NotFound):
                await keeping.view(StageIndex(stage_), StepNumber(step_))


# ------------------------------------------------------------------------------ what goes, and when


def weights_here(work: Work) -> list[int]:
    return sorted(int(path.stem) for path in (work.station.folder / "weights").glob("*"))


async def test_keeping__draws_are_settled__everything_before_goes(
    job: MemorySwarm, tmp_path: Path
) -> None:
    async with reopened(job, tmp_path) as members:
        work = members.works["ann"]
        assert weights_here(work) == [0, 1, 2, 3, 4, 5]

        work.keeping.settled_before(StepNumber(4))
        await work.keeping.drop()

        assert weights_here(work) == [3, 4, 5]
        worked = {
            each.commit.step for each in peer_steps(job) if each.commit.peer == work.station.peer
        }
        for kept in (work.station.tensors.steps(), work.station.store.steps()):
            assert worked & {4, 5} <= kept <= {4, 5}
        assert (await work.keeping.weights_before(StepNumber(4))).exists()
        with pytest.raises(NotFound):
            await work.keeping.weights_before(StepNumber(3))
        (line,) = members.lines("work_kept")[-1:]
        assert (line["steps"], line["oldest"]) == (2, 4)
        assert line["bytes"] == sum(
            path.stat().st_size
            for name in ("weights", "tensors", "parts")
            for path in (work.station.folder / name).rglob("*.*")
        )


async def test_keeping__one_unit_and_commit_of_a_step_were_drawn__only_they_stay(
    job: MemorySwarm, tmp_path: Path
) -> None:
    drawn = next(s for s in peer_steps(job) if s.commit.stage == 0 and s.commit.step == 2)
    others = [
        s for s in peer_steps(job) if s.commit.stage == 0 and s.commit.step == 2 and s != drawn
    ]
    units = [leaf.unit for leaf in drawn.leaves]
    async with reopened(job, tmp_path) as members:
        for work in members.works.values():
            work.keeping.narrow(StepNumber(2), units, [drawn.commit.digest()])
            work.keeping.narrow(StepNumber(3), [], [])
            await work.keeping.drop()
        auditor, owner = members.mate_of(drawn.commit), members.of(drawn.commit)

        found, parts = await replay(MemberJob(auditor), drawn)

        assert_is_the_claim(drawn, found)
        assert parts == [part.digest for part in drawn.commit.parts]
        assert weights_here(owner) == [0, 1, 3, 4, 5]
        worked = {s.commit.step for s in peer_steps(job) if s.commit.peer == drawn.commit.peer}
        assert owner.station.tensors.steps() >= worked - {3}
        assert 3 not in owner.station.tensors.steps()
        for other in others:  # who got no unit of the step has nothing to let go
            at = members.of(other.commit).station
            assert at.store.find_part(other.commit.digest(), ChunkIndex(0)) is None
            assert not any(at.tensors.has(StepNumber(2), leaf.y) for leaf in other.leaves)


async def test_keeping__more_steps_are_open_than_there_is_room_for__newest_stay_and_it_is_told(
    job: MemorySwarm, tmp_path: Path
) -> None:
    async with reopened(job, tmp_path, Retention(most=2)) as members:
        work = members.works["bob"]
        await work.keeping.drop()

        assert weights_here(work) == [3, 4, 5]
        (line,) = members.lines("kept_too_long")
        assert line["dropped"] == "1 2 3"


async def test_keeping__weights_cannot_be_written__told_and_the_work_goes_on(
    job: MemorySwarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise Unavailable("disk full")

    monkeypatch.setattr(CountingCompute, "save_weights", full)
    async with reopened(job, tmp_path) as members:
        assert {line["step"] for line in members.lines("weights_not_kept")} == {STEPS}
        assert members.works["ann"].station.applied == STEPS


def test_keeping__nobody_is_drawn_in_the_job__nothing_stays_and_nothing_is_told(
    tmp_path: Path,
) -> None:
    swarm = run_job(tmp_path, Retention())

    for name in NAMES:
        assert not (tmp_path / name / "weights").exists()
        assert not list((tmp_path / name).glob("parts/*/*.bin"))
        assert not list((tmp_path / name).glob("tensors/*/*.bin"))
    assert not swarm.lines("work_kept", of="ann")


def test_worker__job_is_over__all_kept_work_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(monkeypatch, Retention(most=16))
    papers = make_papers("ann", stages=1, peers_per_stage=1, steps=3, units_per_step=2, chunks=2)
    swarm = MemorySwarm(papers, tmp_path)

    asyncio.run(swarm.run())

    assert [line["steps"] for line in swarm.lines("work_kept", of="ann")] == [1, 2, 3]
    assert not list((tmp_path / "ann").glob("weights/*"))
    assert not list((tmp_path / "ann").glob("parts/*/*.bin"))
