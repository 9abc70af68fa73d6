"""Blobs of a corpus in memory, or in a folder."""

from collections.abc import Mapping
from pathlib import Path

from contracts.terms.errors import NotFound
from contracts.terms.ids import Digest


class MemoryBlobs:
    """Satisfies `BlobSource` by a dict."""

    def __init__(self, blobs: Mapping[Digest, bytes]) -> None:
        self._blobs = blobs

    def fetch(self, digest: Digest) -> bytes:
        """See `BlobSource.fetch`."""
        if digest not in self._blobs:
            raise NotFound(f"no blob {digest.hex()}")
        return self._blobs[digest]

    def fetch_range(self, digest: Digest, start: int, end: int) -> bytes:
        """See `BlobSource.fetch_range`."""
        return self.fetch(digest)[start:end]


class FolderBlobs:
    """A folder of files named by the hexadecimal digest of their bytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fetch(self, digest: Digest) -> bytes:
        """See `BlobSource.fetch`."""
        try:
            return (self._folder / digest.hex()).read_bytes()
        except FileNotFoundError as error:
            raise NotFound(f"no blob {digest.hex()}") from error

    def fetch_range(self, digest: Digest, start: int, end: int) -> bytes:
        """See `BlobSource.fetch_range`."""
        return self.fetch(digest)[start:end]
