"""Which tokens of a chat are targets, how chats are packed, what is refused by file and line?"""

import gzip
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from contracts.terms.errors import Malformed, NotFound, Refused, TooLarge
from tests.support.chats import (
    END,
    MARKED,
    PLAIN,
    VOCABULARY,
    chats_recipe,
    corpus_of_chats,
    made_up,
    prepare_chats,
    turns,
    write_chats,
    write_tokenizer,
)
from tests.support.corpora import Corpus, loaded
from training.data import prepare as prepare_module
from training.data.chat_template import read_template
from training.data.manifest import TARGET_MARK, Manifest, ShardIndex
from training.data.order import index_rows
from training.data.prepare import PreparedData, prepare_data
from training.data.tokens import read_token_file, token_values

LENGTH = 96
CHAT = turns("Hi", "Hello!")


def prepared(
    folder: Path, *lines: Any, template: str | None = MARKED, length: int = LENGTH
) -> PreparedData:
    """The rows of these lines, which are JSON unless they are text, and of enough others."""
    tokenizer = write_tokenizer(folder, template)
    file = write_chats(folder / "chats.jsonl", made_up(60))
    said = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("\n".join(said) + "\n" * bool(said) + file.read_text())
    return prepare_chats(file, tokenizer, folder / "data", length)


def rows_of(corpus: Corpus, length: int = LENGTH) -> list[list[int]]:
    """All rows, to train on first."""
    rows = []
    for shard in corpus.manifest.shards():
        data = corpus.blobs[ShardIndex.decoded(corpus.blobs[shard.digest]).blob]
        tokens = token_values(data, "marked32").tolist()
        rows += [tokens[at : at + length + 1] for at in range(0, len(tokens), length + 1)]
    return rows


def targets_in(text_ids: list[int]) -> list[int]:
    return [token - TARGET_MARK for token in text_ids if token >= TARGET_MARK]


def row_with(found: PreparedData, ids: list[int]) -> list[int]:
    """The part of a row that holds these ids, whatever is marked in it."""
    for row in rows_of(loaded(found)):
        plain = [token % TARGET_MARK for token in row]
        for at in range(len(plain) - len(ids) + 1):
            if plain[at : at + len(ids)] == ids:
                return row[at : at + len(ids)]
    raise AssertionError("no row holds the chat")


@pytest.mark.parametrize("chat", [CHAT, turns("a", "bc", "d", "ef gh \u00e9\n", "x", "y"),
                                  [{"role": "system", "content": "S"}, *CHAT]])  # fmt: skip
def test_chat_corpus__marked_template__targets_are_those_that_transformers_says(
    tmp_path: Path, chat: list[dict[str, str]]
) -> None:
    found = prepared(tmp_path, {"messages": chat})
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path).apply_chat_template(
        chat, return_assistant_tokens_mask=True, return_dict=True
    )

    ours = row_with(found, list(theirs["input_ids"]))

    assert [int(token >= TARGET_MARK) for token in ours] == list(theirs["assistant_masks"])
    assert targets_in(ours).count(END) == sum(turn["role"] == "assistant" for turn in chat)


def test_chat_corpus__template_without_marks__what_an_answer_adds_are_the_targets(
    tmp_path: Path,
) -> None:
    plain = prepared(tmp_path / "plain", {"messages": CHAT}, template=PLAIN)
    marked = prepared(tmp_path / "marked", {"messages": CHAT})
    ids = read_token_file(tmp_path / "plain" / "tokenizer.json").parsed()
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
    tokens = ids.encode(text, add_special_tokens=False).ids
    newline = ids.encode("\n", add_special_tokens=False).ids

    assert targets_in(row_with(marked, tokens)) == tokens[-8:-1]
    assert targets_in(row_with(plain, tokens)) == tokens[-8:-1] + newline


def test_chat_corpus__template_that_rewrites_earlier_turns__is_refused(tmp_path: Path) -> None:
    rewriting = (
        "{% for m in messages %}{{ m.role + ': ' }}"
        "{% if loop.last %}{{ m.content }}{% else %}...{% endif %}{{ '\n' }}{% endfor %}"
    )

    with pytest.raises(Refused, match=r"chats.jsonl, line 1: .*rewrites earlier turns"):
        prepared(tmp_path, {"messages": turns("a", "b", "c", "d")}, template=rewriting)


def test_chat_corpus__conversations_with_from_and_value__are_the_same_rows(tmp_path: Path) -> None:
    old = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]

    one = prepared(tmp_path / "one", {"messages": CHAT})
    other = prepared(tmp_path / "other", {"id": "7", "conversations": old})

    assert one.manifest == other.manifest
    assert one.targets == other.targets


def test_chat_corpus__rows__are_whole_have_their_counts_and_hold_whole_chats() -> None:
    found = corpus_of_chats(LENGTH)
    manifest, rows = found.corpus.manifest, rows_of(found.corpus)
    counted = [*found.targets.of_train, *found.targets.of_validation]

    assert Manifest.decoded(manifest.encoded()) == manifest
    assert (manifest.kind, manifest.tokens) == ("manifest.v3", "marked32")
    assert [len(targets_in(row[1:])) for row in rows] == counted
    assert len(set(counted)) > 10  # rows differ in their weight
    assert all(0 <= token % TARGET_MARK < VOCABULARY for row in rows for token in row)
    assert all(row[0] == VOCABULARY - 2 for row in rows)  # each begins with a chat
    num_train = index_rows(manifest.train, LENGTH, token_bytes=4, is_marked=True).num_rows
    assert num_train == len(found.targets.of_train)
    whole = sum(row.count(END + TARGET_MARK) for row in rows)
    answers = sum(len(chat) // 2 for chat in made_up())
    assert whole <= answers  # those that were cut off are missing


def test_chat_corpus__chats_longer_than_a_row__are_cut_and_left_out_and_counted(
    tmp_path: Path,
) -> None:
    long_answer, long_question = turns("Hi", "x" * 200), turns("x" * 200, "Hi")

    found = prepared(tmp_path, {"messages": long_answer}, {"messages": long_question})
    none = prepared(tmp_path / "none")

    counted, before = found.counted, none.counted
    assert (counted.cut - before.cut, counted.left_out - before.left_out) == (2, 1)
    assert "chats: 62 in" in found.in_words


def test_prepare__chats_interrupted_anywhere__are_the_same_rows_and_no_shard_cuts_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_module, "MAX_SHARD_BYTES", 2**13)
    monkeypatch.setattr(prepare_module, "BATCH_CHARACTERS", 300)
    monkeypatch.setattr(prepare_module, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(prepare_module, "SAY_SECONDS", 0.0)
    whole = prepared(tmp_path)
    recipe = chats_recipe(tmp_path / "chats.jsonl", tmp_path / "tokenizer.json", LENGTH)
    times = 0

    def interrupt(_: str) -> None:
        nonlocal times
        times += 1
        if times % 7 == 6:
            raise KeyboardInterrupt

    found = None
    while found is None:
        with suppress(KeyboardInterrupt):
            found = prepare_data(recipe, tmp_path / "again", say=interrupt)

    assert times > 14 and len(whole.manifest.train) > 2
    assert (found.manifest, found.targets, found.counted) == (
        whole.manifest,
        whole.targets,
        whole.counted,
    )
    assert all(shard.num_bytes % (4 * (LENGTH + 1)) == 0 for shard in whole.manifest.shards())


def test_prepare__more_rows_of_chats_than_are_counted__is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_module, "MAX_TARGET_ROWS", 20)

    with pytest.raises(TooLarge, match="more than 20 rows of chats: use fewer chats or a longer"):
        prepared(tmp_path)


def test_prepare__chats_in_another_kind_of_file__is_refused(tmp_path: Path) -> None:
    (tmp_path / "chats.gz").write_bytes(gzip.compress(b"{}"))

    with pytest.raises(Refused, match="compressed by gzip: chats are read from JSON lines"):
        prepare_chats(tmp_path / "chats.gz", write_tokenizer(tmp_path), tmp_path / "data")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{broken", "it is no JSON: "),
        ([1], "it is no chat: "),
        ({"text": "Hi"}, "it has no field `messages`, but 'text'"),
        ({"prompt": "p", "chosen": "a", "rejected": "b"}, r"DPO"),
        ({"messages": CHAT, "tools": [{}]}, "it has `tools`"),
        ({"messages": "Hi"}, "`messages` is no list of turns"),
        ({"messages": [{"role": "user"}]}, "turn 1 has the fields role and content, not role"),
        ({"messages": [{"role": "user", "content": None}]}, "role and content are text"),
        ({"messages": turns("Hi")}, "it has no turn of the assistant"),
        ({"messages": turns("Hi", "\ufdd0")}, "noncharacter"),
        ({"messages": turns("Hi", "\ud800")}, "has half a character"),
    ],
)
def test_chat_corpus__line_that_is_no_chat__is_refused_by_file_and_line(
    tmp_path: Path, line: Any, why: str
) -> None:
    with pytest.raises(Refused, match=f"chats.jsonl, line 2: .*{why}"):
        prepared(tmp_path, {"messages": CHAT}, line)


def test_chat_corpus__template_that_refuses_a_chat__is_refused_with_its_words(
    tmp_path: Path,
) -> None:
    strict = "{{ raise_exception('no system turns') if messages[0].role == 'system' }}" + MARKED

    with pytest.raises(Refused, match="line 1: its chat template refuses it: no system turns"):
        prepared(
            tmp_path, {"messages": [{"role": "system", "content": "S"}, *CHAT]}, template=strict
        )


def test_read_template__none_or_broken__is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no chat template"):
        read_template(write_tokenizer(tmp_path, None))
    (tmp_path / "chat_template.jinja").write_text("{% for")
    with pytest.raises(Malformed, match="no jinja2"):
        read_template(tmp_path / "tokenizer.json").render(CHAT)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(Malformed, match="no JSON"):
        read_template(tmp_path / "tokenizer.json")


def test_read_template__file_beside_or_list_in_the_config__is_found(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path, PLAIN)
    named = [{"name": "tool_use", "template": "-"}, {"name": "default", "template": MARKED}]
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": named, "eos_token": {"content": "<|im_end|>"}})
    )
    marked = read_template(tokenizer)
    (tmp_path / "chat_template.jinja").write_text(PLAIN)

    assert marked.render(CHAT)[1]
    assert (marked.source, read_template(tokenizer).source) == (MARKED, PLAIN)
    assert marked.special == {"eos_token": "<|im_end|>"}


def test_chat_corpus__rows_that_are_too_long_or_too_few__are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="sequence_length: rows of chats have at most 65535"):
        prepared(tmp_path, length=2**16)
    tokenizer = write_tokenizer(tmp_path)
    file = write_chats(tmp_path / "few.jsonl", iter([CHAT]))
    with pytest.raises(Refused, match=r"1 documents .* are too few"):
        prepare_chats(file, tokenizer, tmp_path / "data", LENGTH)
