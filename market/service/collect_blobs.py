"""Blobs that nothing names go, some time after they were stored; their owners get the bytes back.

A run looks at some of all blobs, in the order of their names, and the next one goes on from there.
Under the row that uploads and postings hold, blobs that nothing names lose their owners; then,
under it again, those that nobody names, owns or uploads by now are deleted. So nothing that is
named is ever deleted, and nobody is charged for what is not here: a process that is killed between
the two leaves at worst a blob that nobody is charged for, which a later run finds by its name. As
uncharged is one that a job names just then, for as long as it does.
"""

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from contracts.terms.ids import ZERO_DIGEST, Address, Digest
from contracts.terms.moments import UnixMillis
from market.service.named_blobs import Spans, is_past, named_among, note_parts
from market.service.ports import BlobStore, UnitOfWork
from market.service.rows import (
    BlobOwnerRow,
    BlobPartRow,
    BlobUploadRow,
    CheckpointRow,
    JobRow,
)
from market.service.store_blob import DEAD_SECONDS, charge, hold_blobs, settle_forgotten
from market.service.stored_parts import read_index

A_RUN, AT_ONCE = 4000, 100
"""Blobs that a run looks at, and those that it holds all uploads for."""
SECONDS = 2.0
"""After which a run begins to delete no more, and no more is deleted while uploads wait: the worker
that runs it also finds what lapses, and a store may be slow."""


@dataclass(frozen=True)
class Collected:
    """What a run has done."""

    next: Digest  # where the next one goes on
    looked_at: int
    removed: int
    given_back: int  # bytes of quotas


async def collect_blobs(
    after: Digest,
    spans: Spans,
    *,
    now: UnixMillis,
    work: UnitOfWork,
    blobs: BlobStore,
) -> Collected:
    """Look at the blobs behind `after`. Safe to repeat, to kill, and to run twice at once."""
    await blobs.prepare(older_than_seconds=DEAD_SECONDS)
    await settle_forgotten(now, work, blobs)
    await _list_late_parts(spans, now, work, blobs)
    looked_at, last, old = 0, ZERO_DIGEST, list[Digest]()
    async for name, stored_at in blobs.names(after):
        looked_at += 1
        if is_past(stored_at, spans.unnamed, now):
            old.append(name)
        if looked_at == A_RUN:
            last = name
            break
    removed = given_back = 0
    ends = time.monotonic() + SECONDS
    for first in range(0, len(old), AT_ONCE):
        if first and time.monotonic() > ends:
            last = old[first - 1]
            break
        async with work:
            await hold_blobs(work)
            unnamed = set(old[first : first + AT_ONCE])
            unnamed -= await named_among(unnamed, spans, now, work)
            given_back += await _give_back(unnamed, work)
        async with work:
            await hold_blobs(work)
            unnamed -= await named_among(unnamed, spans, now, work)
            unnamed -= await _owned_or_coming(unnamed, work)
            removed += await _remove(unnamed, blobs)
    return Collected(last, looked_at, removed, given_back)


async def _give_back(names: Collection[Digest], work: UnitOfWork) -> int:
    """Take blobs from their owners, who get their bytes back; forget what they list."""
    charged = Counter[Address]()
    for row in await work[BlobOwnerRow].where(blob=tuple(names)):
        await work[BlobOwnerRow].remove(row.account, row.blob)
        charged[row.account] += row.num_bytes
    for account, num_bytes in charged.items():
        await charge(account, -num_bytes, work)
    for name in names:
        await work[BlobPartRow].remove(name)
    return charged.total()


async def _remove(names: Collection[Digest], blobs: BlobStore) -> int:
    """Delete at least one of them, while there is time; returns how many."""
    ends, removed = time.monotonic() + SECONDS, 0
    for name in names:
        if removed and time.monotonic() > ends:
            break  # a later run finds the others by their names
        await blobs.remove(name)
        removed += 1
    return removed


async def _owned_or_coming(names: Collection[Digest], work: UnitOfWork) -> set[Digest]:
    owned = {row.blob for row in await work[BlobOwnerRow].where(blob=tuple(names))}
    return owned | {row.blob for row in await work[BlobUploadRow].where()}


async def _list_late_parts(
    spans: Spans, now: UnixMillis, work: UnitOfWork, blobs: BlobStore
) -> None:
    """Note the parts of checkpoints that came after they were claimed."""
    async with work:
        claims = await work[CheckpointRow].where(num_bytes=None)
        jobs = await work[JobRow].where(job=tuple({row.job for row in claims}))
    over = {job.job for job in jobs if spans.is_over(job, now)}
    for index in {row.blob for row in claims if row.job not in over} - {ZERO_DIGEST}:
        if (listed := await read_index(index, blobs)) is not None:
            async with work:
                await note_parts(index, listed.parts, work)  # first, as `need_blobs`: no deadlock
                await hold_blobs(work)
                await note_parts(index, listed.parts, work)
