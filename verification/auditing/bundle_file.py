"""How an evidence bundle lies on disk: a zip of papers, weights, and tensors by their digests.

    bundle.msgpack      the signed part, see `bundle`
    weights             the file that the replay was done on, if one was
    blobs/<digest hex>  parts of the gradient and rows, as wire bytes; boundary tensors as they are
                        digested, with dtype and shape: one that was bound may have any

Members are stored, sorted by name, and have one time, so equal contents are equal bytes. A file
under its final name is whole (written aside, synced, renamed, folder synced).

Reading trusts nothing: whatever is no such zip, or was damaged, raises `Unreadable`; what it holds
and does not fit raises `AuditMismatch`. No member is longer than its bound in memory. Digests are
for whoever knows what the bytes spell (`bundle_bytes`). Units: bytes.
"""

import os
import shutil
import struct
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from contracts.disk import sync
from contracts.terms.errors import NotFound, Refused, TooLarge, Unreadable
from contracts.terms.ids import Digest
from verification.auditing.bundle import MAX_BUNDLE_BYTES, MAX_PAPERS_BYTES
from verification.reading import damaged, mismatch, require

MAX_BLOB_BYTES = 256 * 2**20
"""More than what peers send in one call (`contracts.terms.chunks.MAX_CHUNK_BYTES`)."""
MAX_MEMBERS = 65_535

PAPERS, WEIGHTS, BLOBS = "bundle.msgpack", "weights", "blobs/"
_TIME = (1980, 1, 1, 0, 0, 0)  # the first that a zip can name
_UNIX = 3
_START = b"PK\x03\x04"
_END = struct.Struct("<4s4H2LH")  # the record that ends a zip without a comment
_LOCATOR_BYTES = 20  # of the 64-bit record that may stand before it
_MOST_PER_NAME = 256  # bytes of the directory
_AT_A_TIME = 2**20


def write_bundle(
    path: Path, papers: bytes, weights: Path | None, blobs: Mapping[Digest, Path]
) -> int:
    """Write a bundle, on disk when this returns; its size.

    Raises:
        TooLarge: over `MAX_BUNDLE_BYTES`, `MAX_MEMBERS` or `MAX_PAPERS_BYTES`.
        OSError: the disk is full or cannot be written; nothing is left under `path`.
    """
    files = {f"{BLOBS}{name.hex()}": file for name, file in blobs.items()}
    if weights is not None:
        files[WEIGHTS] = weights
    size = len(papers) + sum(file.stat().st_size for file in files.values())
    if size > MAX_BUNDLE_BYTES or len(files) >= MAX_MEMBERS or len(papers) > MAX_PAPERS_BYTES:
        raise TooLarge(f"{size} bytes are more than a bundle has", size=size)
    draft = path.with_name(f".{path.name}.new")
    try:
        with draft.open("wb") as file:
            _write_zip(file, papers, files)
            file.flush()
            os.fsync(file.fileno())
        size = draft.stat().st_size
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync(path.parent)
    sync(path.parent.parent)  # which may know the folder only since now
    return size


def _write_zip(file: BinaryIO, papers: bytes, files: Mapping[str, Path]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=False) as archive:
        for name in sorted((PAPERS, *files)):
            about = zipfile.ZipInfo(name, _TIME)
            about.create_system, about.external_attr = _UNIX, 0o600 << 16
            if name == PAPERS:
                archive.writestr(about, papers)
                continue
            about.file_size = files[name].stat().st_size
            with files[name].open("rb") as source, archive.open(about, "w") as member:
                shutil.copyfileobj(source, member, _AT_A_TIME)


class BundleFile:
    """A bundle that somebody else made. `with` closes it."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            NotFound: no such file. Refused: it cannot be read. TooLarge: larger than any bundle.
            Unreadable: it is no bundle, or a damaged one.
        """
        try:
            if path.exists() and not path.is_file():  # a device may never end
                raise Refused(f"cannot read {path}: it is no file")
            self._file = path.open("rb")
        except FileNotFoundError as error:
            raise NotFound(f"no bundle {path}") from error
        except OSError as error:
            raise Refused(f"cannot read {path}: {error.strerror}") from error
        try:
            size = path.stat().st_size
            if size > MAX_BUNDLE_BYTES + MAX_MEMBERS * _MOST_PER_NAME:
                raise TooLarge(f"{path} is larger than any bundle", limit=MAX_BUNDLE_BYTES)
            _check_end(self._file, size)
            with _readable():
                self._zip = zipfile.ZipFile(self._file)
            self._members = _members_of(self._zip)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._zip.close()
        self._file.close()

    def papers(self) -> bytes:
        """Its signed part, as bytes; raises AuditMismatch, Unreadable."""
        require(PAPERS in self._members, PAPERS, "is missing")
        return self._read(PAPERS, MAX_PAPERS_BYTES)

    def need(self, blobs: Collection[Digest], *, weights: bool) -> None:
        """Refuse a bundle that does not hold exactly these.

        Raises:
            AuditMismatch: something is missing, or too many; data: `path`.
        """
        wanted = {PAPERS, *(f"{BLOBS}{name.hex()}" for name in blobs)}
        if weights:
            wanted.add(WEIGHTS)
        for name in sorted(wanted ^ self._members.keys()):
            mismatch(name, "is missing" if name in wanted else "belongs to no such bundle")

    def blob(self, name: Digest) -> bytes:
        """Bytes that claim this digest; raises AuditMismatch, Unreadable."""
        return self._read(f"{BLOBS}{name.hex()}", MAX_BLOB_BYTES)

    def check(self) -> None:
        """Read all of it once; raises Unreadable where a checksum does not hold."""
        with _readable():
            if (name := self._zip.testzip()) is not None:
                raise Unreadable(f"the bundle was changed on its way ({name}): fetch it again")

    def copy_weights(self, to: Path) -> None:
        """Write the weights to a file of their own; raises Unreadable, OSError."""
        with to.open("wb") as target, _readable(), self._zip.open(WEIGHTS) as member:
            shutil.copyfileobj(member, target, _AT_A_TIME)

    def _read(self, name: str, most: int) -> bytes:
        about = self._members.get(name)
        if about is None:
            mismatch(name, "is missing")
        require(about.file_size <= most, name, f"more than {most} bytes")
        with _readable():
            return self._zip.read(about)


@contextmanager
def _readable() -> Iterator[None]:
    """What the zip module finds wrong came on the way: each member has a checksum."""
    try:
        yield
    except (zipfile.BadZipFile, EOFError, RuntimeError, ValueError, struct.error) as error:
        raise Unreadable(f"the bundle was changed on its way ({error}): fetch it again") from error


def _check_end(file: BinaryIO, size: int) -> None:
    """Refuse a directory that would take much memory, before it is read."""
    head, before = file.read(_MOST_PER_NAME), _END.size + _LOCATOR_BYTES
    if not head.startswith(_START):
        damaged(head)
    file.seek(max(0, size - before))
    locator, tail = file.read(before - _END.size), file.read(_END.size)
    mark, _, _, _, members, directory, _, comment = _END.unpack(tail.rjust(_END.size, b"\0"))
    if mark != b"PK\x05\x06":
        raise Unreadable(f"the bundle is cut or longer than written ({size} bytes): fetch it again")
    is_ours = not comment and not locator.startswith(b"PK\x06\x07")
    _need(is_ours and directory <= (members + 1) * _MOST_PER_NAME)


def _members_of(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    for about in archive.infolist():
        is_plain = about.compress_type == zipfile.ZIP_STORED and not about.flag_bits & 1
        is_plain &= about.file_size == about.compress_size
        _need(is_plain and about.filename not in found)
        found[about.filename] = about
    return found


def _need(is_as_written: bool) -> None:
    if not is_as_written:
        raise Unreadable(
            "the file is a zip that was packed by something else: unpack it if it holds a bundle, "
            "or fetch the bundle again"
        )
