"""Shards for a peer: fetched from the market by hash, kept on disk. Synchronous, thread-safe.

The peer's compute thread asks; a market that does not answer is waited for, because the work that
was begun must not be lost to a blip.
"""

import time
from pathlib import Path

import httpx

from contracts.http_clients import by_proxy, client
from contracts.terms.digest import blob_digest
from contracts.terms.errors import NotFound, ServiceUnreachable, TooLarge, WrongBytes
from contracts.terms.ids import Digest
from market.bodies.base import API_PREFIX, MAX_BLOB_BYTES
from tallystick.files import replace_file

_PATIENCE_SECONDS = 300.0
_PAUSE_SECONDS = 0.25


class MarketBlobs:
    """Satisfies `training.data.loading.BlobSource`."""

    def __init__(
        self, market: str, folder: Path, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._market = market
        self._http = client(
            market,
            base_url=market.rstrip("/") + API_PREFIX,
            timeout=30.0,
            transport=transport,
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def fetch(self, digest: Digest) -> bytes:
        """The blob of this name.

        Raises:
            NotFound: the market does not hold it.
            TooLarge: no shard has as many bytes; they are not read.
            WrongBytes: it answered with other bytes.
            ServiceUnreachable: no answer for five minutes.
        """
        path = self._folder / digest.hex()
        if path.exists() and blob_digest(data := path.read_bytes()) == digest:
            return data
        data = self._download(digest)
        replace_file(path, data, durable=False)
        return data

    def _download(self, digest: Digest) -> bytes:
        ends = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return self._get(digest)
            except ServiceUnreachable:
                if time.monotonic() > ends:
                    raise
                time.sleep(_PAUSE_SECONDS)

    def _get(self, digest: Digest) -> bytes:
        try:
            with self._http.stream("GET", f"/blobs/{digest.hex()}") as answer:
                if answer.status_code == httpx.codes.NOT_FOUND:
                    raise NotFound(f"the market has no blob {digest.hex()}")
                if not answer.is_success:
                    raise ServiceUnreachable(
                        f"blob {digest.hex()}: HTTP {answer.status_code}{by_proxy(self._market)}"
                    )
                data = _read(answer, digest)
        except httpx.HTTPError as error:
            raise ServiceUnreachable(
                f"blob {digest.hex()}: {error!r}{by_proxy(self._market)}"
            ) from error
        if (actual := blob_digest(data)) != digest:
            raise WrongBytes(f"blob {digest.hex()}", expected=digest, actual=actual)
        return data


def _read(answer: httpx.Response, digest: Digest) -> bytes:
    """The body; a poster may name any blob, and the market holds larger ones."""
    data = bytearray()
    for piece in answer.iter_bytes():
        data += piece
        if len(data) > MAX_BLOB_BYTES:
            raise TooLarge(
                f"blob {digest.hex()} has more than {MAX_BLOB_BYTES} bytes", limit=MAX_BLOB_BYTES
            )
    return bytes(data)
