"""What an evidence bundle holds, each byte by its digest.

Invariant: nothing that the file holds is handed out before its digest was computed again, and the
digest stands in a message whose signature was checked (`bundle.check_papers`).
"""

from collections.abc import Callable
from typing import TypeAlias

from contracts.governance.checking import Begin
from contracts.terms.errors import NotFound
from contracts.terms.ids import Digest
from contracts.terms.items import ItemNumber
from contracts.terms.work import Sort
from verification.auditing.bundle import Shown, check_papers, read_papers
from verification.auditing.bundle_file import BLOBS, BundleFile
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
    file.need(shown.wanted, weights=shown.is_replayed)
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

    def rows(self, item: ItemNumber) -> bytes:
        """Inputs and labels of an item, one row after another; raises as `blob`."""
        if item not in self.shown.rows:
            raise NotFound(f"no rows of item {item} are named", item=item)
        return self.blob(self.shown.rows[item])
