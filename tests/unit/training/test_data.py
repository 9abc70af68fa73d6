"""Are shards what their digests say, and rows where the order says?"""

from pathlib import Path

import pytest

from contracts.terms.digest import blob_digest
from contracts.terms.encoding import encode
from contracts.terms.errors import Malformed, Refused, UnknownVersion, WrongBytes
from contracts.terms.ids import Digest
from contracts.terms.items import ItemNumber
from contracts.terms.row_order import permuted
from tests.support.fakes.blobs import MemoryBlobs
from training.config import DataConfig
from training.data.corpus import (
    ShardedCorpus,
    corpus_bytes,
    shard_corpus,
    unigram_perplexity,
)
from training.data.loading import CheckedBlobs, UnitRows
from training.data.manifest import Manifest, Shard, decode_manifest

TWO_ROWS = DataConfig(rows_per_unit=2, units_per_step=2, seed=5)


def text(num_bytes: int) -> bytes:
    return b"".join(b"%08d" % i for i in range(num_bytes // 8 + 1))[:num_bytes]


def sharded() -> ShardedCorpus:
    return shard_corpus(text(8192), shard_bytes=512, validation_fraction=1 / 8)


def shard(data: bytes) -> Shard:
    return Shard(digest=blob_digest(data), num_bytes=len(data))


def test_shard_corpus__even_text__sets_every_eighth_shard_aside() -> None:
    corpus = sharded()

    assert len(corpus.manifest.train) == 14
    assert [s.digest for s in corpus.manifest.validation] == [
        blob_digest(text(8192)[at * 512 : at * 512 + 512]) for at in (4, 12)
    ]


@pytest.mark.parametrize("corpus", [b"", text(1500), b"x" * 100_000])
def test_shard_corpus__too_little_different_text__refused_with_what_to_do(corpus: bytes) -> None:
    with pytest.raises(Refused, match="use more text"):
        shard_corpus(corpus, shard_bytes=512)


def test_corpus_bytes__pattern__joins_files_sorted_by_name(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"second")
    (tmp_path / "a.txt").write_bytes(b"first")
    (tmp_path / "c.md").write_bytes(b"other")

    assert corpus_bytes(f"{tmp_path}/*.txt") == b"first\nsecond\n"
    assert corpus_bytes([f"{tmp_path}/*.md", f"{tmp_path}/*"]) == b"first\nsecond\nother\n"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", Malformed),
        (b"\xc1", Malformed),
        (encode([1]), Malformed),
        (encode({"kind": "manifest.v9"}), UnknownVersion),
        (encode({"kind": "manifest.v1"}), Malformed),
        (
            encode({"kind": "manifest.v1", "tokens": "bytes", "train": [], "validation": []}),
            Malformed,
        ),
    ],
)
def test_decode_manifest__other_bytes__typed_refusal(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_manifest(data)


def test_decode_manifest__default_left_out__refused_as_another_spelling() -> None:
    value = sharded().manifest.value()
    del value["tokens"]

    with pytest.raises(Malformed, match="canonical"):
        decode_manifest(encode(value))


def test_manifest__shard_in_train_and_validation__refused() -> None:
    one, two = shard(b"one"), shard(b"two")

    with pytest.raises(Malformed, match="twice"):
        Manifest.from_value({"train": [one.value(), two.value()], "validation": [one.value()]})


def test_permuted__fixed_key__is_this_order() -> None:
    # A change of this order changes what every signed job means: it needs manifest.v2.
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
    assert loaded == tuple(corpus.blobs[p.shard][p.offset : p.offset + 33] for p in positions)
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


class CountingBlobs:
    """Counts how often a blob was fetched."""

    def __init__(self, blobs: dict[Digest, bytes]) -> None:
        self.blobs, self.num_fetched = blobs, 0

    def fetch(self, digest: Digest) -> bytes:
        """See `BlobSource.fetch`."""
        self.num_fetched += 1
        return self.blobs[digest]


def test_checked_blobs__cache_of_two__forgets_the_least_recently_used() -> None:
    pieces = {blob_digest(data): data for data in (b"a" * 10, b"b" * 10, b"c" * 10)}
    a, b, c = pieces
    source = CountingBlobs(pieces)
    blobs = CheckedBlobs(source, cache_bytes=20)

    for digest in (a, b, a, c, a, b):
        blobs.fetch(digest)

    assert source.num_fetched == 4  # a, b, c, and b again


def test_unigram_perplexity__two_even_bytes__is_two() -> None:
    train, validation = shard(b"train"), shard(b"abab")
    manifest = Manifest(train=(train,), validation=(validation,))

    assert unigram_perplexity(manifest, MemoryBlobs({validation.digest: b"abab"})) == pytest.approx(
        2
    )
