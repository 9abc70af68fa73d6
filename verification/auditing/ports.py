"""Where an audit takes its data from: the job itself, a recording of it, or an evidence bundle.

Tensors come as wire bytes and as `Numbers`: fp32, little-endian, in C order, after the codec.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from typing_extensions import Buffer

from contracts.governance.record import JobRecord
from contracts.terms.ids import ChunkIndex, Digest, StageIndex, StepNumber, UnitId
from contracts.terms.messages import AuditReport, GradCommit
from training.averaging.slices import Slice
from training.worker.ports import Numbers, ReplayedUnit


class Replay(Protocol):
    """One peer-step that is being computed again; see `training.worker.ports.Replay`."""

    @property
    def weights(self) -> Path:
        """The file that it is done on; there until it is over."""

    async def unit(self, unit: UnitId, x: Buffer | None, dy: Buffer | None) -> ReplayedUnit:
        """The next unit, in the order of the leaves, from the wire bytes of x and dy."""

    async def gradient(self) -> Sequence[Slice]:
        """All parts, as a GradCommit over these units would bind them."""

    async def boundary(self, data: Buffer) -> Numbers:
        """The numbers of a boundary tensor; raises Malformed, NotFinite."""

    async def parameters(
        self, parts: Sequence[Buffer], norms_squared: Sequence[int] = ()
    ) -> Mapping[str, Numbers]:
        """The gradient of each parameter, from the wire bytes of all parts in order.

        Args:
            parts: Of the whole gradient.
            norms_squared: What was said of each, in 1e-12; nothing where it is left out.

        Raises:
            Malformed, NotFinite: they are no gradient. WrongBytes: one is not as long as was said.
        """


class Replays(Protocol):
    """Begins replays, one after another."""

    def begin(
        self, step: StepNumber, state_root: Digest, seed: bytes
    ) -> AbstractAsyncContextManager[Replay]:
        """Replay a peer-step of `step`.

        Args:
            step: Of the GradCommit.
            state_root: Of the state in which it is judged.
            seed: Of the projections, 32 bytes.

        Raises:
            NotFound: the weights are not here. Unavailable, Misbehaved: they cannot be had.
        """


class Source(Protocol):
    """Everything that a replay needs: `AuditedJob`, `Recording` and `Bundled` have it."""

    @property
    def record(self) -> JobRecord:
        """What the seals so far establish."""

    def replays_in(self, stage: StageIndex) -> Replays:
        """Of a stage that we audit in."""

    def state_of(self, commit: GradCommit) -> Digest:
        """Root of the state of its stage, in which the commit is judged.

        Raises:
            Unavailable: members differ, and no AverageSet has followed that says who was right.
        """

    def report(self, name: Digest) -> AuditReport:
        """A sealed report; raises NotFound."""

    async def tensor(
        self, step: StepNumber, stages: Sequence[int], unit: UnitId, digest: Digest
    ) -> bytes:
        """A boundary tensor between two stages, as it is digested (`formed_tensor`).

        Args:
            step: Of the unit.
            stages: The one below the tensor and the one above.
            unit: Whose tensor it is.
            digest: That a leaf names.

        Raises:
            NotFound, Unavailable: nobody has it, or nobody is reached.
        """

    async def part(self, commit: GradCommit, chunk: ChunkIndex) -> bytes:
        """Wire bytes of a part of a gradient; raises Unavailable."""
