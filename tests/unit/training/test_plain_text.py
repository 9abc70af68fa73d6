"""Data that would be misread: refused by content, with what to do."""

import gzip
import json

import pytest

from contracts.terms.errors import Refused
from training.data.plain_text import need_plain_text

CHAT = json.dumps({"messages": [{"role": "user", "content": "hello"}]})
RECORD = json.dumps({"id": "7", "text": "once upon a time"})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PAR1\x15\x04PAR1", ("Parquet", "text column")),
        (gzip.compress(b"text"), ("gzip", "gunzip")),
        (b"PK\x03\x04rest", ("zip archive", "unzip")),
        ("text".encode("utf-16"), ("UTF-16", "iconv")),
        (b"some\x00thing", ("zero byte at 4", "UTF-8")),
        (b"ab\xe9cd", ("byte 0xe9 at 2", "iconv")),
        (b"a" * (2**20 - 1) + b"\xc3\x28", (f"byte 0xc3 at {2**20 - 1}",)),
        (b"cut \xc3", ("byte 0xc3 at 4",)),
        (f"{RECORD}\n\n{RECORD}\n".encode(), ("JSON lines", "jq -r '.text'")),
        (f"{CHAT}\n{CHAT}\n".encode(), ("JSON lines of chats", "'.messages[]|.role")),
        (RECORD.encode(), ("a JSON document", "jq -r '.text'")),
        (f"[\n  {RECORD}\n]".encode(), ("a JSON document", "'.[]|.text'")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_need_plain_text__something_else__is_refused_with_what_to_do(
    data: bytes, words: tuple[str, ...]
) -> None:
    with pytest.raises(Refused) as refused:
        need_plain_text("corpus.txt", data)

    message = str(refused.value)
    assert message.startswith("data: corpus.txt is ")
    for each in words:
        assert each in message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Once upon a time.\n",
        "\u00fcber \u4e2d\u6587 \U0001f600",
        '{"a": 1} is an object of JSON, and\n{"b": 2} another.\n',
        "[1] The first reference\n[2] The second\n",
        "[1, 2, 3]\n",
        "{\n  int main;\n}\n",
    ],
)
def test_need_plain_text__text__is_taken(text: str) -> None:
    need_plain_text("corpus.txt", text.encode())
