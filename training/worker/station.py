"""What all parts of a peer's work share: who and where we are, at which state, with which files.

The step that is worked on is the one after the last seal in our state. The stage is the one that
the coordinator gave us first; it is in the journal from then on.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from contracts.keys.wallet import Session as SessionKeys
from contracts.terms.chunks import Chunking
from contracts.terms.errors import Conflict, Unavailable
from contracts.terms.ids import PeerId, StageIndex, StepNumber
from contracts.terms.messages import BatchSpec, RulesSpec
from training.changes import Changes
from training.stages.torch_free import StateRoots
from training.telling import Tell
from training.worker.book import WorkerBook
from training.worker.engine import Engine
from training.worker.peers import Peers
from training.worker.ports import Compute
from training.worker.store import Store
from training.worker.tensors import OnDisk, Tensors

ComputeFor: TypeAlias = Callable[[StageIndex], Compute]
"""The arithmetic of a stage at the job's initial state; may take seconds."""


class Station:
    """One lease's place in a job."""

    def __init__(
        self, book: WorkerBook, folder: Path, peers: Peers, session: SessionKeys, tell: Tell
    ) -> None:
        self.book, self.folder, self.peers, self.session = book, folder, peers, session
        self._tell = tell
        self.engine = Engine()
        self.sealed_changes = Changes()
        """Marked with every seal that is in our state."""
        self.store, self.checkpoints = Store(folder), folder / "checkpoints"
        self.audited = Tensors(folder / "audited", None)
        """Boundary tensors of others that audits of ours have taken."""
        self.applied = StepNumber(0)
        """The last step whose seal is in our state."""
        self.all_applied = StepNumber(0)
        """By every member, says the coordinator: later averages are still wanted."""
        self._seat: tuple[StageIndex, Compute, Tensors] | None = None
        self._roots: StateRoots | None = None

    def tell(self, event: str, **fields: object) -> None:
        """See `Tell`; by whoever has the turn, with what it took since its last event."""
        self._tell(event, **(self.engine.take_timings() | fields))

    @property
    def peer(self) -> PeerId:
        """Our id."""
        return self.session.peer

    @property
    def batch(self) -> BatchSpec:
        """How the job is cut."""
        return self.book.record.spec.batch

    @property
    def chunking(self) -> Chunking:
        """Which chunks the job's gradients are summed in."""
        return self.book.record.spec.chunking

    @property
    def rules(self) -> RulesSpec:
        """The job's protocol numbers."""
        return self.book.record.spec.rules

    @property
    def step(self) -> StepNumber:
        """The step that we work on."""
        return StepNumber(self.applied + 1)

    # -------------------------------------------------------------------------------- the stage

    def assign_stage(self, stage: StageIndex, compute: Compute) -> None:
        """Work in this stage from now on, with this compute."""
        self._seat = stage, compute, Tensors(self.folder, stage)
        self._roots = None

    @property
    def seat(self) -> StageIndex | None:
        """The stage that there is a compute for; `book.stage` is the one that we belong to."""
        return self._seat[0] if self._seat else None

    @property
    def stage(self) -> StageIndex:
        """The stage that we work in.

        Raises:
            Unavailable: the coordinator has not given us one yet.
        """
        if self._seat is None or self.book.stage != self._seat[0]:
            raise Unavailable("this peer has no stage yet")
        return self._seat[0]

    @property
    def compute(self) -> Compute:
        """Its arithmetic."""
        assert self._seat is not None  # asked by work in a stage only
        return self._seat[1]

    @property
    def tensors(self) -> Tensors:
        """Its boundary tensors."""
        assert self._seat is not None  # as above
        return self._seat[2]

    @property
    def on_disk(self) -> OnDisk:
        """Boundary tensors of our own work, and those of others that our audits took."""
        return OnDisk(self.tensors, self.audited)

    # -------------------------------------------------------------------------------- the state

    @property
    def roots(self) -> StateRoots:
        """Digests of our state."""
        assert self._roots is not None  # since `note_state`
        return self._roots

    async def note_state(self, step: StepNumber) -> None:
        """Our state is the one after `step`."""
        self._roots = await self.engine.run(self.compute.roots)
        self.applied = step

    def need_step(self, step: int) -> None:
        """Refuse work of another step.

        Raises:
            Unavailable: we have not come to that step yet. Conflict: it is over.
        """
        if step > self.step:
            raise Unavailable(f"step {step} is not here yet, this is {self.step}")
        if step < self.step:
            raise Conflict(f"step {step} is over, this is {self.step}")
