"""From chats to tokens of which some are targets: what is read for a job with `objective: sft`.

A file holds one chat a line, `{"messages": [{"role": ..., "content": ...}, ...]}`, or with the
older names `conversations`, `from` and `value`. The tokenizer's own chat template makes it text,
and the targets of the loss are the tokens that begin within the assistant's turns, the end of the
turn with them. Nobody else renders or tokenizes: peers get rows whose tokens are marked.
"""

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contracts.terms.errors import Malformed, Refused
from training.content import LOOKED_AT, what_is
from training.data.chat_template import ChatTemplate, Turn
from training.data.documents import Document, Place, lines_of
from training.data.manifest import TARGET_MARK, TOKEN_BYTES, TokenKind
from training.data.sources import SourceFile
from training.data.tokens import TokenFile, little_endian

if TYPE_CHECKING:
    from tokenizers import Encoding

MAX_SEQUENCE = 2**16 - 1
"""Tokens that a row of chats predicts, at most: as many targets are counted in 2 bytes."""
_ROLES = {"human": "user", "gpt": "assistant"}
"""What chats with `from` and `value` call them."""


@dataclass(frozen=True)
class ChatForm:
    """How chats become rows."""

    template: ChatTemplate
    sequence_length: int  # tokens that a row predicts, one fewer than it has

    @property
    def row_bytes(self) -> int:
        """Of a row."""
        return (self.sequence_length + 1) * TOKEN_BYTES["marked32"]

    def encoded(self) -> bytes:
        """Changes when rows may."""
        form = [self.template.source, dict(self.template.special), self.sequence_length]
        return json.dumps(form, sort_keys=True).encode()


def chat_form(template: ChatTemplate, sequence_length: int) -> ChatForm:
    """Rows of so many tokens and one more; raises Refused: too many."""
    if sequence_length > MAX_SEQUENCE:
        raise Refused(f"sequence_length: rows of chats have at most {MAX_SEQUENCE} tokens")
    return ChatForm(template, sequence_length)


# ------------------------------------------------------------------------------------ tokens


class ChatEncoder:
    """Satisfies `Encoder` for chats."""

    kind: TokenKind = "marked32"
    separator = b""

    def __init__(self, tokenizer: TokenFile) -> None:
        """Raises Refused: the library is not installed."""
        self._tokenizer = tokenizer.parsed()
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, documents: Sequence[Document]) -> list[bytes]:
        """See `Encoder.encode`; tokens that begin within a span are marked."""
        texts = [document.text for document in documents]
        encoded = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [_marked(*each) for each in zip(encoded, documents, strict=True)]


def _marked(encoding: "Encoding", chat: Document) -> bytes:
    tokens, waiting = array("I"), list(chat.spans)
    for token, (start, _) in zip(encoding.ids, encoding.offsets, strict=True):
        while waiting and waiting[0][1] <= start:
            waiting.pop(0)
        is_target = waiting and waiting[0][0] <= start
        tokens.append(token + TARGET_MARK if is_target else token)
    return little_endian(tokens)


# ------------------------------------------------------------------------------------- lines


def chats(file: SourceFile, template: ChatTemplate, place: Place) -> Iterator[Document]:
    """The chats of `file` from `place` on.

    Raises:
        Refused: it is no file of JSON lines, or a line is no chat, or one that cannot be rendered.
        ServiceUnreachable, NotFound: it cannot be read.
    """
    with file.open(is_streamed=True) as opened:
        if kind := what_is(opened.read(LOOKED_AT)):
            raise Refused(f"data: {file.name} is {kind.name}: chats are read from JSON lines")
    for line, where, after in lines_of(file, place):
        if not line.strip():
            continue
        try:
            text, spans = template.render(_turns(line))
            text.encode()
        except (Refused, Malformed) as error:
            raise Refused(f"data: {where}: {error.message}") from error
        except UnicodeEncodeError as error:
            raise Refused(
                f"data: {where}: it has half a character (\\ud800 and the like)"
            ) from error
        if not any(start < end for start, end in spans):
            raise Refused(f"data: {where}: its chat template writes nothing of the assistant")
        yield Document(text, after, spans=spans)


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
