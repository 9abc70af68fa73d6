"""Are tokens what the file says, wide enough, and refused where they cannot be?"""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from contracts.terms.errors import Malformed, Refused
from contracts.terms.items import ItemNumber
from tests.support.corpora import corpus_of
from tests.support.fakes.blobs import MemoryBlobs
from training.config import DataConfig
from training.data.corpus import need_enough_rows
from training.data.documents import Document, Place
from training.data.loading import UnitRows
from training.data.manifest import Manifest
from training.data.tokens import (
    PIECE_CHARACTERS,
    ByteEncoder,
    TokenFile,
    read_token_file,
    token_values,
)
from training.recipes import micro

WORDS = {word: number for number, word in enumerate(["<?>", "a", "tally", "stick", "split", "two"])}


def word_file(extra: dict[str, int] | None = None, *special: str) -> bytes:
    tokenizer = Tokenizer(models.WordLevel(WORDS | (extra or {}), unk_token="<?>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(special))
    return tokenizer.to_str().encode()


def packed(*ids: int) -> bytes:
    return b"".join(number.to_bytes(2, "little") for number in ids)


def read(folder: Path, data: bytes) -> TokenFile:
    path = folder / "tokenizer.json"
    path.write_bytes(data)
    return read_token_file(path)


def documents(*texts: str) -> list[Document]:
    return [Document(text, Place()) for text in texts]


def test_encode__words__are_their_ids_in_two_bytes_each(tmp_path: Path) -> None:
    tokenizer = read(tmp_path, word_file())

    found = tokenizer.encoder().encode(documents("a tally stick\nsplit in two", "", "two"))

    assert (tokenizer.kind, tokenizer.vocab_size) == ("uint16", 6)
    assert found == [packed(1, 2, 3, 4, 0, 5), b"", packed(5)]


@pytest.mark.parametrize(
    ("special", "separator"),
    [((), ()), (("<pad>", "</s>"), (7,)), (("</s>", "<|endoftext|>"), (7,))],
)
def test_separator__first_known_end_of_text__or_what_a_newline_is(
    tmp_path: Path, special: tuple[str, ...], separator: tuple[int, ...]
) -> None:
    encoder = read(tmp_path, word_file(None, *special)).encoder()

    assert encoder.separator == packed(*separator)  # this tokenizer drops newlines
    assert ByteEncoder.separator == b"\n"


def test_read_token_file__ids_with_gaps__vocabulary_reaches_the_highest(tmp_path: Path) -> None:
    tokenizer = read(tmp_path, word_file({"far": 65_536}))

    assert (tokenizer.kind, tokenizer.vocab_size) == ("uint32", 65_537)
    assert token_values(tokenizer.encoder().encode(documents("far two"))[0], "uint32").tolist() == [
        65_536,
        5,
    ]


def test_encode__text_of_many_pieces__is_the_text_as_a_whole(tmp_path: Path) -> None:
    tokenizer = read(tmp_path, word_file())
    line = "tally stick split two\n"
    times = PIECE_CHARACTERS // len(line) + 100

    [encoded] = tokenizer.encoder().encode(documents(line * times))
    tokens = token_values(encoded, tokenizer.kind)

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


def test_unit_rows__tokens_of_two_bytes__rows_are_tokens(tmp_path: Path) -> None:
    encoder = read(tmp_path, word_file()).encoder()
    lines = [f"tally stick {i}\n" for i in range(400)]
    tokens = b"".join(encoder.encode(documents(*lines)))

    corpus = corpus_of([tokens], [tokens[:100]], tokens=encoder.kind)

    manifest = corpus.manifest
    assert manifest.token_bytes == 2
    assert Manifest.decoded(corpus.blobs[manifest.digest()]) == manifest
    rows = UnitRows(manifest, DataConfig(2, 2), 16, MemoryBlobs(corpus.blobs))
    loaded = rows.load(ItemNumber(0))
    assert [len(row) for row in loaded] == [34, 34]
    assert all(value < 6 for row in loaded for value in token_values(row, "uint16"))


def test_manifest__shard_that_ends_within_a_token__refused() -> None:
    shards = [[{"digest": bytes([n]) * 32, "num_bytes": 3}] for n in (1, 2)]

    with pytest.raises(Malformed, match="ends within a token"):
        Manifest.from_value({"tokens": "uint16", "train": shards[0], "validation": shards[1]})


def test_need_enough_rows__too_few_tokens__refused_with_how_many_would_do() -> None:
    corpus = corpus_of([bytes(2 * 33 * 7)], [bytes(2 * 33)], tokens="uint16")

    with pytest.raises(Refused, match=r"7 training rows of 32 tokens.* at least 264 tokens"):
        need_enough_rows(corpus.manifest, micro())  # micro takes 8 rows a step
