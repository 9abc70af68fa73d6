"""A model's own chat template: the text of a chat, and which of it is the assistant's.

The template lies beside the tokenizer, as `transformers` writes it, and is rendered as there: in
jinja2's immutable sandbox, with the special tokens, `raise_exception`, `tojson` and loop controls.
There is no clock in it (`strftime_now`), so equal chats give equal text on every day.

What the assistant says stands between `{% generation %}` and `{% endgeneration %}` where the
template has these marks. Where it has none, an answer is what the chat with it has beyond the chat
before it with the generation prompt: its text and whatever the template writes to end the turn.
That holds only if the template never rewrites what came before, so a chat for which it does is
refused.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from contracts.terms.errors import Malformed, NotFound, Refused

if TYPE_CHECKING:
    from jinja2 import Template

Turn: TypeAlias = Mapping[str, str]
"""`role` and `content`."""
Span: TypeAlias = tuple[int, int]
"""Characters [start, end) of a text."""

_TEMPLATE, _CONFIG = "chat_template.jinja", "tokenizer_config.json"
_MARKS = re.compile(r"\{%[-+]?\s*generation\b")
_BEGIN, _END = "\ufdd0", "\ufdd1"
"""Noncharacters of Unicode, which no text holds; the assistant's turns stand between them."""


@dataclass(frozen=True)
class ChatTemplate:
    """A template and the special tokens that it may name."""

    source: str
    special: Mapping[str, str]

    def render(self, turns: Sequence[Turn]) -> tuple[str, tuple[Span, ...]]:
        """The text of a chat, and where in it the assistant's turns are.

        Raises:
            Refused: the template refuses the chat, or does not say which turns are the assistant's.
        """
        if any(mark in turn["content"] for turn in turns for mark in (_BEGIN, _END)):
            raise Refused("its text holds a noncharacter of Unicode (U+FDD0 or U+FDD1)")
        text = self._text(turns)
        if not _MARKS.search(self.source):
            return text, self._by_prefixes(turns, text)
        pieces = re.split(f"[{_BEGIN}{_END}]", text)
        spans, at = list[Span](), 0
        for number, piece in enumerate(pieces):
            if number % 2:
                spans.append((at, at + len(piece)))
            at += len(piece)
        return "".join(pieces), tuple(spans)

    def _by_prefixes(self, turns: Sequence[Turn], text: str) -> tuple[Span, ...]:
        spans = list[Span]()
        for number, turn in enumerate(turns):
            if turn["role"] != "assistant":
                continue
            before = self._text(turns[:number], add_generation_prompt=True)
            after = self._text(turns[: number + 1])
            if not (after.startswith(before) and text.startswith(after)):
                raise Refused(
                    "its chat template has no {% generation %} marks and rewrites earlier turns, "
                    "so nothing says which tokens are the assistant's: add the marks around what "
                    "the assistant says"
                )
            spans.append((len(before), len(after)))
        return tuple(spans)

    def _text(self, turns: Sequence[Turn], *, add_generation_prompt: bool = False) -> str:
        import jinja2

        try:
            return self._compiled.render(
                messages=turns,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self.special,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise Refused(f"its chat template refuses it: {error}") from error

    @cached_property
    def _compiled(self) -> "Template":
        try:
            compiled: Template = _environment().from_string(self.source)
            return compiled
        except Exception as error:  # of jinja2's parser, which has no class for all that it raises
            raise Malformed(f"tokenizer: its chat template is no jinja2: {error}") from error


def _environment() -> Any:
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: object, **options: Any) -> str:
        return json.dumps(value, **({"ensure_ascii": False} | options))

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation(), loopcontrols]
    )
    environment.globals["raise_exception"] = raise_exception
    environment.filters["tojson"] = tojson
    return environment


def _generation() -> type:
    """The extension of jinja2 that puts `_BEGIN` and `_END` around what the assistant says."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Any) -> str:
            return f"{_BEGIN}{caller()}{_END}"

    return Generation


def read_template(tokenizer: Path) -> ChatTemplate:
    """The chat template beside a tokenizer.json.

    Raises:
        NotFound: there is none. Malformed: the files beside it are damaged.
        Refused: jinja2 is not installed, or the files cannot be read.
    """
    try:
        import jinja2  # noqa: F401  # before anything is read
    except ImportError as error:
        raise Refused(
            "a chat template needs the `jinja2` library: pip install 'tallystick[models]'"
        ) from error
    folder = tokenizer.parent
    config = _json(folder / _CONFIG)
    template = _read(folder / _TEMPLATE) or _named(config.get("chat_template"))
    if not template:
        raise NotFound(
            f"tokenizer: {folder} has no chat template, which says how a chat becomes text: it "
            f"stands in {_TEMPLATE}, or as `chat_template` in {_CONFIG}"
        )
    found = {name: _content(value) for name, value in config.items() if name.endswith("_token")}
    special = {name: token for name, token in found.items() if token is not None}
    return ChatTemplate(template, special)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"tokenizer: cannot read {path}: {error}") from error


def _json(path: Path) -> dict[str, Any]:
    text = _read(path)
    try:
        value = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"tokenizer: {path} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise Malformed(f"tokenizer: {path} is no JSON object")
    return value


def _named(value: object) -> str | None:
    """Of several templates, as older configs have them, the one that is called `default`."""
    if isinstance(value, list):
        named = (each for each in value if isinstance(each, dict) and each.get("name") == "default")
        value = next(named, {}).get("template")
    return value if isinstance(value, str) else None


def _content(value: object) -> str | None:
    """A special token, as text or as the object that older configs have."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None
