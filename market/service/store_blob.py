"""An account stores a blob: it is charged before a byte comes, and gets back what was not stored.

Invariants: of every account, `BlobUseRow` is the sum of its blobs and of its uploads under way, and
never grows beyond its quota; of all uploads under way together, none writes more than it was
charged. One row, of nobody, is held while any of that changes, so uploads at the same time are
judged one after the other. No transaction is open while bytes come.

An upload lasts no longer than its bytes need at `SLOWEST`, so that who announces much and sends
nothing keeps nobody out for long. One that its process did not live to end is settled after twice
that time, by the next one of whomever, or replaced at once by one of the same account and name.
What is stored stays charged until nothing names it any more (`collect_blobs`).
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import lru_cache

from contracts.terms.errors import DeadlineExceeded, ServiceUnreachable, TooLarge
from contracts.terms.ids import Address, Digest
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import decode_signed, expect
from market.bodies.base import MAX_BUNDLE_BYTES
from market.domain.jobs import JobState
from market.domain.limits import (
    STRANGER,
    BlobBounds,
    Standing,
    charged,
    check_disk,
    check_quota,
    check_uploads,
)
from market.domain.sizes import parameters_of
from market.service.ports import BlobStore, UnitOfWork
from market.service.rows import (
    BlobOwnerRow,
    BlobUploadRow,
    BlobUseRow,
    FreeMoneyRow,
    JobRow,
    LeaseRow,
    LimitRow,
)

GRACE_SECONDS = 60
"""For how long an upload may be silent, in all, beside the time that its bytes take."""
SLOWEST = 64 * 2**10
"""Bytes a second: a part of weights (64 MiB) takes 17 minutes, the largest bundle nine hours."""
EVERYBODY = Address(bytes(20))
"""Whose row holds what all have together; it is the one that is held."""

_PAID_FOR = tuple(
    state.value for state in JobState if state not in (JobState.DRAFT, JobState.FAILED)
)
_WORKED = ("active", "silent", "ended")


@dataclass(frozen=True)
class Upload:
    """A blob on its way."""

    by: Address
    name: Digest
    num_bytes: int  # as announced; more are not read


@dataclass
class Uploads:
    """What one process knows of its uploads; of one event loop."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while uploads wait for `EVERYBODY`, so that one of them alone keeps a connection."""
    under_way: set[BlobUploadRow] = field(default_factory=set)

    def is_under_way(self, upload: Upload) -> bool:
        """Whether this process has one of the same account and name."""
        return any(_is_same(row, upload) for row in self.under_way)


async def store_blob(
    upload: Upload,
    chunks: AsyncIterator[bytes],
    *,
    now: UnixMillis,
    bounds: BlobBounds,
    work: UnitOfWork,
    blobs: BlobStore,
    uploads: Uploads,
) -> None:
    """Store what `chunks` yields, at the expense of `upload.by`. One that is here costs nothing.

    Raises:
        TooLarge: the account's quota has no room, it has too many uploads under way, or more comes
            than was announced.
        ServiceUnreachable: the disk has no room, or not for strangers.
        WrongBytes: they hash to something else.
        DeadlineExceeded: they come more slowly than `SLOWEST`.
    """
    if await blobs.size(upload.name) is not None:
        return
    async with uploads.turn:
        await settle_forgotten(now, work, blobs)
        row, is_stored = await _begin(upload, now, bounds, work, blobs, uploads), False
        uploads.under_way.add(row)
    try:
        async with asyncio.timeout(GRACE_SECONDS) as limit:
            paced = _paced(chunks, limit)
            await blobs.put(upload.name, paced, max_bytes=upload.num_bytes)
        is_stored = True
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"a blob comes with {SLOWEST} bytes a second at least, and {GRACE_SECONDS} s beside"
        ) from error
    finally:
        try:
            async with uploads.turn, work:
                await hold_blobs(work)
                await _settle(row, work, is_stored=is_stored)
        finally:
            uploads.under_way.discard(row)


def patience_seconds(num_bytes: int) -> float:
    """How long so many bytes may take to come."""
    return GRACE_SECONDS + num_bytes / SLOWEST


DEAD_SECONDS = 2 * patience_seconds(MAX_BUNDLE_BYTES)
"""After which no upload of any process is still under way."""


async def _paced(chunks: AsyncIterator[bytes], limit: asyncio.Timeout) -> AsyncIterator[bytes]:
    """The chunks; each that comes gives the next ones time. What has come is not timed."""
    begun, received = asyncio.get_running_loop().time(), 0
    async for chunk in chunks:
        received += len(chunk)
        limit.reschedule(begun + patience_seconds(received))
        yield chunk
    limit.reschedule(None)


async def _begin(
    upload: Upload,
    now: UnixMillis,
    bounds: BlobBounds,
    work: UnitOfWork,
    blobs: BlobStore,
    uploads: Uploads,
) -> BlobUploadRow:
    """Charge it, before anything of it is here; raises as `store_blob`."""
    wanted = charged(upload.num_bytes)
    async with work:
        await hold_blobs(work)
        rows = await work[BlobUploadRow].where()
        # One that this process has under way still writes, so it stays charged.
        if not uploads.is_under_way(upload):
            for row in rows:
                if _is_same(row, upload):
                    await _settle(row, work, is_stored=False)
            rows = [row for row in rows if not _is_same(row, upload)]
        check_uploads(sum(row.account == upload.by for row in rows))
        coming = sum(row.num_bytes for row in rows)
        used = await used_by(upload.by, work)
        free = await blobs.free_bytes()  # read now: whatever was settled before is on the disk

        def check(standing: Standing) -> None:
            check_quota(used, wanted, standing, bounds)
            check_disk(free, coming, wanted, standing, bounds)

        try:
            check(STRANGER)
        except (TooLarge, ServiceUnreachable):  # unless something of it is at stake here
            check(await standing_of(upload.by, bounds, work))
        await charge(upload.by, wanted, work)
        return await work[BlobUploadRow].add(
            BlobUploadRow(0, upload.by, upload.name, wanted, began_at=now)
        )


def _is_same(row: BlobUploadRow, upload: Upload) -> bool:
    return (row.account, row.blob) == (upload.by, upload.name)


async def used_by(account: Address, work: UnitOfWork) -> int:
    """What an account is charged for. The caller is in a transaction."""
    row = await work[BlobUseRow].get(account)
    return 0 if row is None else row.num_bytes


async def hold_blobs(work: UnitOfWork) -> None:
    """Hold what uploads, postings and `collect_blobs` hold, until the transaction ends."""
    if await work[BlobUseRow].lock(EVERYBODY) is None:  # the first upload of this market
        await work[BlobUseRow].put_later(BlobUseRow(EVERYBODY, 0), "num_bytes")
        await work[BlobUseRow].lock(EVERYBODY)


async def settle_forgotten(now: UnixMillis, work: UnitOfWork, blobs: BlobStore) -> int:
    """Settle uploads whose processes died, whoever's they are; returns how many. Safe to repeat."""
    async with work:
        rows = [row for row in await work[BlobUploadRow].where() if _is_forgotten(row, now)]
        if rows:
            await hold_blobs(work)
        for row in rows:
            await _settle(row, work, is_stored=await blobs.size(row.blob) is not None)
    return len(rows)


def _is_forgotten(row: BlobUploadRow, now: UnixMillis) -> bool:
    return row.began_at + 2000 * patience_seconds(row.num_bytes) <= now


async def _settle(row: BlobUploadRow, work: UnitOfWork, *, is_stored: bool) -> None:
    """End an upload: its account has the blob, or its bytes again. Safe to repeat."""
    if await work[BlobUploadRow].get(row.number) is not None:
        await work[BlobUploadRow].remove(row.number)
        await charge(row.account, -row.num_bytes, work)
    if is_stored and await work[BlobOwnerRow].get(row.account, row.blob) is None:
        await work[BlobOwnerRow].add(BlobOwnerRow(row.account, row.blob, row.num_bytes))
        await charge(row.account, row.num_bytes, work)


async def charge(account: Address, num_bytes: int, work: UnitOfWork) -> None:
    """Change what an account, and everybody together, is charged for. The caller holds all."""
    for each in (account, EVERYBODY):
        await work[BlobUseRow].put(BlobUseRow(each, await used_by(each, work) + num_bytes))


async def standing_of(account: Address, bounds: BlobBounds, work: UnitOfWork) -> Standing:
    """What an account has at stake here; leases that wind down, and ended ones, count too."""
    free = await work[FreeMoneyRow].get(account)
    stakes = [each.stake for each in await work[LimitRow].where(account=account)]
    paid = [
        job
        for job in await work[JobRow].where(poster=account, state=_PAID_FOR)
        if job.budget >= bounds.known_from
    ]
    names = {lease.job for lease in await work[LeaseRow].where(account=account, state=_WORKED)}
    worked = await work[JobRow].where(job=tuple(sorted(names)))
    room = {job.job: _parameters(job.signed)[0] for job in paid}
    room |= {job.job: sum(_parameters(job.signed)) for job in worked}
    has_stake = sum(stakes) + (free.amount if free else 0) >= bounds.known_from
    return Standing(
        is_known=has_stake or bool(room),
        parameters=sum(room.values()),
    )


@lru_cache(maxsize=10_000)
def _parameters(signed_spec: bytes) -> tuple[int, int]:
    """Of a job's model, and of all that is published of it before its end."""
    spec = expect(decode_signed(signed_spec), JobSpec).message
    return parameters_of(spec), parameters_of(spec) * spec.batch.num_publications
