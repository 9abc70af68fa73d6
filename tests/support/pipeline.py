"""Workers of a job of several stages in one event loop, without a coordinator.

A test asks them what a coordinator would ask. They find each other over the in-memory transport,
and compute with `CountingCompute`.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.terms.ids import ZERO_DIGEST, Digest, PeerId, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import Assignment, StepClose, UnitLeaf
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from tests.support.fakes.counting import CountingCompute
from tests.support.fakes.memory_transport import MemoryNetwork, MemoryTransport
from tests.support.history import DOMAIN
from tests.support.swarm_job import Papers, make_papers
from training.journal import Journal
from training.telling import Tell
from training.transport import calls
from training.worker.answers import Answers
from training.worker.book import WorkerBook
from training.worker.peers import Peers
from training.worker.ports import Compute
from training.worker.station import Station
from training.worker.work import Work

UNIT = ItemNumber(0)


@dataclass
class Pipeline:
    """One worker or more of each stage: `ann0`, `bob0`, `ann1` and so on."""

    papers: Papers
    works: dict[str, Work]
    transports: dict[str, MemoryTransport]
    lines: list[tuple[str, dict[str, Any]]]

    @property
    def num_stages(self) -> int:
        """Stages of the job."""
        return self.papers.spec.message.batch.stages

    def peer(self, name: str) -> PeerId:
        """A worker's id."""
        return self.papers.members[name].session.peer

    def teller(self, name: str) -> Tell:
        """The log of one worker."""

        def tell(event: str, **fields: object) -> None:
            self.lines.append((name, {"event": event, **fields}))

        return tell

    def told(self, event: str) -> list[dict[str, Any]]:
        """Log lines of one event, of all workers."""
        return [line for _, line in self.lines if line["event"] == event]

    def held(self, digest: Digest, *holders: str) -> calls.Held:
        """A tensor at these workers."""
        return calls.Held(digest=digest, holders=tuple(self.peer(name) for name in holders))

    async def forward(
        self,
        name: str,
        x: calls.Held | None = None,
        *,
        unit: ItemNumber = UNIT,
        attempt: int = 0,
        dx: Digest = ZERO_DIGEST,
    ) -> UnitLeaf:
        """Ask a worker for a forward pass."""
        asked = calls.Task(direction="forward", step=1, unit=unit, attempt=attempt, x=x, dx=dx)
        return await self.works[name].units.forward(asked)

    async def backward(
        self,
        name: str,
        x: calls.Held | None,
        dy: calls.Held | None,
        *,
        unit: ItemNumber = UNIT,
        attempt: int = 0,
        y: Digest = ZERO_DIGEST,
        dx: Digest = ZERO_DIGEST,
    ) -> UnitLeaf:
        """Ask a worker for a backward pass."""
        asked = calls.Task(
            direction="backward",
            step=1,
            unit=unit,
            attempt=attempt,
            x=x,
            dy=dy,
            y=y,
            dx=dx,
        )
        return await self.works[name].units.backward(asked)

    async def through(
        self, *names: str, unit: ItemNumber = UNIT, attempt: int = 0
    ) -> list[UnitLeaf]:
        """A unit up and down through one worker of each stage; returns their leaves."""
        x: calls.Held | None = None
        inputs, leaf = [], None
        for name in names:
            inputs.append(x)
            leaf = await self.forward(name, x, unit=unit, attempt=attempt)
            x = self.held(leaf.y, name)
        assert leaf is not None
        leaves = [leaf]
        for name, above, x in zip(names[-2::-1], names[:0:-1], inputs[-2::-1], strict=True):
            dy = self.held(leaves[0].dx, above)
            leaves.insert(0, await self.backward(name, x, dy, unit=unit, attempt=attempt))
        return leaves

    def stage_of(self, name: str) -> StageIndex:
        """The digit of a name."""
        return StageIndex(int(name[-1]))

    def close(self, revision: int = 0, **units: tuple[int, ...]) -> Signed[StepClose]:
        """A StepClose of step 1 that gives these units to these workers."""
        at = UnixMillis(1000)
        close = StepClose(
            job=self.papers.job,
            step=StepNumber(1),
            revision=revision,
            assignments=tuple(
                Assignment(
                    stage=self.stage_of(name),
                    peer=self.peer(name),
                    units=tuple(ItemNumber(unit) for unit in given),
                )
                for name, given in units.items()
            ),
            closed_at=at,
            commit_ends=at,
            exchange_ends=at,
        )
        return self.papers.session.sign(close)


@asynccontextmanager
async def worker_of(
    papers: Papers,
    name: str,
    folder: Path,
    tell: Tell,
    make_compute: Callable[[StageIndex], Compute],
    network: MemoryNetwork | None = None,
) -> AsyncIterator[tuple[Work, MemoryTransport]]:
    """A worker over its folder in `folder`, which has no stage yet and knows no members."""
    folder, session, opening = folder / name, papers.members[name].session, papers.signed_opening()
    folder.mkdir(exist_ok=True, parents=True)
    transport = MemoryTransport(network or MemoryNetwork(), session.key, calls.METHODS)
    peers = Peers(transport, papers.spec.message, opening.message, tell)
    with Journal(folder / "journal.sqlite") as journal:
        book = WorkerBook(journal, papers.spec, opening, DOMAIN)
        work = Work(Station(book, folder, peers, session, tell), make_compute)
        try:
            yield work, transport
        finally:
            await work.close()
            await transport.close()


@asynccontextmanager
async def pipeline(folder: Path, *names: str, **changed: Any) -> AsyncIterator[Pipeline]:
    """Workers by these names, each in the stage that its name ends with."""
    stages = 1 + max(int(name[-1]) for name in names)
    papers = make_papers(*names, **{"stages": stages, "units_per_step": 6} | changed)
    network, members = MemoryNetwork(), []
    found = Pipeline(papers, {}, {}, [])

    def make_compute(stage: StageIndex) -> Compute:
        return CountingCompute(2, stage, stages)

    async with AsyncExitStack() as stack:
        for name in names:
            session, stage = papers.members[name].session, found.stage_of(name)
            making = worker_of(papers, name, folder, found.teller(name), make_compute, network)
            work, transport = await stack.enter_async_context(making)
            address = await transport.serve(Answers(work).dispatcher(), listen="memory:0")
            await work.states.take_stage(stage, StepNumber(0))
            found.works[name], found.transports[name] = work, transport
            members.append(
                calls.MemberView(session_key=session.key, stage=stage, address=address or "")
            )
        for work in found.works.values():
            work.station.peers.set_members(members)
        yield found
