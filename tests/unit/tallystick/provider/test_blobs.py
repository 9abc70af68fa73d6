"""Does a peer read no more of a blob than a shard may have? Does publishing stay out of its way?"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.terms.digest import blob_digest
from contracts.terms.errors import Forbidden, TooLarge
from contracts.terms.ids import Digest, StageIndex, StepNumber
from market.bodies.base import MAX_BLOB_BYTES
from tallystick.provider.blobs import MarketArtifacts, MarketBlobs, Midway
from training.tasks import end
from training.worker.run import StateFile

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


# ---------------------------------------------------------------- weights of a job that goes on


class Uploads(MarketArtifacts):
    """Notes what it is to publish, and ends when it is let; a negative step is refused."""

    def __init__(self) -> None:
        self.published = asyncio.Queue[bytes]()
        self.may_end = asyncio.Semaphore(0)

    async def publish(
        self, stage: StageIndex, step: StepNumber, checkpoint: Path, *, turn: int
    ) -> None:
        """See `MarketArtifacts.publish`."""
        self.published.put_nowait(checkpoint.read_bytes())
        await self.may_end.acquire()
        if step < 0:
            raise Forbidden("no member any more")
        self.published.put_nowait(checkpoint.read_bytes())


class Publishing:
    """A `Midway` at work, its uploads, and what it tells."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.uploads = folder, Uploads()
        self.told = list[tuple[str, int]]()
        self.midway = Midway(folder, self.uploads, self._tell)

    def _tell(self, event: str, **fields: Any) -> None:
        self.told.append((event, fields["step"]))

    def take(self, step: int) -> Path:
        """A checkpoint is stored."""
        path = self.folder / f"step-{step}"
        path.write_bytes(str(step).encode())
        self.midway.take(StateFile(StageIndex(0), StepNumber(step), path, 0))
        return path


@contextlib.asynccontextmanager
async def publishing(folder: Path) -> AsyncIterator[Publishing]:
    made = Publishing(folder)
    task = asyncio.create_task(made.midway.run())
    try:
        yield made
    finally:
        await end([task])
    assert not (folder / "publishing").exists()


async def test_midway__upload_is_behind__ends_it_and_skips_to_the_newest(tmp_path: Path) -> None:
    async with publishing(tmp_path) as made:
        first = made.take(10)
        assert await made.uploads.published.get() == b"10"
        first.unlink()  # the worker keeps two
        made.take(20)
        made.take(30)
        made.uploads.may_end.release()

        assert [await made.uploads.published.get() for _ in range(2)] == [b"10", b"30"]

    assert made.told == [("publishing", 10), ("publication_skipped", 20), ("publishing", 30)]


async def test_midway__checkpoint_is_gone_or_refused__is_told_and_the_next_one_is_published(
    tmp_path: Path,
) -> None:
    async with publishing(tmp_path) as made:
        made.uploads.may_end.release()
        made.take(-5)
        assert await made.uploads.published.get() == b"-5"
        made.take(10).unlink()
        while ("publication_failed", 10) not in made.told:
            await asyncio.sleep(0)
        made.take(20)
        assert await made.uploads.published.get() == b"20"

    assert made.told == [
        ("publishing", -5), ("publication_failed", -5), ("publication_failed", 10),
        ("publishing", 20),
    ]  # fmt: skip
