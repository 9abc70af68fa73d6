"""Whose blobs they are: charged before they come, given back when they do not."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from contracts.terms.digest import blob_digest
from contracts.terms.errors import (
    DeadlineExceeded,
    Malformed,
    ServiceUnreachable,
    TooLarge,
    WrongBytes,
)
from contracts.terms.ids import Address, Digest, SessionKey
from contracts.terms.moments import UnixMillis
from market.adapters.blobs import FileBlobs
from market.api import app as market_app
from market.domain.blob_quotas import BYTES_PER_PARAMETER, BlobBounds
from market.domain.sizes import parameters_of
from market.service import store_blob as storing
from market.service.leases import end
from market.service.ports import BlobStore, UnitOfWork
from market.service.rows import (
    NOTHING,
    BlobOwnerRow,
    BlobUploadRow,
    BlobUseRow,
    LeaseRow,
    ListedAuditorRow,
)
from market.service.session import account_of_session
from market.service.store_blob import (
    EVERYBODY,
    Upload,
    patience_seconds,
    store_blob,
    used_by,
)
from market.settings import Settings
from tests.integration.market.client import ON_MEMORY
from tests.support.history import make_wallet
from tests.support.market_world import DEVICE, World, market_spec, one_chunk

ANN, EVE = make_wallet("ann").account, make_wallet("eve").account
KIB = 2**10
TEN = BlobBounds(anybody=40 * KIB, known=80 * KIB, reserve=100 * KIB)
"""Room for ten blobs of one block, or for twenty."""


def blob(number: int, size: int = 4 * KIB) -> bytes:
    return number.to_bytes(4, "big") + bytes(size - 4)


async def put(world: World, data: bytes, by: Address = ANN, size: int | None = None) -> None:
    """As the route does."""
    await put_chunks(world, one_chunk(data), blob_digest(data), by, size or len(data))


async def put_chunks(
    world: World,
    chunks: AsyncIterator[bytes],
    name: Digest,
    by: Address,
    size: int,
    blobs: BlobStore | None = None,
) -> None:
    await store_blob(
        Upload(by, name, size),
        chunks,
        now=world.now,
        bounds=world.blob_bounds,
        work=world.new_work(),
        blobs=blobs or world.blobs,
        uploads=world.uploads,
    )


async def used(world: World, account: Address = ANN) -> int:
    """What the account is charged for, in KiB; checked against its blobs and uploads."""
    async with world.new_work() as work:
        owned = await work[BlobOwnerRow].where()
        coming = await work[BlobUploadRow].where()
        sums = {each: await used_by(each, work) for each in (account, EVERYBODY)}
    charges = [(row.account, row.num_bytes) for row in owned]
    charges += [(row.account, row.num_bytes) for row in coming]
    assert sums[account] == sum(size for of, size in charges if of == account)
    assert sums[EVERYBODY] == sum(size for _, size in charges)
    return sums[account] // KIB


async def num_stored(world: World, datas: list[bytes]) -> int:
    found = [await world.blobs.size(blob_digest(data)) for data in datas]
    return sum(size is not None for size in found)


@pytest.fixture(autouse=True)
def bounds(world: World) -> None:
    world.blob_bounds = TEN


# ------------------------------------------------------------------------------------------ quotas


async def test_store_blob__many_at_once__are_stored_up_to_the_quota_and_no_further(
    world: World,
) -> None:
    datas = [blob(number) for number in range(16)]

    ended = await asyncio.gather(*(put(world, each) for each in datas), return_exceptions=True)

    assert [type(each) for each in ended if each is not None] == [TooLarge] * 6
    assert await num_stored(world, datas) == 10
    assert await used(world) == 40


async def test_store_blob__one_blob_many_times_at_once__is_charged_once_in_the_end(
    world: World,
) -> None:
    await asyncio.gather(*(put(world, blob(1)) for _ in range(8)))

    assert await used(world) == 4


async def test_store_blob__is_here__costs_nobody_anything(world: World) -> None:
    await put(world, blob(1))
    await put(world, blob(1))
    await put(world, blob(1), by=EVE)

    assert (await used(world), await used(world, EVE)) == (4, 0)


@ON_MEMORY
async def test_store_blob__one_byte__is_charged_a_block(world: World) -> None:
    await put(world, b"x")

    assert await used(world) == 4


@ON_MEMORY
async def test_store_blob__stake_is_there__quota_is_larger(world: World) -> None:
    world.chain.give_tokens(ANN, 10**6)
    for number in range(10):
        await put(world, blob(number))
    with pytest.raises(TooLarge, match=r"stake, or a paid job, of 1\.0+ tokens"):
        await put(world, blob(10))

    world.chain.stake(ANN, 10**6 - 1)
    await world.sync()
    with pytest.raises(TooLarge):
        await put(world, blob(10))
    world.chain.stake(ANN, 1)
    await world.sync()
    for number in range(10, 20):
        await put(world, blob(number))
    with pytest.raises(TooLarge, match="may have 81920"):
        await put(world, blob(20))

    assert await used(world) == 80


async def test_store_blob__job_is_paid_for__its_poster_has_room_for_its_model(
    world: World,
) -> None:
    spec = market_spec()
    room = 80 * KIB + BYTES_PER_PARAMETER * parameters_of(spec)
    large = blob(1, (room - 4 * KIB) // (4 * KIB) * 4 * KIB)
    await world.register()
    await world.post(spec)
    with pytest.raises(TooLarge, match="may have 40960"):  # a draft is worth nothing
        await put(world, large, by=spec.poster)
    await world.tick()

    await put(world, large, by=spec.poster)
    await put(world, blob(2), by=spec.poster)
    with pytest.raises(TooLarge, match=f"may have {room}"):
        await put(world, blob(3), by=spec.poster)


@pytest.mark.parametrize("is_over", [False, True])
async def test_store_blob__under_a_lease__has_room_for_its_model_also_when_it_is_over(
    world: World, is_over: bool
) -> None:
    maker = await world.start_job()
    (member,) = maker.members
    account = member.wallet.account
    if is_over:
        async with world.new_work() as work:
            (lease,) = await work[LeaseRow].where(account=account)
            await end(lease, "ended", world.now, work)
    large = blob(1, 80 * KIB + BYTES_PER_PARAMETER * parameters_of(maker.spec) // 2)

    await put(world, large, by=account)

    assert await used(world, account) >= 80


# ---------------------------------------------------------------------- uploads that are not stored


async def broken(data: bytes) -> AsyncIterator[bytes]:
    yield data[:10]
    raise Malformed("the body ended early")


@pytest.mark.parametrize("why", ["ends early", "other bytes", "more than announced"])
async def test_store_blob__upload_fails__gives_its_bytes_back(world: World, why: str) -> None:
    data = blob(1)
    with pytest.raises((Malformed, WrongBytes, TooLarge)):
        if why == "ends early":
            await put_chunks(world, broken(data), blob_digest(data), ANN, len(data))
        elif why == "other bytes":
            await put_chunks(world, one_chunk(blob(2)), blob_digest(data), ANN, len(data))
        else:
            await put(world, data, size=len(data) - 1)

    assert await used(world) == 0
    assert await world.blobs.size(blob_digest(data)) is None


@ON_MEMORY
async def test_store_blob__takes_too_long__is_ended_and_gives_its_bytes_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    monkeypatch.setattr(storing, "GRACE_SECONDS", 0)
    with pytest.raises(DeadlineExceeded):
        await put_chunks(world, silent(), blob_digest(b"xy"), ANN, 2)

    assert await used(world) == 0


@pytest.mark.parametrize("was_stored", [False, True])
async def test_store_blob__process_died_on_the_way__is_settled_by_the_next_upload_of_anybody(
    world: World, was_stored: bool
) -> None:
    name = blob_digest(blob(1))
    async with world.new_work() as work:
        await work[BlobUploadRow].add(BlobUploadRow(0, ANN, name, 40 * KIB, world.now))
        await work[BlobUseRow].put_all([BlobUseRow(each, 40 * KIB) for each in (ANN, EVERYBODY)])
    if was_stored:
        world.blobs.blobs[name] = blob(1)
    with pytest.raises(TooLarge):  # it may still be on its way
        await put(world, blob(2))
    world.wait(round(2 * patience_seconds(40 * KIB)) + 1)

    await put(world, blob(3), by=EVE)

    assert await used(world) == (40 if was_stored else 0)


async def test_store_blob__process_died_on_the_way__the_same_upload_replaces_it(
    world: World,
) -> None:
    name = blob_digest(blob(1))
    async with world.new_work() as work:
        await work[BlobUploadRow].add(BlobUploadRow(0, ANN, name, 40 * KIB, world.now))
        await work[BlobUseRow].put_all([BlobUseRow(each, 40 * KIB) for each in (ANN, EVERYBODY)])

    await put(world, blob(1))

    assert await used(world) == 4


async def silent(begun: asyncio.Semaphore) -> AsyncIterator[bytes]:
    begun.release()
    await asyncio.Event().wait()
    yield b""


@ON_MEMORY
async def test_store_blob__same_upload_is_under_way_here__both_are_charged_and_few_may_be(
    world: World,
) -> None:
    world.blob_bounds = BlobBounds()
    begun, name = asyncio.Semaphore(0), blob_digest(blob(1))
    uploads = [
        asyncio.create_task(put_chunks(world, silent(begun), name, ANN, 4 * KIB)) for _ in range(32)
    ]
    for _ in uploads:
        await begun.acquire()

    assert await used(world) == 32 * 4
    with pytest.raises(TooLarge, match="32 uploads under way"):
        await put(world, blob(1))
    await put(world, blob(2), by=EVE)
    for each in uploads:
        each.cancel()
    await asyncio.gather(*uploads, return_exceptions=True)
    assert await used(world) == 0


@ON_MEMORY
async def test_store_blob__looks_for_forgotten_uploads_once_a_minute(world: World) -> None:
    await put(world, blob(1), by=EVE)
    long_ago = UnixMillis(world.now - 2000 * round(patience_seconds(4 * KIB)) - 1000)
    async with world.new_work() as work:
        row = BlobUploadRow(0, ANN, blob_digest(blob(9)), 4 * KIB, long_ago)
        await work[BlobUploadRow].add(row)
        await work[BlobUseRow].put(BlobUseRow(ANN, 4 * KIB))
        await work[BlobUseRow].put(BlobUseRow(EVERYBODY, 8 * KIB))

    world.wait(59)
    await put(world, blob(2), by=EVE)
    assert await used(world) == 4
    world.wait(1)
    await put(world, blob(3), by=EVE)
    assert await used(world) == 0


class OneAtATime:
    """A unit of work, which notes how many want a connection at once."""

    def __init__(self, work: UnitOfWork, most: list[int]) -> None:
        self._work, self._most = work, most

    async def __aenter__(self) -> UnitOfWork:
        self._most[0] += 1
        self._most[1] = max(self._most)
        return await self._work.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        await self._work.__aexit__(*error)
        self._most[0] -= 1

    def __getitem__(self, cls: type) -> object:
        return self._work[cls]


async def test_store_blob__many_at_once__one_alone_has_a_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_work, most = world.new_work, [0, 0]
    monkeypatch.setattr(world, "new_work", lambda: OneAtATime(new_work(), most))

    await asyncio.gather(*(put(world, blob(number)) for number in range(8)))

    assert most == [0, 1]


# -------------------------------------------------------------------------------------------- disk


@ON_MEMORY
async def test_store_blob__disk_is_nearly_full__strangers_leave_the_rest_to_who_has_stake(
    world: World,
) -> None:
    world.chain.give_tokens(EVE, 10**6)
    world.chain.stake(EVE, 10**6)
    await world.sync()
    world.blobs.free = 104 * KIB
    await put(world, blob(1))
    world.blobs.free = 100 * KIB
    with pytest.raises(ServiceUnreachable, match=r"stake 1\.0+ tokens, or try later"):
        await put(world, blob(2))
    await put(world, blob(2), by=EVE)
    world.blobs.free = 3 * KIB
    with pytest.raises(ServiceUnreachable, match="no room for 4096 bytes"):
        await put(world, blob(3), by=EVE)

    assert (await used(world), await used(world, EVE)) == (4, 4)


async def test_store_blob__many_accounts_at_once__together_leave_the_reserve(
    world: World,
) -> None:
    world.blobs.free = 112 * KIB
    crowd = [make_wallet(f"eve {number}").account for number in range(8)]
    gate = asyncio.Event()

    async def slow(data: bytes) -> AsyncIterator[bytes]:
        await gate.wait()
        yield data

    async def open_gate(uploads: list["asyncio.Task[None]"]) -> None:
        while sum(each.done() for each in uploads) < 5:
            await asyncio.sleep(0)
        gate.set()

    uploads = [
        asyncio.create_task(
            put_chunks(world, slow(blob(at)), blob_digest(blob(at)), account, 4 * KIB)
        )
        for at, account in enumerate(crowd)
    ]
    await open_gate(uploads)
    ended = await asyncio.gather(*uploads, return_exceptions=True)

    assert [type(each) for each in ended if each is not None] == [ServiceUnreachable] * 5
    assert await num_stored(world, [blob(at) for at in range(8)]) == 3


@ON_MEMORY
async def test_store_blob__strangers_trickle_what_they_announced__staked_account_has_the_reserve(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk_usage(folder: Path) -> SimpleNamespace:
        written = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
        return SimpleNamespace(free=264 * KIB - written)

    async def trickle() -> AsyncIterator[bytes]:
        ready.release()
        await gate.wait()
        yield bytes(30 * KIB)
        ready.release()
        await asyncio.Event().wait()

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    world.chain.give_tokens(ANN, 10**6)
    world.chain.stake(ANN, 10**6)
    await world.sync()
    blobs, ready, gate = FileBlobs(tmp_path), asyncio.Semaphore(0), asyncio.Event()
    crowd = [make_wallet(f"eve {number}").account for number in range(4)]
    uploads = [
        asyncio.create_task(
            put_chunks(world, trickle(), blob_digest(blob(at)), account, 40 * KIB, blobs)
        )
        for at, account in enumerate(crowd)
    ]
    for _ in crowd:  # all have announced
        await ready.acquire()
    gate.set()
    for _ in crowd:  # and sent a part
        await ready.acquire()

    await put_chunks(world, one_chunk(b"x"), blob_digest(b"x"), ANN, 1, blobs)

    assert await blobs.free_bytes() == 264 * KIB - 1
    for each in uploads:
        each.cancel()
    await asyncio.gather(*uploads, return_exceptions=True)
    assert await used(world, crowd[0]) == 0


@ON_MEMORY
async def test_api__starts__removes_drafts_that_no_upload_can_still_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AssembledError(Exception):
        pass

    async def assemble(*_: object, **__: object) -> None:
        raise AssembledError

    monkeypatch.setattr(market_app, "assemble", assemble)
    settings = Settings.model_construct(blobs=tmp_path / "blobs")
    drafts = settings.blobs / "drafts"
    drafts.mkdir(parents=True)
    for name, hours in (("old", 19), ("young", 18)):
        (drafts / name).write_bytes(b"x")
        os.utime(drafts / name, times=(time.time() - 3600 * hours,) * 2)

    app = market_app.app_of(settings)
    with pytest.raises(AssembledError):
        async with app.router.lifespan_context(app):
            pass

    assert [each.name for each in drafts.iterdir()] == ["young"]


@ON_MEMORY
async def test_bounds__of_another_market__are_what_its_settings_say(world: World) -> None:
    world.blob_bounds = replace(TEN, anybody=8 * KIB)

    await put(world, blob(1, 8 * KIB))

    with pytest.raises(TooLarge, match="may have 8192"):
        await put(world, blob(2))


# ------------------------------------------------------------------------------------ whose cost


@ON_MEMORY
async def test_session_key__of_an_auditor_who_has_another_by_now__is_still_its_own(
    world: World,
) -> None:
    key = await world.audit("out1")
    account = make_wallet("out1").account
    async with world.new_work() as work:
        listed = ListedAuditorRow(market_spec().job(), account, key, DEVICE, NOTHING)
        await work[ListedAuditorRow].add(listed)
    assert await world.audit("out1", key="another") != key

    assert await account_of_session(key, world.new_reading()) == account
    assert await account_of_session(SessionKey(bytes(32)), world.new_reading()) is None
