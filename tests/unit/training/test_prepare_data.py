"""Is equal data one manifest whatever it lies in, with every document whole and in one run?"""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers

from contracts.disk import lock_file
from contracts.terms.digest import blob_digest
from contracts.terms.errors import Conflict, Malformed, NotFound, Refused
from contracts.terms.ids import ZERO_DIGEST
from contracts.terms.items import ItemNumber
from tests.support import preparing
from training.config import DataConfig
from training.data.corpus import unigram_perplexity
from training.data.documents import Document, Place, documents
from training.data.loading import UnitRows
from training.data.order import index_rows
from training.data.prepare import (
    ONE_IN,
    RUNS,
    STATE,
    FolderBlobs,
    PreparedData,
    load_prepared,
    prepare_data,
    recipe_of,
)
from training.data.sources import BUILTIN, find_files
from training.data.tokens import TokenFile, read_token_file, token_values

TEXTS = preparing.texts(2000)


def prepared(folder: Path, *names: str, tokenizer: TokenFile | None = None) -> PreparedData:
    return prepare_data(recipe_of(names, tokenizer=tokenizer), folder)


def run_of(found: PreparedData, run: str) -> bytes:
    """All bytes of a run of tokens."""
    return b"".join(path.read_bytes() for path in sorted(found.folder.glob(f"{run}-?????")))


def lines_of(found: PreparedData, run: str) -> list[str]:
    return run_of(found, run).decode().removesuffix("\n").split("\n")


Write = Callable[[Path, list[str]], None]
KINDS: dict[str, Write] = {
    "a.jsonl": preparing.write_json_lines,
    "a.parquet": preparing.write_parquet,
    "a.arrow": preparing.write_arrow,
    "a.ipc": lambda path, texts: preparing.write_arrow(path, texts, is_stream=False),
    "saved": preparing.write_saved,
}


@pytest.mark.parametrize("kind", KINDS)
def test_prepare__records_of_any_kind__one_manifest_each_document_once_and_ended(
    kind: str, tmp_path: Path
) -> None:
    preparing.write_json_lines(tmp_path / "first.jsonl", TEXTS)
    first = prepared(tmp_path / "of first", str(tmp_path / "first.jsonl"))
    KINDS[kind](tmp_path / kind, TEXTS)

    found = prepared(tmp_path / "of kind", str(tmp_path / kind))

    assert found.manifest == first.manifest
    train, validation = (lines_of(found, run) for run in RUNS)
    assert sorted(train + validation) == sorted(TEXTS)
    assert [text for text in TEXTS if text in set(train)] == train
    assert 0 < len(validation) < 2 * len(TEXTS) / ONE_IN
    assert found.counted.documents == len(TEXTS)
    assert found.counted.validation_documents == len(validation)


@pytest.mark.parametrize("kind", KINDS)
def test_documents__from_any_place__are_the_rest(kind: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path / kind, TEXTS[:700])
    for file in find_files([str(tmp_path / kind)]):
        found = list(documents(file, "text", Place()))
        for number in (0, 1, 299, 300, 301, len(found) - 1):
            if number < len(found):
                rest = list(documents(file, "text", found[number].after))
                assert rest == found[number + 1 :]


def test_prepare__urls__are_read_as_files(tmp_path: Path) -> None:
    import fsspec

    preparing.write_parquet(tmp_path / "a.parquet", TEXTS)
    preparing.write_saved(tmp_path / "saved", TEXTS)
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path), f"memory://{tmp_path.name}", recursive=True)
    here = prepared(tmp_path / "of file", str(tmp_path / "a.parquet")).manifest

    for number, url in enumerate(
        [
            f"memory://{tmp_path.name}/a.parquet",
            f"memory://{tmp_path.name}/*.parquet",
            f"memory://{tmp_path.name}/saved",
            f"file://{tmp_path}/a.parquet",
            f"file://{tmp_path}/saved",
        ]
    ):
        assert prepared(tmp_path / str(number), url).manifest == here


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("memory://nowhere/a", NotFound, "nowhere/a is not there"),
        ("memory://nowhere/*.txt", NotFound, "no file matches memory://nowhere/*.txt"),
        ("unheard://me:secret@of/it?sig=secret", Refused, "unheard://of/it: Protocol not known"),
        ("unheard://me:sec/secret@of/it", Refused, "unheard://of/it: Protocol not known"),
        ("{}", Refused, "is a folder; write {}/*.txt"),
        ("{}/splits", Refused, "holds splits, name one of them: {}/splits/train"),
        ("{}/bad", Malformed, "is not what `save_to_disk` writes"),
        ("{}/odd", Malformed, "is not what `save_to_disk` writes"),
        ("{}/foreign", Refused, "names other files than Arrow files of the folder"),
        ("{}/a.parquet", Refused, "has no field 'text': name one as `field`, there are id, body"),
        ("{}/b.parquet", Refused, "'text' is no text but int64: name another `field`"),
        ("{}/cut.parquet", Refused, "cut.parquet is broken"),
    ],
)
def test_prepare__data_that_cannot_be_read__is_explained_without_secrets(
    name: str, error: type[Exception], words: str, tmp_path: Path
) -> None:
    for folder, file in (("splits", "dataset_dict.json"), ("bad", "state.json")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_text('{"splits": ["train", "test"]}')
    for folder, file, said in (
        ("odd", "dataset_dict.json", '{"splits": []}'),
        ("foreign", "state.json", '{"_data_files": [{"filename": "../a.arrow"}]}'),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_text(said)
    table = preparing.table_of(TEXTS[:9])
    parquet.write_table(table.rename_columns(["id", "body"]), tmp_path / "a.parquet")
    parquet.write_table(table.select(["id"]).rename_columns(["text"]), tmp_path / "b.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])

    with pytest.raises(error) as caught:
        prepared(tmp_path / "to", name.replace("{}", str(tmp_path)))

    assert words.replace("{}", str(tmp_path)) in str(caught.value)
    assert "secret" not in str(caught.value)


def test_prepare__broken_line_far_in__is_named_and_mended_data_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    preparing.write_json_lines(path, TEXTS)
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*whole[:1700], b'{"text": "b\n', *whole[1700:]]))

    with pytest.raises(Refused, match=r"a\.jsonl, line 1701 is broken JSON .*: mend it"):
        prepared(tmp_path / "to", str(path))

    path.write_bytes(b"".join(whole))
    os.utime(path, ns=(1, 1))
    with pytest.raises(Conflict, match="or a file has changed since"):
        prepared(tmp_path / "to", str(path))


def test_prepare__long_text__separator_stands_where_a_neighbour_went_to_the_other_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{i} is a line of this text\n" for i in range(9000)))

    found = prepared(tmp_path / "to", str(tmp_path / "a.txt"))

    seen: list[int] = []
    for run in RUNS:
        stretches = run_of(found, run).decode().split("\n\n")[:-1]
        for stretch in stretches:
            numbers = [int(re.split(" ", line, maxsplit=1)[0]) for line in stretch.split("\n")]
            assert numbers == list(range(numbers[0], numbers[-1] + 1))
            seen += numbers
    assert sorted(seen) == list(range(9000))
    assert found.counted.documents == 1


def test_text__lines_longer_than_a_piece__are_cut_between_characters_wherever_one_begins(
    tmp_path: Path,
) -> None:
    text = "\u00fc" * 3_000_000 + "\n" + "b" * 10
    (tmp_path / "a.txt").write_text(text)
    [file] = find_files([str(tmp_path / "a.txt")])

    found = list(documents(file, "", Place()))

    assert "".join(each.text for each in found) == text
    assert max(len(each.text.encode()) for each in found) == 2**20
    assert list(documents(file, "", found[2].after)) == found[3:]
    assert found[-1] == Document("", Place(len(text.encode())))


def word_file(folder: Path, *special: str) -> TokenFile:
    tokenizer = Tokenizer(models.WordLevel({"<?>": 0, "word": 1, "document": 2}, unk_token="<?>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(special))
    (folder / "words.json").write_text(tokenizer.to_str())
    return read_token_file(folder / "words.json")


def test_prepare__tokenizer_with_an_end_of_text__it_ends_every_document(tmp_path: Path) -> None:
    preparing.write_json_lines(tmp_path / "a.jsonl", TEXTS)
    tokenizer = word_file(tmp_path, "<|endoftext|>")

    found = prepared(tmp_path / "to", str(tmp_path / "a.jsonl"), tokenizer=tokenizer)

    assert (found.manifest.tokens, found.tokenizer) == ("uint16", blob_digest(tokenizer.data))
    counts = [text.count("word") for text in TEXTS]
    ended = [tokens.split(" 3") for run in RUNS if (tokens := _ids(found, run))]
    assert sorted(each.count(" 1") for run in ended for each in run[:-1]) == sorted(counts)
    assert all(each.startswith(" 2 0") for run in ended for each in run[:-1])
    assert [run[-1] for run in ended] == ["", ""]


def _ids(found: PreparedData, run: str) -> str:
    return "".join(f" {number}" for number in token_values(run_of(found, run), "uint16"))


def test_prepare__few_documents__some_are_set_aside_all_the_same(tmp_path: Path) -> None:
    preparing.write_json_lines(tmp_path / "a.jsonl", TEXTS[:12])
    (tmp_path / "b.txt").write_text("".join(f"line {i} of a text\n" for i in range(300)))

    for number, name in enumerate(("a.jsonl", "b.txt")):
        counted = prepared(tmp_path / str(number), str(tmp_path / name)).counted
        assert counted.train_bytes > 0 and counted.validation_bytes > 0


@pytest.mark.parametrize("text", ["", "one line\n", "the same line\n" * 9000])
def test_prepare__too_few_different_documents__refused_with_what_to_do(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": t}) + "\n" for t in text.split("\n"))
    )

    with pytest.raises(Refused, match="too few to set some aside for validation: use more text"):
        prepared(tmp_path / "to", str(tmp_path / "a.jsonl"))


def test_prepare__what_the_folder_holds__other_data_a_lock_an_alteration(tmp_path: Path) -> None:
    preparing.write_json_lines(tmp_path / "a.jsonl", TEXTS)
    preparing.write_json_lines(tmp_path / "b.jsonl", TEXTS)
    names, to = str(tmp_path / "a.jsonl"), tmp_path / "to"
    with pytest.raises(NotFound, match="was not prepared to its end"):
        load_prepared(to)
    found = prepared(to, names)
    assert prepared(to, names) == load_prepared(to) == found
    assert found.tokenizer == ZERO_DIGEST

    with pytest.raises(Conflict, match="begun with other files, field or tokenizer"):
        prepared(to, str(tmp_path / "b.jsonl"))
    with (to / ".lock").open("w") as lock:
        lock_file(lock.fileno(), 2, to)
        with pytest.raises(Conflict, match="another process prepares"):
            prepared(to, names)
    (to / "manifest").write_bytes(b"other")
    with pytest.raises((Malformed, Conflict)):
        load_prepared(to)
    (to / STATE).write_text("{")
    with pytest.raises(Malformed, match=r"prepared\.json is damaged"):
        prepared(to, names)


def test_prepare__shard_that_is_shorter_than_the_state_says__is_not_gone_on_with(
    tmp_path: Path,
) -> None:
    preparing.write_json_lines(tmp_path / "a.jsonl", TEXTS)
    names, to = str(tmp_path / "a.jsonl"), tmp_path / "to"
    prepared(to, names)
    state = json.loads((to / STATE).read_text())
    (to / STATE).write_text(json.dumps(state | {"manifest": ""}))
    os.truncate(to / "train-00000", 100)

    with pytest.raises(Malformed, match="train-00000 was altered since it was prepared"):
        prepared(to, names)


def test_prepare__builtin__is_python_s_own_text_and_enough_for_the_demo(tmp_path: Path) -> None:
    found, blobs = prepared(tmp_path / "to", BUILTIN), None
    files = find_files([BUILTIN])

    assert all("site-packages" not in file.name for file in files)
    assert 4_000_000 <= sum(file.num_bytes or 0 for file in files) < 4_500_000
    assert [len(found.manifest.train), len(found.manifest.validation)] == [1, 1]
    blobs = FolderBlobs(found)
    assert 15 < unigram_perplexity(found.manifest, blobs) < 40
    assert index_rows(found.manifest.train, 128).num_rows > 60 * 32  # no row twice in the demo
    rows = UnitRows(found.manifest, DataConfig(4, 8), 128, blobs)
    assert len(rows.load(ItemNumber(479))) == 4
