"""Data that would be misread: refused by content, with what to do; honest text is taken."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.terms.errors import NotFound, Refused
from training.data.documents import Place, documents
from training.data.plain_text import is_json_lines, need_plain_start
from training.data.sources import find_files

BOM = b"\xef\xbb\xbf"
RECORDS = [
    {"id": str(i), "text": f"once upon a time, {i}\nthere was \u00e9", "tags": ["a", {"b": None}]}
    for i in range(40)
]
RECORD = json.dumps(RECORDS[0])
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()
PRETTY = "\n".join(json.dumps(record, indent=2) for record in RECORDS).encode()
LIST = json.dumps(RECORDS).encode()
LONG = json.dumps({"text": "word " * 300_000}).encode()  # longer than what is looked at
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
ANNEX = b"/annex/objects/SHA256E-s123--0f0f.txt\n"
CSV = 'id,text,label\n1,"Hello, you",good\n2,"one\ntwo",bad\n3,plain,good\n'
S3 = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>'


def read(folder: Path, data: bytes, field: str = "text") -> str:
    """The text of a file with these bytes."""
    (folder / "corpus.txt").write_bytes(data)
    [file] = find_files([str(folder / "*.txt")])
    return "|".join(each.text for each in documents(file, field, Place()) if each.text)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gzip.compress(b"text"), ("gzip", "gunzip")),
        (b"PK\x03\x04rest", ("zip archive", "unzip")),
        ("text".encode("utf-16"), ("UTF-16", "iconv")),
        ("text".encode("utf-32"), ("UTF-32", "iconv -f UTF-32")),
        (b"some\x00thing", ("zero byte at 4", "UTF-8")),
        (b"ab\xe9cd", ("byte 0xe9 at 2", "iconv")),
        (BOM + b"ab\xe9cd", ("byte 0xe9 at 5",)),
        (b"a" * (2**20 - 1) + b"\xc3\x28", (f"byte 0xc3 at {2**20 - 1}",)),
        (b"cut \xc3", ("byte 0xc3 at 4",)),
        (f"[\n  {RECORD}\n]".encode(), ("a JSON document", "jq -c '.[]'")),
        (LIST, ("a JSON document",)),
        (BOM + LIST, ("a JSON document",)),
        (PRETTY, ("a JSON document",)),
        (json.dumps(["one", "two"]).encode(), ("a JSON document",)),
        (CSV.encode(), ("a table (CSV)", "json.dumps(row)")),
        (BOM + CSV.encode(), ("a table (CSV)",)),
        (CSV.replace(",g", ";g").replace(",", ";").encode(), ("a table (CSV)", 'delimiter=";"')),
        (b"".join(b"%d\tline %d\n" % (i, i) for i in range(9)).join([b"a\tb\n", b""]), ("TSV",)),
        (b"text\n" + b'"Hello, you"\n' * 4, ("a table (CSV)",)),
        (b",prompt,answer\n" + b"0,why,so\n" * 4, ("a table (CSV)",)),
        (LFS, ("a Git LFS pointer", "git lfs pull")),
        (ANNEX, ("a git-annex pointer", "git annex get")),
        (b"../../.git/annex/objects/x/y/SHA256E-s1--0f.txt/SHA256E-s1--0f.txt", ("annex get",)),
        (b"\n<!DOCTYPE html>\n<title>404 Not Found</title>", ("an HTML page", "download")),
        (S3, ("an XML document", "download")),
        (rb"{\rtf1\ansi text}", ("RTF", "textutil")),
        (LINES + b'{"text": 5', (", line 41 is broken JSON",)),
        (LINES[200:], ("line 1 is broken JSON",)),
        (b"null\n" + LINES, ("line 1 is no JSON object",)),
        (b'{"text": "a"}\n[1]\n', ("line 2 is no JSON object",)),
        (b'{"text": "a"}\n{"body": 1, "id": 2}\n', ("line 2 has no field 'text'", "body, id")),
        (b'{"text": ["a"]}\n', ("line 1: 'text' is no text but list",)),
        (b'{"text": "\\ud800"}\n', ("line 1: text has half a character",)),
        (b'{"text": "\xff"}\n', ("line 1 is broken JSON",)),
        (b'{"messages": []}\n', ("line 1 has no field 'text'", "there are messages")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_documents__something_else__is_refused_with_what_to_do(
    data: bytes, words: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(Refused) as refused:
        read(tmp_path, data)

    message = str(refused.value)
    assert "corpus.txt" in message
    for each in words:
        assert each in message
    assert "\n" not in message and len(message.replace(str(tmp_path), "")) < 400


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (BOM + b"text\n", "text\n"),
        (LINES, "|".join(str(record["text"]) for record in RECORDS)),
        (BOM + LINES, "|".join(str(record["text"]) for record in RECORDS)),
        (b'\n{"text": "a"}\n\n{"text": null}\n{"text": ""}\n{"text": "b"}', "a|b"),
        (LONG + b"\n" + LONG, "|".join(2 * ["word " * 300_000])),
    ],
    ids=["mark", "lines", "marked lines", "empty ones", "long lines"],
)
def test_documents__text_or_json_lines__are_read(data: bytes, text: str, tmp_path: Path) -> None:
    assert read(tmp_path, data) == text


def test_documents__line_longer_than_a_record_may_be__refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.data.documents.MAX_RECORD_BYTES", 2**20)

    with pytest.raises(Refused, match="line 2 has more than 1048576 bytes"):
        read(tmp_path, b'{"text": "a"}\n' + LONG)


POEM = "Tyger Tyger, burning bright,\nIn the forests, of the night:\nWhat immortal, hand or eye,\n"
MARKDOWN = "# Use\n\n```json\n" + PRETTY.decode()[:300] + "\n```\n\nEach line:\n" + RECORD + "\n"
LOG = "2024-01-01 12:00:00,123 INFO started, ok\n2024-01-01 12:00:01,001 WARN {}, none\n" * 9
PYTHON = '"""Data."""\nDATA = [\n' + '    {\n        "a": "b",\n    },\n' * 90 + "]\n"
HTML_TALK = (
    "Write <!DOCTYPE html> first; version https://git-lfs.github.com/spec/v1 is a pointer.\n"
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Once upon a time.\n",
        "\ufeffOnce upon a time, with a mark.\n",
        "\u00fcber \u4e2d\u6587 \U0001f600",
        '{"a": 1} is an object of JSON, and\n{"b": 2} another.\n',
        '{"a": 1} is an object of JSON, and\n' + "so on, for a long while.\n" * 60_000,
        "[1] The first reference\n[2] The second\n",
        "[1] The first reference\n[2] The second\n" * 40_000,
        "[1, 2, 3]\n",
        "{\n  int main;\n}\n",
        "{\n  return {};\n}\n" * 99,
        "42\n17\n",
        '"To be or not to be."\n"That is the question."\n',
        '["Well," she said.]\n',
        "null\n",
        POEM,
        POEM * 3000,
        "\u6625\u7720\u4e0d\u89c9\u6653,\u5904\u5904\u95fb\u557c\u9e1f\n" * 9,
        "Dear Ann,\nI came, I saw, I won.\nYours,\nBob\n",
        "apples, pears\nnuts, plums\nmilk, bread\n",
        "name\nplace\nthing\n",
        "a,b = b,a\nc,d = d,c\ne,f = f,e\n",
        "import os,sys\nx,y\n",
        "text, as they say, is\nall, or nearly, there\nis, or so, they say\n",
        MARKDOWN,
        "Here is one:\n" + RECORD + "\nThat is all.\n",
        LOG,
        LOG + "".join(f"12:0{i} GET /a\n{{}}\n" for i in range(9)),
        PYTHON,
        PYTHON.replace('"""Data."""\n', ""),
        "all: a\n\ta b\n\nb: c\n\tc d\n",
        "SELECT a, b\nFROM t\nWHERE a = 'x, y';\n",
        "int f(int a, int b) {\n  return a, b;\n}\n" * 20,
        HTML_TALK * 20,
        "<p>A note in markup.</p>\n",
        "GGUF is a file format for models.\nIt holds tensors.\n",
        "<head>The head element</head> is where a page begins.\n",
        "<HTML is a language, wrote somebody.\n",
        '<?xml version="1.0"?> is how every file of ours begins.\n',
        "BZhang went to the market.\n",
    ],
)
def test_documents__text__is_taken_whole(text: str, tmp_path: Path) -> None:
    assert read(tmp_path, text.encode()).replace("|", "") == text.removeprefix("\ufeff")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (".git/annex/objects/x/y/SHA256E-s1--0f.txt/SHA256E-s1--0f.txt", "git annex get"),
        ("../gone.txt", "is a link to ../gone.txt, which is not here"),
    ],
)
def test_find_files__link_to_nothing_beside_a_text__is_not_passed_over(
    tmp_path: Path, target: str, words: str
) -> None:
    (tmp_path / "b.txt").symlink_to(target)

    with pytest.raises(NotFound, match=words):
        read(tmp_path, b"text")


@pytest.mark.parametrize("suffix", ["py", "md", "rst", "toml", "js", "c", "sol"])
def test_need_plain_start__sources_and_documents_of_this_project__are_taken(suffix: str) -> None:
    root = Path(__file__).parents[3]
    found: Callable[[str], list[Path]] = lambda name: list((root / name).rglob(f"*.{suffix}"))  # noqa: E731
    for path in [p for name in ("training", "docs", "contracts", "market") for p in found(name)]:
        if "node_modules" not in path.parts and path.is_file():  # forge's folders end in .sol
            data = path.read_bytes()
            need_plain_start(path.name, data)
            assert not is_json_lines(data)
