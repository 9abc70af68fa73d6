"""Whose blobs they are: charged before they come, given back when they do not."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from contracts.terms.amounts import NOTHING
from contracts.terms.digest import blob_digest
from contracts.terms.errors import DeadlineExceeded, ServiceUnreachable, TooLarge
from contracts.terms.ids import Address, Digest, SessionKey
from market.adapters.blobs import FileBlobs
from market.domain.limits import BYTES_PER_PARAMETER, BlobBounds
from market.domain.sizes import parameters_of
from market.service import store_blob as storing
from market.service.leases import end
from market.service.ports import BlobStore
from market.service.rows import (
    AuditBondRow,
    BlobOwnerRow,
    BlobUploadRow,
    BlobUseRow,
    LeaseRow,
)
from market.service.session import account_of_session
from market.service.store_blob import EVERYBODY, Upload, patience_seconds, store_blob, used_by
from tests.support.history import make_wallet
from tests.support.market_world import CEILING, DEVICE, World, market_spec, one_chunk

ANN, EVE = make_wallet("ann").account, make_wallet("eve").account
KIB = 2**10
TEN = BlobBounds(anybody=40 * KIB, known=80 * KIB, reserve=100 * KIB)
"""Room for ten blobs of one block, or for twenty."""


def blob(number: int, size: int = 4 * KIB) -> bytes:
    return number.to_bytes(4, "big") + bytes(size - 4)


async def put(world: World, data: bytes, by: Address = ANN) -> None:
    """As the route does."""
    await put_chunks(world, one_chunk(data), blob_digest(data), by, len(data))


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


@pytest.fixture(autouse=True)
def bounds(world: World) -> None:
    world.blob_bounds = TEN


# ------------------------------------------------------------------------------------------ quotas


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


async def test_store_blob__process_died_on_the_way__next_upload_of_anybody_gives_its_bytes_back(
    world: World,
) -> None:
    async with world.new_work() as work:
        lost = BlobUploadRow(0, ANN, blob_digest(blob(1)), 40 * KIB, world.now)
        await work[BlobUploadRow].add(lost)
        await work[BlobUseRow].put_all([BlobUseRow(each, 40 * KIB) for each in (ANN, EVERYBODY)])
    with pytest.raises(TooLarge):  # it may still be on its way
        await put(world, blob(2))
    world.wait(round(2 * patience_seconds(40 * KIB)) + 1)

    await put(world, blob(2), by=EVE)

    assert await used(world) == 0


# -------------------------------------------------------------------------------------------- disk


async def test_store_blob__disk_is_nearly_full__strangers_leave_the_rest_to_who_has_stake(
    world: World,
) -> None:
    world.chain.give_tokens(EVE, 10**6)
    world.chain.deposit(EVE, 10**6)
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
    world.chain.deposit(ANN, 10**6)
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


# ------------------------------------------------------------------------------------ whose cost


async def test_session_key__of_an_auditor_who_has_another_by_now__is_still_its_own(
    world: World,
) -> None:
    key = await world.audit("out1")
    account = make_wallet("out1").account
    async with world.new_work() as work:
        job, now = market_spec().job(), world.now
        listed = AuditBondRow(job, account, key, DEVICE, CEILING, NOTHING, now, listed=NOTHING)
        await work[AuditBondRow].add(listed)
    assert await world.audit("out1", key="another") != key

    assert await account_of_session(key, world.new_reading()) == account
    assert await account_of_session(SessionKey(bytes(32)), world.new_reading()) is None
