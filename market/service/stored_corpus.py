"""Is the corpus of a job with us, whole, and does it fit the job?

Whoever works on an item, or repeats it, fetches its rows while the job runs, and who lacks them
pays for it. So the market looks before it takes a job, at every shard that the manifest lists and
at the counts of targets; and it compares the bytes of all shards with what index and counts say
before anybody is matched with the job: of a short corpus at once, else a little in each round.
"""

import asyncio
from dataclasses import dataclass, replace
from io import BytesIO

from contracts.terms.errors import Malformed, NotFound, Refused
from contracts.terms.ids import ZERO_DIGEST, Digest
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis
from contracts.terms.targets import TargetCounts
from market.domain.jobs import CorpusRefused, JobState
from market.service.coding import spec_of
from market.service.life import happen
from market.service.pace import Pace
from market.service.ports import BlobStore, UnitOfWork
from market.service.rows import JobRow
from market.service.stored_parts import read_blob
from training.data.manifest import (
    MAX_SHARD_BYTES,
    Manifest,
    Shard,
    ShardIndex,
    count_targets,
    index_of,
)
from training.data.order import check_counts

AT_ONCE = 16 * 2**20
"""Bytes of a corpus that are compared while its poster waits."""
SHARDS_AT_ONCE = 64
"""And shards of it: meanwhile who posts holds memory and a connection to the database."""
SECONDS = 0.5
"""In which a round begins to compare a shard."""


@dataclass(frozen=True)
class Corpus:
    """What a job names."""

    manifest: Manifest
    targets: TargetCounts | None
    sequence_length: int

    @property
    def num_bytes(self) -> int:
        """Of all shards."""
        return sum(shard.num_bytes for shard in self.manifest.shards())

    async def compare(self, number: int, blobs: BlobStore) -> None:
        """Compare the bytes of a shard, as `Manifest.shards` counts, with its index and counts.

        Raises:
            NotFound: it is not here. Malformed: they differ.
        """
        index = ShardIndex.decoded(
            await read_blob(self.manifest.shards()[number].digest, ShardIndex.max_bytes, blobs)
        )
        data = await read_blob(index.blob, MAX_SHARD_BYTES, blobs)
        await asyncio.to_thread(self._compare, number, index, data)

    def _compare(self, number: int, index: ShardIndex, data: bytes) -> None:
        if index_of(BytesIO(data)) != index:
            raise Malformed(f"the index of shard {number} is not that of its bytes")
        if self.targets is None:
            return
        run, counts = self.manifest.train, self.targets.of_train
        if number >= len(run):
            number -= len(run)
            run, counts = self.manifest.validation, self.targets.of_validation
        row_bytes = self.manifest.token_bytes * (self.sequence_length + 1)
        first = sum(shard.num_bytes // row_bytes for shard in run[:number])
        found = count_targets(BytesIO(data), row_bytes)
        if found != counts[first : first + len(found)]:
            raise Malformed("the counts of targets are not those of the rows")


async def stored_corpus(spec: JobSpec, blobs: BlobStore) -> Corpus:
    """What a job whose manifest and counts are here names.

    Raises:
        Malformed, UnknownVersion, TooLarge: what the spec names is no manifest, or no counts, or
            they are not of the same rows.
        Refused: no shard holds a row.
    """
    manifest = Manifest.decoded(await read_blob(spec.data.manifest, Manifest.max_bytes, blobs))
    targets = None
    if spec.data.targets != ZERO_DIGEST:
        data = await read_blob(spec.data.targets, TargetCounts.max_bytes, blobs)
        targets = TargetCounts.decoded(data)
    check_counts(manifest, targets, spec.model.sequence_length)
    return Corpus(manifest, targets, spec.model.sequence_length)


async def check_corpus(spec: JobSpec, blobs: BlobStore) -> tuple[list[Digest], bool]:
    """Refuse a job whose corpus is not all here.

    Returns:
        What its manifest lists, indexes too, and whether the bytes were compared.

    Raises:
        NotFound: a shard, or its index, is not here.
        Refused: as `stored_corpus` and `Corpus.compare`.
    """
    corpus, found = await stored_corpus(spec, blobs), list[Digest]()
    shards = corpus.manifest.shards()
    for number, shard in enumerate(shards):
        index = await _index(shard, blobs)
        if index is None:
            raise NotFound(
                f"shard {number} of the manifest is not in the blob store, or not whole; PUT "
                "/v1/blobs/{digest} its index and its bytes first",
                shard=number,
                index=shard.digest.hex(),
            )
        found += [shard.digest, index.blob]
    if corpus.num_bytes > AT_ONCE or len(shards) > SHARDS_AT_ONCE:
        return found, False
    for number in range(len(shards)):
        await corpus.compare(number, blobs)
    return found, True


async def _index(shard: Shard, blobs: BlobStore) -> ShardIndex | None:
    """Of a shard that is here, whole."""
    try:
        index = ShardIndex.decoded(await read_blob(shard.digest, ShardIndex.max_bytes, blobs))
    except Refused:  # it is not here, or somebody's other blob
        return None
    is_whole = shard.num_bytes == index.num_bytes == await blobs.size(index.blob)
    return index if is_whole else None


# --------------------------------------------------------------------------- before it is matched


async def compare_corpora(
    now: UnixMillis, work: UnitOfWork, blobs: BlobStore, pace: Pace | None = None
) -> int:
    """Compare shards of funded jobs; returns how many. A job that has other bytes fails.

    One job has the time of a round, and those behind it what it leaves; the next round goes on
    behind the last, so a large corpus keeps no other waiting. Safe to run twice at once.

    Raises:
        ExceptionGroup: what broke at single jobs, a blob that is not here any more included.
    """
    pace = pace or Pace(SECONDS)
    async with work:
        waiting = await work[JobRow].where(
            state=JobState.FUNDED.value, is_compared=False, order="posted_at"
        )
    num_compared, broken = 0, list[Exception]()
    with pace.round():
        for row in pace.turns(waiting, key=lambda each: each.job):
            try:
                num_compared += await _compare_some(row, now, work, blobs, pace)
            except Exception as error:  # whatever it is, it is of this job: others have their turn
                error.add_note(f"at job {row.job.hex()}")
                broken.append(error)
    if broken:
        raise ExceptionGroup("jobs that broke", broken)
    return num_compared


async def _compare_some(
    row: JobRow, now: UnixMillis, work: UnitOfWork, blobs: BlobStore, pace: Pace
) -> int:
    """Compare a job's next shards, at least one, while the round lasts; returns how many."""
    failure, number, is_last = None, row.num_compared, False
    try:
        corpus = await stored_corpus(spec_of(row).message, blobs)
        while not is_last and (number == row.num_compared or not pace.is_over):
            await corpus.compare(number, blobs)
            number += 1
            is_last = number == len(corpus.manifest.shards())
    except NotFound:  # all were here when it was posted: it is no fault of the poster's
        raise
    except Refused as error:
        failure = CorpusRefused(f"its data are not what it names: {error.message}")
    async with work:
        held = await work[JobRow].lock(row.job)
        if held is None or (held.state, held.num_compared) != (row.state, row.num_compared):
            return 0  # it has ended, or another round was here
        if failure is not None:
            await happen(held, failure, now, work)
        else:
            await work[JobRow].put(replace(held, num_compared=number, is_compared=is_last))
    return number - row.num_compared
