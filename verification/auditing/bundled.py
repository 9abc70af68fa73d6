"""A bundle in the place of a job: what a replay asks for, from one file, each byte by its digest.

Invariant: nothing that the file holds is handed out before its digest was computed again, and the
digest stands in a message whose signature was checked (`bundle.check_papers`).
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from contracts.governance.checking import Begin
from contracts.governance.record import JobRecord
from contracts.terms.errors import NotFound
from contracts.terms.ids import ChunkIndex, Digest, StageIndex, StepNumber, UnitId
from contracts.terms.messages import AuditReport, GradCommit
from verification.auditing.bundle import Shown, Sort, WorkClaim, check_papers, read_papers
from verification.auditing.bundle_file import BLOBS, BundleFile
from verification.auditing.ports import Replays
from verification.docket import begin_job
from verification.reading import at, mismatch

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
    """Satisfies `ports.Source`; its replays begin on the bundle's weights."""

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
