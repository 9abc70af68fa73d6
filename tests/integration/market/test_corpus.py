"""Posting a job whose data are not all there, or do not fit each other."""

import itertools
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from io import BytesIO

import pytest

from contracts.terms.digest import blob_digest
from contracts.terms.errors import Malformed, NotFound, Refused, TooLarge, UnknownVersion
from contracts.terms.ids import ZERO_DIGEST, Digest
from contracts.terms.messages import DataSpec
from contracts.terms.targets import target_counts
from market.service import stored_corpus
from market.service.fund_jobs import fund_jobs
from market.service.pace import Pace
from market.service.rows import JobRow
from tests.support.market_world import CORPUS, INDEXES, MANIFEST, World, market_spec
from training.data import manifest as manifests
from training.data.manifest import Manifest, ShardIndex, index_of

LENGTH = market_spec().model.sequence_length
ROWS = 3
MANIFEST_DIGEST = blob_digest(MANIFEST)


@dataclass(frozen=True)
class Data:
    """What a poster has uploaded; the job names manifest and counts."""

    blobs: dict[Digest, bytes]
    manifest: Digest = MANIFEST_DIGEST
    targets: Digest = ZERO_DIGEST


def without(name: Digest) -> Data:
    return Data({each: data for each, data in CORPUS.items() if each != name})


def chats(num_counted: int, num_targets: int = 2) -> Data:
    """`ROWS` rows of chats in each shard, of which so many are counted, each with two targets."""
    targets, row = b"\0\0\0\x80" * 2, b"\0" * (4 * (LENGTH - 2))
    shards = [(start + targets + row) * ROWS for start in (b"t\0\0\0", b"v\0\0\0")]
    indexes = [index_of(BytesIO(shard)) for shard in shards]
    train, validation = ((index.shard(),) for index in indexes)
    manifest = Manifest(tokens="marked32", train=train, validation=validation).encoded()
    counted = array("H", [num_targets] * num_counted), array("H", [2] * ROWS)
    counts = target_counts(*counted).encoded()
    blobs = [manifest, counts, *shards, *(index.encoded() for index in indexes)]
    found = {blob_digest(each): each for each in blobs}
    return Data(found, blob_digest(manifest), blob_digest(counts))


def named(manifest: bytes) -> Data:
    return Data({**CORPUS, blob_digest(manifest): manifest}, blob_digest(manifest))


def cut_short() -> Data:
    """A shard of which the store has other bytes than its index says."""
    whole = INDEXES[0]
    index = ShardIndex(blob=INDEXES[1].blob, num_bytes=whole.num_bytes, pieces=whole.pieces)
    manifest = Manifest(train=(index.shard(),), validation=(INDEXES[1].shard(),)).encoded()
    blobs = {**CORPUS, blob_digest(index.encoded()): index.encoded()}
    return Data(blobs | {blob_digest(manifest): manifest}, blob_digest(manifest))


def other_pieces() -> Data:
    """A shard whose index has digests of other bytes."""
    whole = INDEXES[0]
    index = ShardIndex(blob=whole.blob, num_bytes=whole.num_bytes, pieces=bytes(len(whole.pieces)))
    manifest = Manifest(train=(index.shard(),), validation=(INDEXES[1].shard(),)).encoded()
    data = named(manifest)
    return replace(data, blobs=data.blobs | {blob_digest(index.encoded()): index.encoded()})


def without_rows() -> Data:
    short = index_of(BytesIO(b"x" * LENGTH))
    return named(Manifest(train=(short.shard(),), validation=(INDEXES[1].shard(),)).encoded())


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: without(INDEXES[0].blob), NotFound, "shard 0 of the manifest"),
        (lambda: without(INDEXES[1].shard().digest), NotFound, "shard 1 of the manifest"),
        (cut_short, NotFound, "not whole"),
        (without_rows, Refused, "no shard holds a row"),
        (lambda: named(b"no manifest"), Malformed, "not msgpack"),
        (lambda: named(INDEXES[0].encoded()), UnknownVersion, "shard.v1"),
        (lambda: named(bytes(Manifest.max_bytes + 1)), TooLarge, "more than"),
        (lambda: chats(ROWS - 1), Malformed, "not of the same rows"),
        (lambda: chats(ROWS + 1), Malformed, "not of the same rows"),
        (lambda: chats(ROWS, 1), Malformed, "not those of the rows"),
        (other_pieces, Malformed, "the index of shard 0"),
    ],
)
async def test_job__data_not_whole__is_refused(
    world: World, make: Callable[[], Data], error: type[Refused], says: str
) -> None:
    with pytest.raises(error, match=says):
        await _post(world, make())

    assert await world.rows(JobRow) == []


@pytest.mark.parametrize("make", [lambda: Data(CORPUS), lambda: chats(ROWS)])
async def test_job__all_of_its_data_there__is_taken(world: World, make: Callable[[], Data]) -> None:
    await _post(world, make())

    assert len(await world.rows(JobRow)) == 1


async def test_job__large_corpus__is_matched_once_its_bytes_were_compared(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_corpus, "AT_ONCE", 0)
    await world.offer("ann", 5)
    job = (await _post(world, Data(CORPUS))).job
    await world.sync()

    assert not await world.clear()
    for num_compared in (1, 2):
        await compare(world)
        assert (await world.job(job)).num_compared == num_compared
    assert await world.clear()


async def test_job__short_corpus_of_many_shards__keeps_nobody_who_posts_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_corpus, "SHARDS_AT_ONCE", 1)

    assert not (await _post(world, Data(CORPUS))).is_compared


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: chats(ROWS, 1), "counts of targets"),
        (other_pieces, "the index of shard 0"),
    ],
)
async def test_job__large_corpus_has_other_bytes__fails_before_anybody_works(
    world: World, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Data], says: str
) -> None:
    monkeypatch.setattr(stored_corpus, "AT_ONCE", 0)
    await world.offer("ann", 5)
    job = (await _post(world, make())).job
    await world.sync()

    await compare(world)

    row = await world.job(job)
    assert row.state == "failed" and says in (row.failure or "")
    assert not await world.clear()


async def test_job__large_corpus_of_another__keeps_no_other_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_corpus, "AT_ONCE", 0)
    jobs = [(await _post(world, Data(CORPUS), salt=salt)).job for salt in (1, 2)]
    await world.sync()
    pace = short_rounds()

    for _ in jobs:  # there is time for one shard a round
        await compare(world, pace)

    assert [(await world.job(job)).num_compared for job in jobs] == [1, 1]


async def test_job__rows_with_more_targets_than_can_be_counted__fails_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_corpus, "AT_ONCE", 0)
    monkeypatch.setattr(manifests, "num_targets", lambda row: 2**16)  # of rows of so many tokens
    jobs = [
        (await _post(world, data, salt=salt)).job
        for salt, data in ((1, chats(ROWS)), (2, Data(CORPUS)))
    ]
    world.blobs.blobs.update(chats(ROWS).blobs)
    await world.sync()

    await compare(world, Pace())

    assert [(await world.job(job)).state for job in jobs] == ["failed", "funded"]
    assert (await world.job(jobs[1])).is_compared


async def test_job__market_has_lost_a_shard__waits_until_it_is_back_and_no_other_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_corpus, "AT_ONCE", 0)
    jobs = [
        (await _post(world, data, salt=salt)).job
        for salt, data in ((1, chats(ROWS)), (2, Data(CORPUS)))
    ]
    await world.sync()

    with pytest.raises(ExceptionGroup, match="jobs that broke"):
        await compare(world, Pace())

    assert [(await world.job(job)).is_compared for job in jobs] == [False, True]
    world.blobs.blobs.update(chats(ROWS).blobs)
    await compare(world, Pace())
    row = await world.job(jobs[0])
    assert (row.state, row.is_compared) == ("funded", True)


async def test_compare__two_rounds_at_once__the_slower_one_undoes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_corpus, "AT_ONCE", 0)
    job = (await _post(world, Data(CORPUS))).job
    await world.sync()
    read, reads = world.blobs.read, 0

    async def read_slowly(name: Digest) -> AsyncIterator[bytes]:
        nonlocal reads
        reads += 1
        if reads == 1:
            await compare(world, Pace())  # another worker's, from begin to end
        async for piece in read(name):
            yield piece

    monkeypatch.setattr(world.blobs, "read", read_slowly)
    await compare(world)

    row = await world.job(job)
    assert (row.num_compared, row.is_compared) == (2, True)


def short_rounds() -> Pace:
    """Rounds with time for one shard."""
    seconds = itertools.count()
    return Pace(0.5, monotonic=lambda: next(seconds))


async def compare(world: World, pace: Pace | None = None) -> None:
    """A round, with time for one shard if nothing else is said."""
    await stored_corpus.compare_corpora(
        world.now, world.new_work(), world.blobs, pace or short_rounds()
    )


async def _post(world: World, data: Data, salt: int = 1) -> JobRow:
    await world.register()
    world.blobs.blobs.clear()
    world.blobs.blobs.update(data.blobs)
    is_chats = data.targets != ZERO_DIGEST
    names = DataSpec(
        manifest=data.manifest,
        seed=3,
        tokenizer=ZERO_DIGEST,
        objective="sft" if is_chats else "pretrain",
        targets=data.targets,
    )
    row = await world.post(market_spec(data=names, salt=salt))
    await fund_jobs(world.now, world.new_work(), world.ports)
    return row
