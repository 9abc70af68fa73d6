"""Are tokens what the file says, wide enough, and refused where they cannot be?"""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from contracts.terms.digest import blob_digest
from contracts.terms.errors import Malformed, Refused
from contracts.terms.items import ItemNumber
from tests.support.fakes.blobs import MemoryBlobs
from training.config import DataConfig
from training.data.corpus import need_enough_rows, shard_corpus
from training.data.loading import UnitRows
from training.data.manifest import Manifest, Shard, decode_manifest
from training.data.tokens import PIECE_BYTES, TokenFile, read_token_file, token_values
from training.recipes import micro

WORDS = {word: number for number, word in enumerate(["<?>", "a", "tally", "stick", "split", "two"])}
TEXT = b"a tally stick split in two\n" * 300


def word_file(extra: dict[str, int] | None = None) -> bytes:
    tokenizer = Tokenizer(models.WordLevel(WORDS | (extra or {}), unk_token="<?>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer.to_str().encode()


def read(folder: Path, data: bytes) -> TokenFile:
    path = folder / "tokenizer.json"
    path.write_bytes(data)
    return read_token_file(path)


def test_encode__words__are_their_ids_in_two_bytes_each(tmp_path: Path) -> None:
    tokenizer = read(tmp_path, word_file())

    tokens = tokenizer.encode(b"a tally stick\nsplit in two")

    assert (tokenizer.kind, tokenizer.vocab_size) == ("uint16", 6)
    assert tokens == b"".join(i.to_bytes(2, "little") for i in (1, 2, 3, 4, 0, 5))


def test_read_token_file__ids_with_gaps__vocabulary_reaches_the_highest(tmp_path: Path) -> None:
    tokenizer = read(tmp_path, word_file({"far": 65_536}))

    assert (tokenizer.kind, tokenizer.vocab_size) == ("uint32", 65_537)
    assert token_values(tokenizer.encode(b"far two"), "uint32").tolist() == [65_536, 5]


def test_encode__text_of_many_pieces__is_the_text_as_a_whole(tmp_path: Path) -> None:
    tokenizer = read(tmp_path, word_file())
    line = b"tally stick split two\n"
    times = PIECE_BYTES // len(line) + 100

    tokens = token_values(tokenizer.encode(line * times), tokenizer.kind)

    assert tokens.tolist() == [2, 3, 4, 5] * times


@pytest.mark.parametrize("data", [b"", b"{}", b"no json", b"\xff", b'{"version": "1.0"}'])
def test_read_token_file__no_tokenizer__malformed_with_its_path(
    tmp_path: Path, data: bytes
) -> None:
    with pytest.raises(Malformed, match=r"tokenizer\.json: no file of the `tokenizers` library"):
        read(tmp_path, data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "git lfs pull"),
        (b"<html><title>403 Forbidden</title></html>", "an HTML page"),
        (b"\x1f\x8b\x08\x00", "gunzip"),
        (word_file()[:-30], "ends early"),
    ],
)
def test_read_token_file__stand_in_or_cut__says_what_to_do(
    tmp_path: Path, data: bytes, words: str
) -> None:
    with pytest.raises(Malformed, match=words):
        read(tmp_path, data)


def test_encode__text_that_is_not_utf8__refused_with_the_byte(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="byte 2 of the corpus is not UTF-8"):
        read(tmp_path, word_file()).encode(b"a \xff")


def test_shard_corpus__tokens__manifest_v2_whose_rows_are_tokens(tmp_path: Path) -> None:
    tokenizer = read(tmp_path, word_file())
    tokens = tokenizer.encode(b"".join(b"tally stick %d\n" % i for i in range(2000)) + TEXT)

    sharded = shard_corpus(tokens, tokens=tokenizer.kind, validation_fraction=1 / 4)

    manifest = sharded.manifest
    assert (manifest.kind, manifest.token_bytes) == ("manifest.v2", 2)
    assert decode_manifest(sharded.blobs[manifest.digest()]) == manifest
    rows = UnitRows(manifest, DataConfig(2, 2), 16, MemoryBlobs(sharded.blobs))
    loaded = rows.load(ItemNumber(0))
    assert [len(row) for row in loaded] == [34, 34]
    assert all(value < 6 for row in loaded for value in token_values(row, "uint16"))


def test_shard_corpus__shard_that_ends_within_a_token__refused() -> None:
    with pytest.raises(Refused, match="whole tokens"):
        shard_corpus(bytes(8000), tokens="uint32", shard_bytes=258)


@pytest.mark.parametrize(
    ("kind", "tokens", "size"),
    [("manifest.v1", "uint16", 4), ("manifest.v2", "bytes", 4), ("manifest.v2", "uint16", 3)],
)
def test_manifest__version_width_and_length_that_do_not_fit__refused(
    kind: str, tokens: str, size: int
) -> None:
    shards = [[{"digest": bytes([n]) * 32, "num_bytes": size}] for n in (1, 2)]
    value = {"kind": kind, "tokens": tokens, "train": shards[0], "validation": shards[1]}

    with pytest.raises(Malformed):
        Manifest.from_value(value)


def two_byte_manifest(train: bytes, validation: bytes) -> Manifest:
    shards = [Shard(digest=blob_digest(data), num_bytes=len(data)) for data in (train, validation)]
    return Manifest(
        kind="manifest.v2", tokens="uint16", train=(shards[0],), validation=(shards[1],)
    )


def test_need_enough_rows__too_few_tokens__refused_with_how_many_would_do() -> None:
    manifest = two_byte_manifest(bytes(2 * 33 * 7), bytes(2 * 33))  # micro takes 8 rows a step

    with pytest.raises(Refused, match=r"7 training rows of 32 tokens.* at least 264 tokens"):
        need_enough_rows(manifest, micro())
