"""Blobs of a corpus in memory."""

from collections.abc import Mapping

from contracts.terms.errors import NotFound
from contracts.terms.ids import Digest


class MemoryBlobs:
    """Satisfies `BlobSource` by a dict."""

    def __init__(self, blobs: Mapping[Digest, bytes]) -> None:
        self._blobs = dict(blobs)

    def fetch(self, digest: Digest) -> bytes:
        """See `BlobSource.fetch`."""
        if digest not in self._blobs:
            raise NotFound(f"no blob {digest.hex()}")
        return self._blobs[digest]
