"""What an auditor needs of the process that it lives in. Whoever has these members satisfies it.

Tensors come as wire bytes and as `Numbers`: fp32, little-endian, in C order, after the codec.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from typing_extensions import Buffer

from contracts.governance.record import JobRecord
from contracts.terms.ids import ChunkIndex, Digest, PeerId, StageIndex, StepNumber, UnitId
from contracts.terms.messages import AuditReport, GradCommit, Message, UnitLeaf
from contracts.terms.signatures import Signed


class Numbers(Protocol):
    """A tensor as numbers."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor."""
        ...

    @property
    def data(self) -> Buffer:
        """fp32, little-endian, in C order."""
        ...


class Wire(Protocol):
    """A tensor as it travels."""

    @property
    def data(self) -> Buffer:
        """Wire bytes after the codec."""
        ...

    @property
    def digest(self) -> Digest:
        """Of them, with dtype and shape."""
        ...


class ReplayedUnit(Protocol):
    """What a unit came to; None where the stage has no such tensor."""

    @property
    def is_finite(self) -> bool:
        """Whether anything came of it: if not, x or dy spells nothing, or nothing finite follows.

        Then it has nothing but its rows.
        """
        ...

    @property
    def rows(self) -> Wire | None:
        """What of the corpus it was computed from, in a stage that reads any of it."""
        ...

    @property
    def y(self) -> Wire | None:
        """The activation that leaves the stage upwards."""
        ...

    @property
    def dx(self) -> Wire | None:
        """The input gradient that leaves it downwards."""
        ...

    @property
    def loss(self) -> int | None:
        """1e-6 nats per token, mean over the unit."""
        ...

    @property
    def projection(self) -> int:
        """Of the gradient of all units so far, 1e-6."""
        ...


class Replay(Protocol):
    """One peer-step on its way."""

    @property
    def weights(self) -> Path:
        """The file that it is done on; there until it is over."""
        ...

    async def unit(self, unit: UnitId, x: Buffer | None, dy: Buffer | None) -> ReplayedUnit:
        """The next unit, in the order of the leaves."""
        ...

    async def gradient(self) -> Sequence[Wire]:
        """All parts, as a GradCommit over these units would bind them."""
        ...

    async def boundary(self, data: Buffer) -> Numbers:
        """The numbers that a boundary tensor's wire bytes spell."""
        ...

    async def parameters(
        self, parts: Sequence[Buffer], norms_squared: Sequence[int] = ()
    ) -> Mapping[str, Numbers]:
        """The gradient of each parameter, from the wire bytes of all parts in order.

        Args:
            parts: Of the whole gradient.
            norms_squared: What was said of each, in 1e-12; nothing where it is left out.

        Raises:
            Malformed, NotFinite: they spell none. WrongBytes: one is not as long as was said.
        """
        ...


class Replays(Protocol):
    """Begins replays, one after another."""

    def begin(
        self, step: StepNumber, state_root: Digest, seed: bytes
    ) -> AbstractAsyncContextManager[Replay]:
        """Replay a peer-step of `step`.

        Raises:
            NotFound: the weights are not here. Unavailable, Misbehaved: they cannot be had.
        """
        ...


class SealedCommit(Protocol):
    """A GradCommit with its leaves."""

    @property
    def commit(self) -> GradCommit:
        """As its peer signed it."""
        ...

    @property
    def leaves(self) -> tuple[UnitLeaf, ...]:
        """In ascending order of units."""
        ...

    @property
    def taken_over(self) -> frozenset[UnitId]:
        """Units that were another peer's before: y and dx in their leaves may be that one's."""
        ...


class Source(Protocol):
    """Where a replay takes all it needs from: the job, as an auditor sees it, or a bundle."""

    @property
    def record(self) -> JobRecord:
        """What the seals so far establish."""
        ...

    def replays_in(self, stage: StageIndex) -> Replays:
        """Of a stage that we audit in."""
        ...

    def state_of(self, commit: GradCommit) -> Digest:
        """Root of the state in which it is judged: that of its stage; raises Unavailable."""
        ...

    def report(self, name: Digest) -> AuditReport:
        """A sealed report; raises NotFound."""
        ...

    async def tensor(
        self, step: StepNumber, stages: Sequence[int], unit: UnitId, digest: Digest
    ) -> bytes:
        """A boundary tensor between two stages, as it is digested (`formed_tensor`).

        Raises:
            NotFound, Unavailable: it is not had, or not now.
        """
        ...

    async def part(self, commit: GradCommit, chunk: ChunkIndex) -> bytes:
        """Wire bytes of a part of a gradient; raises Unavailable."""
        ...


class Audited(Source, Protocol):
    """The job, as an auditor sees it; see `verification.auditing.member`."""

    @property
    def peer(self) -> PeerId:
        """Our id."""
        ...

    @property
    def folder(self) -> Path:
        """Where what we found stays."""
        ...

    @property
    def version(self) -> int:
        """Rises with every seal."""
        ...

    async def beyond(self, version: int) -> None:
        """Wait for a seal after that version."""
        ...

    def tell(self, event: str, **fields: object) -> None:
        """The log."""
        ...

    def commit(self, name: Digest) -> SealedCommit:
        """A sealed GradCommit; raises NotFound."""
        ...

    @property
    def parties(self) -> Sequence[Signed[Message]]:
        """JobSpec, JobOpening and all LeaseAccepts."""
        ...

    def said(self) -> Mapping[Digest, Signed[Message]]:
        """What seals hold of work, sums, reports and coins, by name, while draws are open."""
        ...

    async def sums_to(self, name: Digest) -> Digest | None:
        """Digest that the mean of a sealed AveragedChunk should have; raises Unavailable.

        None: its parts, which are bound, cannot be added up.
        """
        ...

    def bound_mean(self, name: Digest) -> Digest:
        """Digest that it has; raises NotFound."""
        ...

    async def say(
        self, agreeing: AuditReport, replay: Callable[[], Awaitable[AuditReport]]
    ) -> AuditReport:
        """What we report: what `replay` finds, if we are honest.

        `agreeing` finds no difference, and nothing was computed for it.
        """
        ...

    def sign(self, report: AuditReport) -> Signed[AuditReport]:
        """A report of ours with our signature, the same every time."""
        ...

    def reported(self, subject: Digest, attempt: int) -> AuditReport | None:
        """What we have said in a draw."""
        ...

    async def hand_in(self, report: AuditReport) -> bool:
        """Bind ourselves to a report; whether it was taken, or is not wanted. Unavailable."""
        ...
