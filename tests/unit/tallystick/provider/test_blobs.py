"""Does a peer read of a blob no more than a shard may have?"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from contracts.terms.digest import blob_digest
from contracts.terms.errors import TooLarge
from contracts.terms.ids import Digest
from market.bodies.base import MAX_BLOB_BYTES
from tallystick.provider.blobs import MarketBlobs

PIECE = bytes(2**20)


class Market:
    """Answers with so many pieces; counts those that were read."""

    def __init__(self, num_pieces: int) -> None:
        self.num_pieces, self.num_read = num_pieces, 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Any blob."""
        return httpx.Response(200, content=self._pieces())

    def _pieces(self) -> Iterator[bytes]:
        for _ in range(self.num_pieces):
            self.num_read += 1
            yield PIECE


def blobs_of(market: Market, folder: Path) -> MarketBlobs:
    return MarketBlobs("http://market", folder, transport=httpx.MockTransport(market.answer))


def test_fetch__blob_that_is_larger_than_any_shard__is_not_read_to_its_end(tmp_path: Path) -> None:
    market = Market(2048)

    with pytest.raises(TooLarge):
        blobs_of(market, tmp_path).fetch(Digest(bytes(32)))

    assert market.num_read <= MAX_BLOB_BYTES // len(PIECE) + 1


def test_fetch__shard__is_read_once_and_kept(tmp_path: Path) -> None:
    market = Market(3)
    blobs = blobs_of(market, tmp_path)
    name = blob_digest(3 * PIECE)

    assert [blobs.fetch(name), blobs.fetch(name)] == 2 * [3 * PIECE]

    assert market.num_read == 3


@pytest.mark.parametrize("status", [200, 206])
def test_fetch_range__server_that_knows_ranges_or_none__is_the_range(
    status: int, tmp_path: Path
) -> None:
    data = bytes(range(100))

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["range"] == "bytes=7-10"
        return httpx.Response(status, content=data[7:11] if status == 206 else data)

    blobs = MarketBlobs("http://market", tmp_path, transport=httpx.MockTransport(answer))

    assert blobs.fetch_range(Digest(bytes(32)), 7, 11) == data[7:11]
    assert list(tmp_path.iterdir()) == []
