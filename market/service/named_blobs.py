"""Which blobs does anything name? What is named stays (`collect_blobs`); all else goes in time.

A job names what its spec does, and its members' newest checkpoints, until some time after its end.
A whole that is named names its parts: an index of weights, or the manifest of a corpus with the
indexes of its shards and their bytes. Evidence, and what a convict answers to it, is named for
good. Whoever begins to name a blob holds the row that uploads and `collect_blobs` hold, and looks
for the blob under it: so either it is seen here that the blob is gone, or there that it is named.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

from contracts.terms.errors import NotFound
from contracts.terms.ids import Digest, JobId
from contracts.terms.moments import UnixMillis
from market.service.ports import BlobStore, UnitOfWork
from market.service.rows import (
    BlobNameRow,
    BlobOwnerRow,
    BlobPartRow,
    CheckpointRow,
    EvidenceRow,
    JobRow,
    SlashRow,
)
from market.service.store_blob import hold_blobs

Wholes = Mapping[Digest, Collection[Digest]]
"""Names of the parts, by the name of what lists them."""
NO_WHOLES: Wholes = MappingProxyType({})


@dataclass(frozen=True)
class Spans:
    """For how long blobs stay that nobody may need any more."""

    unnamed: timedelta = timedelta(days=7)
    """Since one was stored; and since the end of a job that sealed nothing."""
    ended: timedelta = timedelta(days=30)
    """Since the end of a job that named it."""

    def is_over(self, job: JobRow, now: UnixMillis) -> bool:
        """Whether a job names nothing any more."""
        if job.ended_at is None:
            return False
        span = self.ended if job.step else self.unnamed
        return job.ended_at == 0 or is_past(job.ended_at, span, now)


def is_past(moment: UnixMillis, span: timedelta, now: UnixMillis) -> bool:
    """Whether something is so long ago."""
    return moment + span / timedelta(milliseconds=1) <= now


async def name_blobs(
    job: JobId, names: Collection[Digest], wholes: Wholes, work: UnitOfWork, blobs: BlobStore
) -> None:
    """Let a job name blobs, some of them wholes; as `need_blobs`, which it raises as."""
    await need_blobs(names, work, blobs, wholes=wholes)
    await work[BlobNameRow].put_all([BlobNameRow(job, name) for name in names])


async def need_blobs(
    names: Collection[Digest], work: UnitOfWork, blobs: BlobStore, *, wholes: Wholes = NO_WHOLES
) -> None:
    """See that blobs and the parts of wholes are here, and hold all until the transaction ends.

    Raises:
        NotFound: one of them is not here any more.
    """
    for whole, parts in wholes.items():  # may be many, so before anybody waits for it
        await note_parts(whole, parts, work)
    await hold_blobs(work)
    for whole, parts in wholes.items():  # they may have gone meanwhile, and come again
        await note_parts(whole, parts, work)
    needed = {*names, *(part for parts in wholes.values() for part in parts)}
    charged = {row.blob for row in await work[BlobOwnerRow].where(blob=tuple(needed))}
    for name in sorted(needed - charged):
        if await blobs.size(name) is None:
            raise NotFound(
                f"blob {name.hex()} is not here any more, as nothing named it: PUT /v1/blobs/"
                "{digest} again",
                digest=name.hex(),
            )


async def note_parts(whole: Digest, parts: Collection[Digest], work: UnitOfWork) -> None:
    """Store what a whole lists, which never changes. Counts for a caller who holds all blobs."""
    if await work[BlobPartRow].count(whole=whole) < len(set(parts)):
        await work[BlobPartRow].put_all([BlobPartRow(whole, part) for part in sorted(set(parts))])


async def named_among(
    names: Collection[Digest], spans: Spans, now: UnixMillis, work: UnitOfWork
) -> set[Digest]:
    """Those that something names. The caller holds all blobs; jobs that are over are forgotten."""
    listed = await work[BlobPartRow].where(blob=tuple(names))
    asked = tuple({*names, *(row.whole for row in listed)})
    by_jobs: list[BlobNameRow | CheckpointRow] = [
        *await work[BlobNameRow].where(blob=asked),
        *await work[CheckpointRow].where(blob=asked),
    ]
    jobs = await work[JobRow].where(job=tuple({row.job for row in by_jobs}))
    over = {job.job for job in jobs if spans.is_over(job, now)}
    for job in over:
        await work[BlobNameRow].remove(job)
    direct = {row.blob for row in by_jobs if row.job not in over}
    direct |= {row.bundle for row in await work[EvidenceRow].where(bundle=tuple(names))}
    direct |= {row.evidence for row in await work[SlashRow].where(evidence=tuple(names))}
    answers = await work[SlashRow].where(answer=tuple(names))
    direct |= {row.answer for row in answers if row.answer is not None}
    return (direct & set(names)) | {row.blob for row in listed if row.whole in direct}
