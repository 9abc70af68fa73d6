"""Blobs as files: streamed, hashed on the way, visible whole or not at all.

A file lies at `aa/<digest hex>` of the folder. It is written under a name of its own, synced, and
renamed only if its bytes hash to its name; a crash leaves drafts that a later start removes.
"""

import asyncio
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from contracts.disk import sync
from contracts.terms.digest import BlobHasher
from contracts.terms.errors import NotFound, ServiceUnreachable, TooLarge, WrongBytes
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis

CHUNK = 2**18
NAME = re.compile("[0-9a-f]{64}")
"""How a blob is called where it is stored."""


class FileBlobs:
    """`BlobStore` in a folder.

    Args:
        folder: Made when it is needed.
        keep_free: Bytes of its disk that blobs leave to others.
    """

    def __init__(self, folder: Path, *, keep_free: int = 0) -> None:
        self._folder, self._keep_free = folder, keep_free
        self._under_way: set[Path] = set()  # drafts that this process writes

    async def prepare(self, *, older_than_seconds: float) -> None:
        """See `BlobStore.prepare`."""
        await asyncio.to_thread(self._prepare, older_than_seconds)

    def _prepare(self, older_than_seconds: float) -> None:
        with _disk():
            self._drafts.mkdir(parents=True, exist_ok=True)
            for draft in self._drafts.iterdir():
                if _age_seconds(draft) > older_than_seconds:
                    draft.unlink(missing_ok=True)

    async def put(self, name: Digest, chunks: AsyncIterator[bytes], *, max_bytes: int) -> int:
        """See `BlobStore.put`."""
        self._drafts.mkdir(parents=True, exist_ok=True)
        draft = self._drafts / f"{name.hex()}.{secrets.token_hex(4)}"
        self._under_way.add(draft)
        try:
            with open(draft, "xb") as file:
                size = await _write(file, checked(name, chunks, max_bytes=max_bytes))
            await asyncio.to_thread(self._publish, draft, self._path(name))
        except OSError as error:  # no space, no permission
            raise ServiceUnreachable(f"blob store: {error.strerror}") from error
        finally:
            draft.unlink(missing_ok=True)
            self._under_way.discard(draft)
        return size

    async def size(self, name: Digest) -> int | None:
        """See `BlobStore.size`."""
        with _disk(), suppress(FileNotFoundError):
            return self._path(name).stat().st_size
        return None

    async def free_bytes(self) -> int | None:
        """See `BlobStore.free_bytes`."""
        with _disk():
            self._folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self._folder).free
            # Not those of a crash or of another process: too little is safe, too much is not.
            under_way = sum(_size_of(draft) for draft in self._under_way)
            return max(0, free + under_way - self._keep_free)

    async def read(
        self, name: Digest, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """See `BlobStore.read`."""
        with _disk():
            try:
                file = open(self._path(name), "rb")  # noqa: SIM115  # closed below
            except FileNotFoundError as error:
                raise NotFound("no such blob", digest=name.hex()) from error
        with file:
            file.seek(start)
            left = math.inf if end is None else end - start
            while left > 0 and (chunk := await asyncio.to_thread(file.read, int(min(CHUNK, left)))):
                left -= len(chunk)
                yield chunk

    async def names(self, after: Digest) -> AsyncIterator[tuple[Digest, UnixMillis]]:
        """See `BlobStore.names`."""
        for number in range(after[0], 256):
            for name, stored_at in await asyncio.to_thread(self._names, f"{number:02x}"):
                if name > after:
                    yield name, stored_at

    def _names(self, first: str) -> list[tuple[Digest, UnixMillis]]:
        """Those whose names begin with these two digits."""
        folder = self._folder / first
        # There is none, or a file has just gone: the next look finds the others.
        with _disk(), suppress(FileNotFoundError), os.scandir(folder) as found:
            files = [entry for entry in found if NAME.fullmatch(entry.name) and entry.is_file()]
            return sorted(
                (Digest(bytes.fromhex(file.name)), UnixMillis(file.stat().st_mtime_ns // 10**6))
                for file in files
            )
        return []

    async def remove(self, name: Digest) -> None:
        """See `BlobStore.remove`."""
        with _disk():
            await asyncio.to_thread(self._path(name).unlink, missing_ok=True)

    @property
    def _drafts(self) -> Path:
        return self._folder / "drafts"

    def _path(self, name: Digest) -> Path:
        return self._folder / name.hex()[:2] / name.hex()

    def _publish(self, draft: Path, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(draft, path)
        sync(path.parent)


@contextmanager
def _disk() -> Iterator[None]:
    """What the disk refuses, as our error."""
    try:
        yield
    except OSError as error:  # no space, no permission
        raise ServiceUnreachable(f"blob store: {error.strerror}") from error


def _age_seconds(draft: Path) -> float:
    try:
        return time.time() - draft.stat().st_mtime
    except FileNotFoundError:  # it has just been published
        return 0.0


def _size_of(draft: Path) -> int:
    try:
        return draft.stat().st_size
    except FileNotFoundError:  # not made yet, or published
        return 0


async def checked(
    name: Digest, chunks: AsyncIterator[bytes], *, max_bytes: int
) -> AsyncIterator[bytes]:
    """The chunks, whose end is reached only if they are `name`; raises as `BlobStore.put`."""
    hasher, size = BlobHasher(), 0
    async for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            raise TooLarge(f"more than {max_bytes} bytes", size=size, limit=max_bytes)
        hasher.update(chunk)
        yield chunk
    if hasher.digest() != name:
        raise WrongBytes(
            "these bytes have another name", expected=name.hex(), actual=hasher.digest().hex()
        )


async def _write(file: BinaryIO, chunks: AsyncIterator[bytes]) -> int:
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        await asyncio.to_thread(file.write, chunk)
    file.flush()
    await asyncio.to_thread(os.fsync, file.fileno())
    return size
