"""From chats to rows and targets: what the poster of a job with `objective: sft` does once.

A file holds one chat a line, `{"messages": [{"role": ..., "content": ...}, ...]}`, or with the
older names `conversations`, `from` and `value`. The tokenizer's own chat template makes it text,
and the targets of the loss are the tokens that begin within the assistant's turns, the end of the
turn with them. Nobody else renders or tokenizes: peers get rows whose tokens are marked.

Invariants: a row is sequence_length + 1 tokens, and has a target beside its first token; chats
stand whole in a row, several one after another where they fit, in the order of the files, and the
rest is filled up with tokens that are no targets. A chat that is longer than a row is cut at its
end, and one of which no target is left is left out; both are counted. Attention does not stop
between two chats of a row.
"""

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from contracts.terms.errors import Malformed, Refused, TooLarge
from contracts.terms.ids import Digest
from contracts.terms.targets import MAX_TARGET_ROWS, TargetCounts, target_counts
from training.content import UTF8_MARK
from training.data.chat_template import ChatTemplate, Span, Turn
from training.data.corpus import (
    DEFAULT_SHARDS,
    MAX_CORPUS_BYTES,
    MAX_DEFAULT_SHARD,
    MIN_SHARD_BYTES,
    ShardedCorpus,
    shard_corpus,
)
from training.data.manifest import TARGET_MARK, TOKEN_BYTES, Shard
from training.data.tokens import TokenFile, little_endian, token_values

if TYPE_CHECKING:
    from tokenizers import Encoding

MAX_SEQUENCE = 2**16 - 1
"""Tokens that a row of chats predicts, at most: as many targets are counted in 2 bytes."""
CHATS_AT_A_TIME = 64
_ROLES = {"human": "user", "gpt": "assistant"}
"""What chats with `from` and `value` call them."""
_FILLING = 0  # a token that nothing is predicted from, and that is no target

Tokens: TypeAlias = "array[int]"
"""Of type I, those that are targets with `TARGET_MARK`."""


@dataclass(frozen=True)
class ChatCorpus:
    """The rows of chats, sharded, with the targets of each."""

    corpus: ShardedCorpus
    targets: TargetCounts
    num_chats: int
    num_cut: int
    """Chats that were longer than a row."""
    num_left_out: int
    """Of these, without a target in what was left."""

    @property
    def in_words(self) -> str:
        """What became of the chats."""
        counted = (self.targets.of_train, self.targets.of_validation)
        rows, targets = (sum(map(len, counted)), sum(map(sum, counted)))
        return (
            f"chats: {self.num_chats} in {rows} rows with {targets} target tokens; {self.num_cut} "
            f"were longer than a row and cut, {self.num_left_out} of them left out, as nothing of "
            "the assistant was left"
        )


def chat_corpus(
    files: Sequence[Path], tokenizer: TokenFile, template: ChatTemplate, sequence_length: int
) -> ChatCorpus:
    """Render, tokenize, mark and pack the chats in some files.

    Raises:
        Refused: a line is no chat, or one that cannot be rendered (with file and line); too few
            chats; rows too long.
        TooLarge: too many rows.
    """
    if sequence_length > MAX_SEQUENCE:
        raise Refused(f"sequence_length: rows of chats have at most {MAX_SEQUENCE} tokens")
    packing = _Packing(sequence_length + 1)
    for tokens in _tokenized(files, tokenizer, template):
        packing.add(tokens)
    rows = packing.finished()
    row_bytes = (sequence_length + 1) * TOKEN_BYTES["marked32"]
    wanted = min(MAX_DEFAULT_SHARD, len(rows) // DEFAULT_SHARDS) // row_bytes
    rows_of_shard = max(1, wanted, -(-MIN_SHARD_BYTES // row_bytes))
    corpus = shard_corpus(rows, tokens="marked32", shard_bytes=rows_of_shard * row_bytes)
    train, validation = (
        _counted(shards, corpus.blobs, sequence_length + 1)
        for shards in (corpus.manifest.train, corpus.manifest.validation)
    )
    if len(train) + len(validation) > MAX_TARGET_ROWS:
        raise TooLarge(
            f"data: {len(train) + len(validation)} rows of chats, and a job has at most "
            f"{MAX_TARGET_ROWS}: use fewer chats or a longer sequence_length",
            size=len(train) + len(validation),
            limit=MAX_TARGET_ROWS,
        )
    return ChatCorpus(
        corpus,
        target_counts(train, validation),
        packing.num_chats,
        packing.num_cut,
        packing.num_left_out,
    )


def marks_in(row: Tokens) -> int:
    """Targets of a row: its first token is predicted from nothing."""
    return sum(token >= TARGET_MARK for token in islice(row, 1, None))


class _Packing:
    """Fills rows of `length` tokens with chats."""

    def __init__(self, length: int) -> None:
        self._length, self._rows, self._row = length, array("I"), array("I")
        self.num_chats = self.num_cut = self.num_left_out = 0

    def add(self, tokens: Tokens) -> None:
        """One more chat, in a row of its own where the present one has no room for it."""
        self.num_chats += 1
        self.num_cut += len(tokens) > self._length
        tokens = tokens[: self._length]
        if not marks_in(tokens):
            self.num_left_out += 1
            return
        if len(self._row) + len(tokens) > self._length:
            self._end_row()
        self._row += tokens

    def _end_row(self) -> None:
        self._rows += self._row
        self._rows.extend([_FILLING] * (self._length - len(self._row)))
        self._row = array("I")

    def finished(self) -> bytes:
        """All rows, one after another."""
        if self._row:
            self._end_row()
        return little_endian(self._rows)


def _counted(shards: Sequence[Shard], blobs: dict[Digest, bytes], length: int) -> "array[int]":
    counts = array("H")
    for shard in shards:
        tokens = token_values(blobs[shard.digest], "marked32")
        rows = range(0, len(tokens), length)
        counts.extend(marks_in(tokens[start : start + length]) for start in rows)
    return counts


# ------------------------------------------------------------------------------------ tokens


def _tokenized(
    files: Sequence[Path], tokenizer: TokenFile, template: ChatTemplate
) -> Iterator[Tokens]:
    parsed = tokenizer.parsed()
    parsed.no_truncation()
    parsed.no_padding()
    chats = _rendered(files, template)
    while batch := list(islice(chats, CHATS_AT_A_TIME)):
        texts = [text for text, _ in batch]
        encoded = parsed.encode_batch(texts, add_special_tokens=False)
        for encoding, (_, spans) in zip(encoded, batch, strict=True):
            yield _marked(encoding, spans)


def _marked(encoding: "Encoding", spans: Sequence[Span]) -> Tokens:
    """The ids of a text; those that begin within a span are targets."""
    tokens, waiting = array("I"), list(spans)
    for token, (start, _) in zip(encoding.ids, encoding.offsets, strict=True):
        while waiting and waiting[0][1] <= start:
            waiting.pop(0)
        is_target = waiting and waiting[0][0] <= start
        tokens.append(token + TARGET_MARK if is_target else token)
    return tokens


def _rendered(
    files: Sequence[Path], template: ChatTemplate
) -> Iterator[tuple[str, tuple[Span, ...]]]:
    for where, line in _lines(files):
        try:
            text, spans = template.render(_turns(line))
        except (Refused, Malformed) as error:
            raise Refused(f"data: {where}: {error.message}") from error
        if not any(start < end for start, end in spans):
            raise Refused(f"data: {where}: its chat template writes nothing of the assistant")
        yield text, spans


# ------------------------------------------------------------------------------------- lines


def _lines(files: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Lines that are not empty, each with its file and number."""
    size = 0
    for path in files:
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    size += len(line)
                    if size > MAX_CORPUS_BYTES:
                        raise TooLarge(
                            f"data: the chats have more than {MAX_CORPUS_BYTES} bytes: use fewer",
                            size=size,
                            limit=MAX_CORPUS_BYTES,
                        )
                    if stripped := line.removeprefix(UTF8_MARK).strip():
                        yield f"{path}, line {number}", stripped
        except OSError as error:
            raise Refused(f"data: cannot read {path}: {error.strerror}") from error


def _turns(line: bytes) -> list[Turn]:
    """The turns of a chat; raises Refused: the line is none."""
    try:
        chat = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused(f"it is no JSON: {error}") from error
    if not isinstance(chat, dict):
        raise Refused('it is no chat: write {"messages": [{"role": ..., "content": ...}]}')
    if {"chosen", "rejected"} & chat.keys():
        raise Refused(
            "it is a pair of answers to choose from (DPO), which no objective here trains"
        )
    if chat.get("tools"):
        raise Refused("it has `tools`, which are not rendered here")
    if "messages" in chat:
        turns = _named(chat["messages"], "messages", "role", "content")
    elif "conversations" in chat:
        turns = _named(chat["conversations"], "conversations", "from", "value")
        turns = [{**turn, "role": _ROLES.get(turn["role"], turn["role"])} for turn in turns]
    else:
        found = ", ".join(sorted(map(repr, chat)))[:80]
        raise Refused(f"it has no field `messages`, but {found or 'none'}")
    if not any(turn["role"] == "assistant" for turn in turns):
        raise Refused("it has no turn of the assistant, so there is nothing to learn from it")
    return turns


def _named(value: Any, field: str, role: str, content: str) -> list[Turn]:
    if not isinstance(value, list):
        raise Refused(f"`{field}` is no list of turns")
    turns = list[Turn]()
    for number, turn in enumerate(value, start=1):
        if not isinstance(turn, dict) or turn.keys() != {role, content}:
            found = (
                ", ".join(sorted(map(str, turn))) if isinstance(turn, dict) else "something else"
            )
            raise Refused(f"turn {number} has the fields {role} and {content}, not {found:.80}")
        if not isinstance(turn[role], str) or not isinstance(turn[content], str):
            raise Refused(f"turn {number}: {role} and {content} are text")
        turns.append({"role": turn[role], "content": turn[content]})
    return turns
