"""Evidence bundles among the blobs, read without torch: a bundle is copied to a file for that."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from contracts.governance.checking import Begin
from contracts.terms.errors import AuditMismatch, Malformed, ServiceUnreachable, Unreadable
from contracts.terms.history import Kept, kept_digest
from contracts.terms.ids import Digest
from market.service.convictions import BundleSays
from market.service.ports import BlobStore
from verification.auditing.bundle import Papers, Shown, ShownWork
from verification.auditing.bundle_bytes import show
from verification.auditing.bundle_file import BundleFile
from verification.docket import begin_job


class FileBundles:
    """`Bundles` over any `BlobStore`."""

    def __init__(self, blobs: BlobStore, begin: Begin = begin_job) -> None:
        """Of these blobs; `begin` makes the rules of a job's draws."""
        self._blobs, self._begin = blobs, begin

    async def read(self, name: Digest) -> BundleSays:
        """See `Bundles.read`."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "bundle")
                with path.open("wb") as file:
                    async for piece in self._blobs.read(name):
                        await asyncio.to_thread(file.write, piece)
                return await asyncio.to_thread(self._read, path)
        except OSError as error:
            raise ServiceUnreachable(f"evidence could not be copied: {error.strerror}") from error

    def _read(self, path: Path) -> BundleSays:
        try:
            with BundleFile(path) as file:
                file.check()  # made so, it would read as damage to whoever repeats the audit
                return says(show(file, self._begin))
        except (AuditMismatch, Unreadable) as error:
            raise Malformed(f"no bundle of evidence: {error.message}", **error.data) from error


def says(shown: Shown) -> BundleSays:
    """What the market needs to know of papers that hold."""
    papers, report = shown.papers, shown.papers.report.claim
    return BundleSays(
        papers.domain,
        shown.record.job,
        shown.case.subject,
        report.peer,
        report.digest(),
        tuple(sorted({kept_digest(item) for item in _kept(papers)})),
    )


def _kept(papers: Papers) -> Iterator[Kept]:
    """All of it that a job keeps, but for the spec, whose digest is the job's name."""
    yield papers.opening
    yield papers.outside
    yield from papers.leases
    yield papers.report.signed
    claim = papers.claim
    yield claim.closed
    if claim.repeated is not None:
        yield claim.repeated.signed
    if isinstance(claim, ShownWork):
        yield claim.beacon
        yield claim.work.signed
    else:
        yield claim.bucket
        yield from claim.claims
