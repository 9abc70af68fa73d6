"""Where an audit takes its data from: the job itself, a recording of it, or an evidence bundle.

`Source` is what a replay asks for, whoever answers; here stands the answer from one file, a bundle
in the place of a job, each byte by its digest.

Invariant: nothing that the file holds is handed out before its digest was computed again, and the
digest stands in a message whose signature was checked (`bundle.check_papers`). Tensors come as wire
bytes and as `Numbers`: fp32, little-endian, in C order, after the codec.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, TypeAlias

from typing_extensions import Buffer

from contracts.governance.checking import Begin
from contracts.governance.record import JobRecord
from contracts.terms.errors import NotFound
from contracts.terms.ids import ChunkIndex, Digest, StageIndex, StepNumber, UnitId
from contracts.terms.messages import AuditReport, GradCommit
from training.averaging.slices import Slice
from training.worker.ports import Numbers, ReplayedUnit
from verification.auditing.bundle import Shown, Sort, WorkClaim, check_papers, read_papers
from verification.auditing.bundle_file import BLOBS, BundleFile
from verification.docket import begin_job
from verification.reading import at, mismatch

# -------------------------------------------------------------------------- what a replay asks for


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


# ------------------------------------------------------------------------- from an evidence bundle

DigestOf: TypeAlias = Callable[[Sort, bytes], Digest]
"""How a job digests bytes of a sort; raises Malformed where they are none."""


def show(file: BundleFile, begin: Begin = begin_job) -> Shown:
    """What a file's papers show, once they were checked, and it has all that they name.

    Raises:
        AuditMismatch: it is not a whole bundle; data: `path`. Unreadable: it is damaged, or none.
        Refused: see `check_papers`.
    """
    shown = check_papers(read_papers(file.papers()), begin)
    file.need(shown.wanted, weights=not shown.case.is_of_sum)
    return shown


class BundledBytes:
    """What a bundle holds beside its papers."""

    def __init__(self, shown: Shown, file: BundleFile, digest_of: DigestOf) -> None:
        self.shown = shown
        self._file, self._digest_of = file, digest_of

    def check(self) -> None:
        """Refuse a bundle of which any bytes have another digest; raises AuditMismatch."""
        for name in sorted(self.shown.wanted):
            self.blob(name)

    def blob(self, name: Digest) -> bytes:
        """Bytes of this digest.

        Raises:
            AuditMismatch: the file has others; data: `path`. NotFound: no paper names it.
        """
        if (sort := self.shown.wanted.get(name)) is None:
            raise NotFound("the papers do not name it", name=name.hex())
        data, path = self._file.blob(name), f"{BLOBS}{name.hex()}"
        with at(path):
            actual = self._digest_of(sort, data)
        if actual != name:
            mismatch(path, "its bytes have another digest")
        return data

    def rows(self, unit: UnitId) -> bytes:
        """Inputs and labels of a unit, one row after another; raises as `blob`."""
        if unit not in self.shown.rows:
            raise NotFound(f"no rows of unit {unit} are named", unit=unit)
        return self.blob(self.shown.rows[unit])


class Bundled:
    """Satisfies `sources.Source`; its replays begin on the bundle's weights."""

    def __init__(self, held: BundledBytes, replays: Replays) -> None:
        self._held, self._replays = held, replays

    @property
    def record(self) -> JobRecord:
        """See `Source.record`; no seal is in it."""
        return self._held.shown.record

    def replays_in(self, stage: StageIndex) -> Replays:
        """See `Source.replays_in`."""
        return self._replays

    def state_of(self, commit: GradCommit) -> Digest:
        """See `Source.state_of`: a bundle is only made where the claim says the same."""
        return Digest(commit.state_root)

    def report(self, name: Digest) -> AuditReport:
        """See `Source.report`: the one that was repeated."""
        claim = self._held.shown.papers.claim
        assert isinstance(claim, WorkClaim) and claim.repeated is not None  # only that is asked for
        return claim.repeated.message

    async def tensor(
        self, step: StepNumber, stages: Sequence[int], unit: UnitId, digest: Digest
    ) -> bytes:
        """See `Source.tensor`."""
        return self._held.blob(digest)

    async def part(self, commit: GradCommit, chunk: ChunkIndex) -> bytes:
        """See `Source.part`."""
        return self._held.blob(commit.parts[chunk].digest)
