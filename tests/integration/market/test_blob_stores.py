"""Every `BlobStore` keeps what its port promises: one in a folder, one in a bucket of a server."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from importlib.machinery import ModuleSpec
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from contracts.settings import settings_of
from contracts.terms.digest import blob_digest
from contracts.terms.errors import (
    NotFound,
    ServiceUnreachable,
    TooLarge,
    WrongBytes,
    WrongConfiguration,
)
from contracts.terms.ids import Digest
from market import bootstrap
from market import settings as market_settings
from market.adapters import s3_blobs
from market.adapters.blobs import FileBlobs
from market.adapters.bundles import FileBundles
from market.adapters.s3_blobs import PART_BYTES, open_bucket
from market.service.ports import BlobStore
from market.settings import Settings
from tests.integration.market.client import client_of, sdk, signed
from tests.support.history import make_wallet
from tests.support.market_services import run_s3
from tests.support.market_world import CORPUS, SHARDS, World, market_spec, one_chunk

MOTO_BEGAN = datetime(2010, 11, 10, 20, 48, 33, tzinfo=UTC).timestamp()
BUCKETS = map("bucket-{}".format, count())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An S3 server."""
    with run_s3(tmp_path_factory.mktemp("s3")) as url:
        yield url


class Bucket:
    """An empty one of the server, under `folder/`, and what is in it."""

    def __init__(self) -> None:
        self.name, self.s3 = next(BUCKETS), boto3.client("s3")
        self.s3.create_bucket(Bucket=self.name)
        self.url = f"s3://{self.name}/folder"

    def left(self) -> list[str]:
        """What there is, whole or on its way."""
        objects = self.s3.list_objects_v2(Bucket=self.name).get("Contents", [])
        uploads = self.s3.list_multipart_uploads(Bucket=self.name).get("Uploads", [])
        return [each["Key"] for each in (*objects, *uploads)]


def name_server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name it as everybody does."""
    for name, value in {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "ann",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty one."""
    name_server(server, monkeypatch)
    return Bucket()


@pytest.fixture
async def in_bucket(bucket: Bucket) -> AsyncIterator[BlobStore]:
    """A blob store in a bucket."""
    async with AsyncExitStack() as stack:
        yield await open_bucket(bucket.url, stack)


Left = Callable[[], list[str]]


@pytest.fixture(params=["folder", "bucket"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[BlobStore, Left]:
    """A blob store, and what lies in it, also of uploads under way."""
    if request.param == "bucket":
        return request.getfixturevalue("in_bucket"), request.getfixturevalue("bucket").left
    folder = tmp_path / "blobs"
    return FileBlobs(folder), lambda: [str(path) for path in folder.rglob("*") if path.is_file()]


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 100_000):
        yield data[start : start + 100_000]


async def read(blobs: BlobStore, name: Digest, *place: int) -> bytes:
    return b"".join([chunk async for chunk in blobs.read(name, *place)])


# ------------------------------------------------------------------------------------- each of them


@pytest.mark.parametrize("size", [0, 1, 700_000, PART_BYTES, 2 * PART_BYTES + 1])
async def test_blobs__put_in_pieces__come_back_whole_and_in_ranges(
    stored: tuple[BlobStore, Left], size: int
) -> None:
    blobs, left = stored
    data = os.urandom(size)
    name = blob_digest(data)

    for _ in range(2):
        assert await blobs.put(name, pieces(data), max_bytes=len(data)) == len(data)

    assert await blobs.size(name) == len(data)
    assert await read(blobs, name) == data
    middle, end = size // 2, size + 10
    for place in ((0, 1), (1, middle), (middle, end), (middle,), (size,), (end, end + 1)):
        assert await read(blobs, name, *place) == data[slice(*(*place, None)[:2])]
    assert len(left()) == 1


async def test_blobs__other_bytes_or_too_many__leave_nothing(
    stored: tuple[BlobStore, Left],
) -> None:
    blobs, left = stored
    large = bytes(2 * PART_BYTES + 1)
    for data, most, error in (
        (b"those", 100, WrongBytes),
        (b"these", 4, TooLarge),
        (large, len(large), WrongBytes),
        (large, len(large) - 1, TooLarge),
    ):
        name = blob_digest(b"these")
        with pytest.raises(error):
            await blobs.put(name, pieces(data), max_bytes=most)
        with pytest.raises(NotFound):
            await read(blobs, name)
        assert await blobs.size(name) is None

    assert left() == []


async def test_blobs__upload_is_cancelled_or_breaks__leaves_nothing(
    stored: tuple[BlobStore, Left],
) -> None:
    blobs, left = stored
    waits = asyncio.Event()

    async def chunks(*, breaks: bool) -> AsyncIterator[bytes]:
        for _ in range(3):
            yield bytes(PART_BYTES)
        if breaks:
            raise KeyError("the body ended early")
        waits.set()
        await asyncio.Event().wait()

    name = blob_digest(b"never")
    with pytest.raises(KeyError):
        await blobs.put(name, chunks(breaks=True), max_bytes=2**40)
    upload = asyncio.create_task(blobs.put(name, chunks(breaks=False), max_bytes=2**40))
    await waits.wait()
    assert await blobs.size(name) is None
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload

    assert left() == []


async def test_bundles__no_such_blob_or_no_bundle__leave_no_copy(
    stored: tuple[BlobStore, Left], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs, _ = stored
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(copies))
    name = blob_digest(b"no bundle")

    with pytest.raises(NotFound):
        await FileBundles(blobs).read(name)
    await blobs.put(name, one_chunk(b"no bundle"), max_bytes=100)
    with pytest.raises(Exception, match="no bundle of evidence"):
        await FileBundles(blobs).read(name)

    assert list(copies.iterdir()) == []


async def test_names__stored_and_removed__are_listed_in_order_behind_a_name(
    stored: tuple[BlobStore, Left], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    blobs, left = stored
    began = time.time_ns() // 10**6 - 1000  # a bucket tells seconds
    names = sorted([await put(blobs, bytes([number])) for number in range(5)])
    if isinstance(blobs, FileBlobs):
        (tmp_path / "blobs" / names[0].hex()[:2] / "stray").touch()
    else:
        bucket = request.getfixturevalue("bucket")
        bucket.s3.put_object(Bucket=bucket.name, Key=f"folder/{names[0].hex()[:2]}stray")

    for _ in range(2):
        await blobs.remove(names[1])
    listed = [each async for each in blobs.names(Digest(bytes(32)))]

    assert [name for name, _ in listed] == [names[0], *names[2:]]
    assert all(began <= stored_at <= time.time_ns() // 10**6 for _, stored_at in listed)
    assert [name async for name, _ in blobs.names(names[2])] == names[3:]
    assert len(left()) == 5
    assert await blobs.size(names[1]) is None


async def put(blobs: BlobStore, data: bytes) -> Digest:
    await blobs.put(blob_digest(data), one_chunk(data), max_bytes=len(data))
    return blob_digest(data)


async def test_free_bytes__some_are_kept_free__are_not_offered(tmp_path: Path) -> None:
    all_of_it = await FileBlobs(tmp_path).free_bytes()
    assert all_of_it is not None and all_of_it > 2**20
    kept = await FileBlobs(tmp_path, keep_free=all_of_it // 2).free_bytes()
    nothing = await FileBlobs(tmp_path, keep_free=2 * all_of_it).free_bytes()

    assert kept is not None and 0 < kept < 3 * all_of_it // 4
    assert nothing == 0


# ---------------------------------------------------------------------------------- killed, or gone

_PUTS = """
import asyncio, os, sys, time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from contracts.terms.digest import blob_digest
from market.bootstrap import _open_blobs
from types import SimpleNamespace

async def chunks():
    for _ in range(3):
        yield bytes(8 * 2**20)
    print("sent", flush=True)
    await asyncio.Event().wait()

async def main():
    async with AsyncExitStack() as stack:
        settings = SimpleNamespace(blobs=sys.argv[1], blob_keep_free=0)
        blobs = await _open_blobs(settings, stack)
        await blobs.prepare(older_than_seconds=60)
        await blobs.put(blob_digest(b"never"), chunks(), max_bytes=2**40)

asyncio.run(main())
"""


async def test_put__process_is_killed_on_the_way__nothing_is_seen_and_a_later_start_clears_it(
    stored: tuple[BlobStore, Left],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blobs, left = stored
    is_folder = isinstance(blobs, FileBlobs)
    place = str(tmp_path / "blobs") if is_folder else request.getfixturevalue("bucket").url
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PUTS, place, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"sent\n"
    process.send_signal(signal.SIGKILL)
    await process.wait()

    assert await blobs.size(blob_digest(b"never")) is None
    assert len(left()) == 1
    with monkeypatch.context() as patch:
        if not is_folder:  # of which moto says that every upload began then
            patch.setattr("time.time", lambda: MOTO_BEGAN + 30)
        await blobs.prepare(older_than_seconds=60)
    assert len(left()) == 1  # another process may still write it
    await blobs.prepare(older_than_seconds=-60)
    assert left() == []


async def test_prepare__upload_of_others_in_the_bucket__stays(
    bucket: Bucket, in_bucket: BlobStore
) -> None:
    for key in ("folder/other", f"folder/{bytes(32).hex()}"):
        bucket.s3.create_multipart_upload(Bucket=bucket.name, Key=key)
    await in_bucket.prepare(older_than_seconds=-60)

    assert bucket.left() == ["folder/other"]


async def test_names__folder_with_the_name_of_a_blob__is_none(tmp_path: Path) -> None:
    (tmp_path / "00" / bytes(31).hex().ljust(64, "1")).mkdir(parents=True)

    assert [name async for name in FileBlobs(tmp_path).names(Digest(bytes(32)))] == []


async def test_bucket__server_is_away_or_goes__is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = blob_digest(b"never")
    with run_s3(tmp_path) as url:
        name_server(url, monkeypatch)
        bucket = Bucket()
        stack = AsyncExitStack()
        blobs = await open_bucket(bucket.url, stack)
        began = asyncio.Event()
        gone = asyncio.Event()

        async def chunks() -> AsyncIterator[bytes]:
            yield bytes(PART_BYTES + 1)
            began.set()
            await gone.wait()
            yield bytes(PART_BYTES + 1)

        upload = asyncio.create_task(blobs.put(name, chunks(), max_bytes=2**40))
        await began.wait()
    gone.set()

    async with stack:
        for asked in (upload, blobs.size(name), read(blobs, name)):
            with pytest.raises(ServiceUnreachable, match="blob store: "):
                await asked


async def test_bucket__is_not_there__is_unreachable_at_the_start(bucket: Bucket) -> None:
    async with AsyncExitStack() as stack:
        blobs = await open_bucket("s3://another-one", stack)
        with pytest.raises(ServiceUnreachable, match="NoSuchBucket"):
            await blobs.prepare(older_than_seconds=0)


async def test_bucket__too_many_uploads_at_once__one_more_is_refused(
    in_bucket: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    monkeypatch.setattr(s3_blobs, "MAX_UNDER_WAY", 2)
    name = blob_digest(b"xy")
    uploads = [asyncio.create_task(in_bucket.put(name, silent(), max_bytes=2)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(ServiceUnreachable, match="2 uploads at once; try later"):
        await in_bucket.put(name, one_chunk(b"xy"), max_bytes=2)
    for each in uploads:
        each.cancel()
    await asyncio.gather(*uploads, return_exceptions=True)

    assert await in_bucket.put(name, one_chunk(b"xy"), max_bytes=2) == 2


# ------------------------------------------------------------------------------------- the market


async def test_job__its_corpus_lies_in_a_bucket__is_taken_and_read_from_there(
    world: World, in_bucket: BlobStore, bucket: Bucket
) -> None:
    world.blobs = in_bucket  # type: ignore[assignment]  # of a test, else in memory
    await world.register()
    client, poster = sdk(world), make_wallet("poster")
    with pytest.raises(NotFound, match="not in the blob store"):
        await world.post(market_spec())

    for data in CORPUS.values():
        await client.put_blob(data, by=poster)
    job = await world.post(market_spec())

    shard, name = SHARDS[0], blob_digest(SHARDS[0])
    assert job.state == "draft"
    assert len(bucket.left()) == len(CORPUS)
    assert await client.get_blob(name) == shard
    async with client_of(world) as http:
        part = await http.get(f"/blobs/{name.hex()}", headers={"Range": "bytes=5-9"})
        wrong = await http.put(
            f"/blobs/{bytes(32).hex()}",
            content=b"x",
            headers=signed(world, poster, "PUT", f"/blobs/{bytes(32).hex()}", b"x"),
        )
    assert (part.status_code, part.content) == (206, shard[5:10])
    assert wrong.status_code == 422
    assert len(bucket.left()) == len(CORPUS)


# ---------------------------------------------------------------------------------------- settings

GIVEN: dict[str, Any] = {
    "database_url": "x", "redis_url": "x", "rpc_url": "x", "contracts": "x", "keys": "x",
    "home": "x",
}  # fmt: skip


def test_settings__bucket_without_the_extra__is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(market_settings, "find_spec", find_spec)

    with pytest.raises(WrongConfiguration, match=r"pip install 'tallystick\[s3\]'"):
        settings_of(Settings, **GIVEN, blobs="s3://bucket")
    assert settings_of(Settings, **GIVEN, blobs="a/folder").blobs == "a/folder"


@pytest.mark.parametrize("url", ["s3://", "s3:///x", "s3://A_bucket", "s3://b"])
async def test_settings__no_address_of_a_bucket__is_refused(url: str) -> None:
    settings: Any = SimpleNamespace(blobs=url, blob_keep_free=0)
    async with AsyncExitStack() as stack:
        with pytest.raises(WrongConfiguration, match="s3://bucket/prefix"):
            await bootstrap._open_blobs(settings, stack)
