"""Are shards what their digests say, and rows where the order says?"""

from io import BytesIO

import pytest

from contracts.terms.digest import blob_digest
from contracts.terms.encoding import encode
from contracts.terms.errors import Malformed, Refused, UnknownVersion, WrongBytes
from contracts.terms.ids import Digest
from contracts.terms.items import ItemNumber
from contracts.terms.row_order import permuted
from tests.support.corpora import Corpus, corpus_of, cut_corpus
from tests.support.fakes.blobs import MemoryBlobs
from training.config import DataConfig
from training.data.corpus import unigram_perplexity
from training.data.loading import WHOLE_BYTES, CheckedBlobs, UnitRows
from training.data.manifest import PIECE_BYTES, Manifest, ShardIndex, index_of

TWO_ROWS = DataConfig(rows_per_unit=2, units_per_step=2, seed=5)


def text(num_bytes: int) -> bytes:
    return b"".join(b"%08d" % i for i in range(num_bytes // 8 + 1))[:num_bytes]


def sharded() -> Corpus:
    return cut_corpus(text(8192), shard_bytes=512, every=8)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", Malformed),
        (b"\xc1", Malformed),
        (encode([1]), Malformed),
        (encode({"kind": "manifest.v2"}), UnknownVersion),
        (encode({"kind": "manifest.v3"}), Malformed),
        (
            encode({"kind": "manifest.v3", "tokens": "bytes", "train": [], "validation": []}),
            Malformed,
        ),
    ],
)
def test_decoded__other_bytes__typed_refusal(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        Manifest.decoded(data)


def test_decoded__default_left_out__refused_as_another_spelling() -> None:
    value = sharded().manifest.value()
    del value["tokens"]

    with pytest.raises(Malformed, match="canonical"):
        Manifest.decoded(encode(value))


def test_manifest__shard_in_train_and_validation__refused() -> None:
    one, two = (index_of(BytesIO(data)).shard() for data in (b"one", b"two"))

    with pytest.raises(Malformed, match="twice"):
        Manifest.from_value({"train": [one.value(), two.value()], "validation": [one.value()]})


def test_index_of__shard__lists_its_pieces_and_is_read_in_one_spelling_alone() -> None:
    data = text(2 * PIECE_BYTES + 10)

    index = index_of(BytesIO(data))

    assert index.blob == blob_digest(data)
    assert [index.piece(n) for n in range(3)] == [
        blob_digest(data[at : at + PIECE_BYTES]) for at in (0, PIECE_BYTES, 2 * PIECE_BYTES)
    ]
    assert ShardIndex.decoded(index.encoded()) == index
    value = index.value() | {"pieces": index.pieces[:-32]}
    with pytest.raises(Malformed, match="64 bytes of digests"):
        ShardIndex.decoded(encode(value))


def test_permuted__fixed_key__is_this_order() -> None:
    # A change of this order changes what every signed job means: it needs another manifest.
    assert [permuted(i, 10, bytes(32)) for i in range(10)] == [5, 8, 4, 2, 7, 0, 1, 9, 3, 6]


def test_positions__same_arguments__same_rows_and_other_arguments_other_rows() -> None:
    corpus = sharded()

    def rows(seed: int, item: int, units_per_step: int = 2) -> object:
        data = DataConfig(rows_per_unit=2, units_per_step=units_per_step, seed=seed)
        made = UnitRows(corpus.manifest, data, 32, MemoryBlobs(corpus.blobs))
        return made.positions(ItemNumber(item))

    assert rows(5, 0) == rows(5, 0) == rows(5, 0, units_per_step=7)
    assert all(other != rows(5, 0) for other in [rows(6, 0), rows(5, 1), rows(5, 2)])


def test_unit_rows__by_name__gives_the_bytes_at_the_positions() -> None:
    corpus = sharded()
    rows = UnitRows(corpus.manifest, TWO_ROWS, 32, MemoryBlobs(corpus.blobs))

    loaded = rows.load(ItemNumber(3))

    positions = rows.positions(ItemNumber(3))
    whole = {p.shard: ShardIndex.decoded(corpus.blobs[p.shard.digest]).blob for p in positions}
    assert loaded == tuple(
        corpus.blobs[whole[p.shard]][p.offset : p.offset + 33] for p in positions
    )
    assert rows.read("rows/1/3") == b"".join(loaded)
    assert rows.read("validation/1") == b"".join(rows.validation_rows()[place] for place in (0, 0))
    with pytest.raises(Refused, match="no group 64"):
        rows.read("validation/64")


def test_unit_rows__source_serves_other_bytes__wrong_bytes() -> None:
    corpus = sharded()
    forged = {digest: data[:-1] + b"!" for digest, data in corpus.blobs.items()}
    rows = UnitRows(corpus.manifest, TWO_ROWS, 32, MemoryBlobs(forged))

    with pytest.raises(WrongBytes, match="other bytes"):
        rows.load(ItemNumber(0))


def test_validation_rows__capped__are_evenly_spaced() -> None:
    corpus = sharded()
    rows = UnitRows(corpus.manifest, TWO_ROWS, 32, MemoryBlobs(corpus.blobs))

    everything = rows.validation_rows()

    assert len(everything) == 30  # 2 shards of 512 bytes hold 15 rows each
    assert rows.validation_rows(3) == (everything[0], everything[10], everything[20])
    assert rows.validation_rows(1000) == everything


class CountingBlobs(MemoryBlobs):
    """Counts how often blobs were fetched, and how many bytes of them in ranges."""

    def __init__(self, blobs: dict[Digest, bytes]) -> None:
        super().__init__(blobs)
        self.num_fetched, self.num_ranged = 0, 0

    def fetch(self, digest: Digest) -> bytes:
        """See `BlobSource.fetch`."""
        self.num_fetched += 1
        return super().fetch(digest)

    def fetch_range(self, digest: Digest, start: int, end: int) -> bytes:
        """See `BlobSource.fetch_range`."""
        self.num_ranged += end - start
        return self._blobs[digest][start:end]


def test_checked_blobs__cache_of_two__forgets_the_least_recently_used() -> None:
    pieces = {blob_digest(data): data for data in (b"a" * 10, b"b" * 10, b"c" * 10)}
    a, b, c = pieces
    source = CountingBlobs(pieces)
    blobs = CheckedBlobs(source, cache_bytes=20)

    for digest in (a, b, a, c, a, b):
        blobs.fetch(digest)

    assert source.num_fetched == 4  # a, b, c, and b again


LONG = text(WHOLE_BYTES + PIECE_BYTES + 1)


def test_read__long_shard__fetches_the_index_and_the_pieces_of_the_range_once() -> None:
    corpus = corpus_of([LONG], [b"v"])
    source = CountingBlobs(corpus.blobs)
    blobs, shard = CheckedBlobs(source), corpus.manifest.train[0]

    start, end = 3 * PIECE_BYTES - 5, 3 * PIECE_BYTES + 5
    found = [blobs.read(shard, start, end) for _ in range(2)]
    last = blobs.read(shard, len(LONG) - 9, len(LONG))

    assert found == 2 * [LONG[start:end]] and last == LONG[-9:]
    assert source.num_fetched == 1
    assert source.num_ranged == 4 * PIECE_BYTES


def test_read__short_shard__is_fetched_whole_and_once() -> None:
    corpus = corpus_of([LONG[:WHOLE_BYTES]], [b"v"])
    source = CountingBlobs(corpus.blobs)
    blobs, shard = CheckedBlobs(source), corpus.manifest.train[0]

    assert b"".join(
        blobs.read(shard, at, at + PIECE_BYTES) for at in range(0, WHOLE_BYTES, PIECE_BYTES)
    ) == LONG[:WHOLE_BYTES]  # fmt: skip
    assert (source.num_fetched, source.num_ranged) == (2, 0)


@pytest.mark.parametrize("size", [WHOLE_BYTES, len(LONG)])
def test_read__one_bit_of_the_shard_altered__its_piece_alone_is_refused(size: int) -> None:
    corpus = corpus_of([LONG[:size]], [b"v"])
    shard = corpus.manifest.train[0]
    name = ShardIndex.decoded(corpus.blobs[shard.digest]).blob
    forged = bytearray(corpus.blobs[name])
    forged[2 * PIECE_BYTES + 7] ^= 1
    blobs = CheckedBlobs(MemoryBlobs(corpus.blobs | {name: bytes(forged)}))

    with pytest.raises(WrongBytes, match=f"piece 2 of shard {name.hex()} has other bytes"):
        blobs.read(shard, 2 * PIECE_BYTES, 3 * PIECE_BYTES)


def test_unigram_perplexity__two_even_bytes__is_two() -> None:
    corpus = corpus_of([b"train"], [b"abab"])

    found = unigram_perplexity(corpus.manifest, MemoryBlobs(corpus.blobs))

    assert found == pytest.approx(2)
