"""Data that would be misread: refused by content, with what to do; honest text is taken."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.terms.errors import NotFound, Refused
from training.data.corpus import corpus_bytes
from training.data.plain_text import need_plain_text

BOM = b"\xef\xbb\xbf"
CHAT = json.dumps({"messages": [{"role": "user", "content": "hello"}]})
RECORDS = [
    {"id": str(i), "text": f"once upon a time, {i}\nthere was \u00e9", "tags": ["a", {"b": None}]}
    for i in range(40)
]
RECORD = json.dumps(RECORDS[0])
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()
PRETTY = "\n".join(json.dumps(record, indent=2) for record in RECORDS).encode()
LIST = json.dumps(RECORDS).encode()
STRINGS = [record["text"] for record in RECORDS]
LONG = json.dumps({"text": "word " * 300_000}).encode()  # longer than what is parsed
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
ANNEX = b"/annex/objects/SHA256E-s123--0f0f.txt\n"
CSV = 'id,text,label\n1,"Hello, you",good\n2,"one\ntwo",bad\n3,plain,good\n'
S3 = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>'


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PAR1\x15\x04PAR1", ("Parquet", "text column")),
        (gzip.compress(b"text"), ("gzip", "gunzip")),
        (b"PK\x03\x04rest", ("zip archive", "unzip")),
        ("text".encode("utf-16"), ("UTF-16", "iconv")),
        ("text".encode("utf-32"), ("UTF-32", "iconv -f UTF-32")),
        (b"some\x00thing", ("zero byte at 4", "UTF-8")),
        (b"ab\xe9cd", ("byte 0xe9 at 2", "iconv")),
        (b"a" * (2**20 - 1) + b"\xc3\x28", (f"byte 0xc3 at {2**20 - 1}",)),
        (b"cut \xc3", ("byte 0xc3 at 4",)),
        (f"{RECORD}\n\n{RECORD}\n".encode(), ("JSON lines", "jq -r '.text'")),
        (f"{CHAT}\n{CHAT}\n".encode(), ("JSON lines of chats", "'.messages[]|.role")),
        (RECORD.encode(), ("a JSON document", "jq -r '.text'")),
        (f"[\n  {RECORD}\n]".encode(), ("a JSON document", "'.[]|.text'")),
        (BOM + LINES, ("JSON lines", "jq -r '.text'")),
        (BOM + f"{CHAT}\n{CHAT}\n".encode(), ("of chats",)),
        (BOM + LIST, ("a JSON document",)),
        (PRETTY, ("JSON objects, one after the other", "jq -r '.text'")),
        (b"null\n" + LINES, ("JSON lines", "jq -r '.text'")),
        (LINES[200:], ("JSON lines", "begins within a record")),
        (LINES[20:-20], ("JSON lines", "begins within a record")),
        (PRETTY[30:], ("JSON objects, one after the other", "begins within a record")),
        (b"".join(LINES.splitlines(True)[:9]) + b"broken\n", ("JSON lines",)),
        (b",\n".join(LINES.splitlines()), ("JSON", "jq")),
        (json.dumps(STRINGS).encode(), ("a JSON list of texts", "jq -r '.[]'")),
        (json.dumps(STRINGS, indent=1).encode(), ("a JSON list of texts",)),
        ("\n".join(map(json.dumps, STRINGS)).encode(), ("JSON texts", "jq -r '.'")),
        (json.dumps([["user", "hi"], ["bot", "hello"]]).encode(), ("a JSON document of lists",)),
        (LIST[:-100], ("a JSON document",)),
        (LONG, ("a JSON document",)),
        (b"[" + LONG + b"," + LONG + b"]", ("a JSON document", "'.[]|")),
        (LONG + b"\n" + LONG, ("JSON",)),
        (LONG[50:] + b"\n" + LONG + b"\n" + LONG[:-9], ("JSON lines", "begins within")),
        (b"[" + LIST[1:-1] * 600 + b"]", ("a JSON document", "'.[]|.text'")),
        (b"[" + b",\n".join(LINES.splitlines() * 300) + b"]", ("a JSON document",)),
        (CSV.encode(), ("a table (CSV)", '"text"')),
        (BOM + CSV.encode(), ("a table (CSV)",)),
        (CSV.replace(",g", ";g").replace(",", ";").encode(), ("a table (CSV)",)),
        (b"".join(b"%d\tline %d\n" % (i, i) for i in range(9)).join([b"a\tb\n", b""]), ("TSV",)),
        (b"text\n" + b'"Hello, you"\n' * 4, ("a table (CSV)",)),
        (b",prompt,answer\n" + b"0,why,so\n" * 4, ("a table (CSV)", '"prompt"')),
        (LFS, ("a Git LFS pointer", "git lfs pull")),
        (ANNEX, ("a git-annex pointer", "git annex get")),
        (b"../../.git/annex/objects/x/y/SHA256E-s1--0f.txt/SHA256E-s1--0f.txt", ("annex get",)),
        (b"\n<!DOCTYPE html>\n<title>404 Not Found</title>", ("an HTML page", "download")),
        (S3, ("an XML document", "download")),
        (rb"{\rtf1\ansi text}", ("RTF", "textutil")),
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
    assert "\n" not in message and len(message) < 400


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
        POEM * 30,
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
def test_need_plain_text__text__is_taken(text: str) -> None:
    need_plain_text("corpus.txt", text.encode())


def in_a_folder(folder: Path, data: bytes) -> str:
    (folder / "a.txt").write_bytes(data)
    return str(folder / "*.txt")


def test_corpus_bytes__text_with_a_mark_of_utf8__mark_is_no_part_of_it(tmp_path: Path) -> None:
    assert corpus_bytes(in_a_folder(tmp_path, BOM + b"text\n")) == b"text\n\n"


def test_corpus_bytes__larger_than_any_corpus__told_by_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.data.corpus.MAX_CORPUS_BYTES", 2**21)

    with pytest.raises(Refused, match="a JSON document"):
        corpus_bytes(in_a_folder(tmp_path, b"[" + LIST[1:-1] * 900 + b"]"))


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (".git/annex/objects/x/y/SHA256E-s1--0f.txt/SHA256E-s1--0f.txt", "git annex get"),
        ("../gone.txt", "is a link to ../gone.txt, which is not here"),
    ],
)
def test_corpus_bytes__link_to_nothing_beside_a_text__is_not_passed_over(
    tmp_path: Path, target: str, words: str
) -> None:
    (tmp_path / "b.txt").symlink_to(target)

    with pytest.raises(NotFound, match=words):
        corpus_bytes(in_a_folder(tmp_path, b"text"))


@pytest.mark.parametrize("suffix", ["py", "md", "rst", "toml", "js", "c", "sol"])
def test_need_plain_text__sources_and_documents_of_this_project__are_taken(suffix: str) -> None:
    root = Path(__file__).parents[3]
    found: Callable[[str], list[Path]] = lambda name: list((root / name).rglob(f"*.{suffix}"))  # noqa: E731
    for path in [p for name in ("training", "docs", "contracts", "market") for p in found(name)]:
        if "node_modules" not in path.parts and path.is_file():  # forge's folders end in .sol
            need_plain_text(path.name, path.read_bytes())
