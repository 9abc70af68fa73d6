"""For all uploads, however they end: nobody is charged for what is not here, or beyond a quota."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.terms.digest import blob_digest
from contracts.terms.errors import Malformed, ServiceUnreachable, TooLarge
from contracts.terms.ids import Address
from market.domain.limits import BLOCK, BlobBounds, charged
from market.service.ports import UnitOfWork
from market.service.rows import BlobOwnerRow, BlobUploadRow, BlobUseRow
from market.service.store_blob import (
    EVERYBODY,
    Upload,
    patience_seconds,
    settle_forgotten,
    store_blob,
)
from tests.support.databases import Database
from tests.support.examples import examples
from tests.support.fakes.market_memory import MemoryBlobs
from tests.support.market_world import World

BOUNDS = BlobBounds(anybody=6 * BLOCK, reserve=4 * BLOCK)
DISK = 16 * BLOCK
LONG = round(2 * patience_seconds(8 * BLOCK)) + 1
"""Seconds after which whatever is still on its way is forgotten."""
ACCOUNTS = tuple(Address(bytes([number]) * 20) for number in (1, 2, 3, 4))


@dataclass(frozen=True)
class Try:
    """An upload, and how it ends."""

    by: Address
    number: int  # of the blob
    size: int
    ends: str


tries = st.builds(
    Try,
    st.sampled_from(ACCOUNTS),
    st.integers(0, 7),
    st.sampled_from((1, BLOCK, 2 * BLOCK + 1, 7 * BLOCK)),
    st.sampled_from(("stored", "stored", "cut", "killed before it came", "killed after")),
)
"""Uploads; `rounds` of them come at the same time, and between two rounds time may pass."""
rounds = st.lists(st.tuples(st.lists(tries, min_size=1, max_size=6), st.booleans()), max_size=6)


class SmallDisk(MemoryBlobs):
    """Of so many bytes."""

    async def free_bytes(self) -> int | None:
        """See `BlobStore.free_bytes`."""
        return DISK - sum(charged(len(data)) for data in self.blobs.values())


class KilledError(Exception):
    """The process is gone."""


class OneTransaction:
    """The unit of work of a process that is killed after its first transaction."""

    def __init__(self, work: UnitOfWork) -> None:
        self._work, self._is_over = work, False

    async def __aenter__(self) -> UnitOfWork:
        if self._is_over:
            raise KilledError
        return await self._work.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        self._is_over = True
        await self._work.__aexit__(*error)

    def __getattr__(self, name: str) -> object:
        return getattr(self._work, name)

    def __getitem__(self, cls: type) -> object:
        return self._work[cls]


async def pieces(data: bytes, ends: str) -> AsyncIterator[bytes]:
    await asyncio.sleep(0)
    yield data[:1]
    if ends in ("cut", "killed before it came"):
        raise Malformed("the body ended early")
    await asyncio.sleep(0)
    yield data[1:]


async def upload(world: World, each: Try) -> None:
    data = bytes([each.number]) * each.size
    work = world.new_work()
    try:
        await store_blob(
            Upload(each.by, blob_digest(data), len(data)),
            pieces(data, each.ends),
            now=world.now,
            bounds=BOUNDS,
            work=OneTransaction(work) if each.ends.startswith("killed") else work,  # type: ignore[arg-type]  # what is not here is the other's
            blobs=world.blobs,
            uploads=world.uploads,
        )
    except (Malformed, TooLarge, ServiceUnreachable, KilledError):
        return


async def check(world: World) -> None:
    """The invariants of `store_blob`."""
    async with world.new_reading() as work:
        owned = await work[BlobOwnerRow].where()
        coming = await work[BlobUploadRow].where()
        uses = {row.account: row.num_bytes for row in await work[BlobUseRow].where()}
    charges = [(row.account, row.num_bytes) for row in owned]
    charges += [(row.account, row.num_bytes) for row in coming]
    for account in ACCOUNTS:
        assert uses.get(account, 0) == sum(size for of, size in charges if of == account)
        assert uses.get(account, 0) <= BOUNDS.anybody
    assert uses.get(EVERYBODY, 0) == sum(size for _, size in charges)
    assert all(charged(len(world.blobs.blobs[row.blob])) == row.num_bytes for row in owned)
    named = {row.blob for row in owned} | {row.blob for row in coming}
    assert named >= set(world.blobs.blobs)
    assert (await world.blobs.free_bytes() or 0) >= BOUNDS.reserve


def test_store_blob__any_uploads_at_once__charges_are_what_is_here_and_within_bounds(
    storage: Database,
) -> None:
    async def run(made: list[tuple[list[Try], bool]]) -> None:
        world = storage.world()
        world.blobs = SmallDisk()
        for together, long_ago in made:
            if long_ago:
                world.wait(LONG)
            await asyncio.gather(*(upload(world, each) for each in together))
            await check(world)
        world.wait(LONG)
        await settle_forgotten(world.now, world.new_work(), world.blobs)
        await check(world)
        async with world.new_reading() as work:
            assert await work[BlobUploadRow].count() == 0

    with asyncio.Runner() as runner:

        @settings(max_examples=examples(20))
        @given(rounds)
        def charged_for_what_is_here(made: list[tuple[list[Try], bool]]) -> None:
            runner.run(run(made))
            storage.empty()

        charged_for_what_is_here()
        runner.run(storage.disconnect())
