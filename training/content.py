"""What is a file, if it is not what its name promises? One answer for data, weights and tokenizers.

A file is judged by its first bytes, never by its name: other encodings, archives, documents, and
what stands in for a file that was not fetched (pointers of Git LFS and git-annex, error pages).
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

from contracts.terms.errors import NotFound

LOOKED_AT = 2**20
"""Bytes from the start of a file that decide what it is, however large it is."""
UTF8_MARK = b"\xef\xbb\xbf"
_LARGEST_POINTER = 1024  # of Git LFS, by its specification
_CUT_WITHIN = re.compile(r"[-+\\.\w]{0,6}")  # a number, a literal or an escape


class Kind(NamedTuple):
    """What a file is, with its article, and what to do to get what was wanted."""

    name: str
    remedy: str


_ANNEX = Kind("a git-annex pointer, not the file itself", "run `git annex get` where it lies")
_MAGIC = (
    (b"PAR1", "a Parquet file", "write its text column into a text file"),
    (b"ARROW1", "an Arrow file", "write its text column into a text file"),
    (b"\x1f\x8b", "compressed by gzip", "unpack it with `gunzip -k`"),
    (b"PK\x03\x04", "a zip archive", "unpack it with `unzip`, and name the files in it"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it with `zstd -d`"),
    (b"BZh91AY&SY", "compressed by bzip2", "unpack it with `bunzip2 -k`"),
    (b"\xfd7zXZ\x00", "compressed by xz", "unpack it with `unxz -k`"),
    (b"\xff\xfe\x00\x00", "UTF-32 text", "convert it with `iconv -f UTF-32 -t UTF-8`"),
    (b"\x00\x00\xfe\xff", "UTF-32 text", "convert it with `iconv -f UTF-32 -t UTF-8`"),
    (b"\xff\xfe", "UTF-16 text", "convert it with `iconv -f UTF-16 -t UTF-8`"),
    (b"\xfe\xff", "UTF-16 text", "convert it with `iconv -f UTF-16 -t UTF-8`"),
    (b"%PDF-", "a PDF document", "extract its text with `pdftotext`"),
    (b"{\\rtf", "an RTF document", "extract its text, for example with `textutil` or `pandoc`"),
    (b"GGUF\3\0\0\0", "a GGUF file", "name the folder of transformers that it was made from"),
)
_PATTERNS = (
    (rb"(/|(\.\./)*\.git/)annex/objects/\S", *_ANNEX),
    (
        rb"\s*(<!--.{0,999}?-->\s*)*<(!doctype\s+html\b|html(\s[^<>]*=[^<>]*)?>\s*<|head>\s*<)",
        "an HTML page",
        "if it tells of an error, download the file again; of a page that you mean extract the "
        "text, for example with `pandoc -t plain`",
    ),
    (
        rb"\s*<(\?xml\s[^>]*\?>\s*<|error>\s*<code>)",
        "an XML document",
        "if it tells of an error, download the file again; else extract its text",
    ),
)


def what_is(data: bytes) -> Kind | None:
    """What a file is that is neither text, JSON nor weights; None if nothing is known of it.

    Args:
        data: The file, or its first bytes; what stands in for a file is short, and all of it.
    """
    for start, name, remedy in _MAGIC:
        if data.startswith(start):
            return Kind(name, remedy)
    is_short = len(data) < _LARGEST_POINTER
    if is_short and re.match(rb"version https://(git-lfs|hawser)\.github\.com/spec/v", data):
        return Kind(
            "a Git LFS pointer, not the file itself", "run `git lfs pull` in its repository"
        )
    start = data[:4096].removeprefix(UTF8_MARK)
    for pattern, name, remedy in _PATTERNS:
        if re.match(pattern, start, re.IGNORECASE | re.DOTALL):
            return Kind(name, remedy)
    return None


def why_no_json(data: bytes, error: Exception) -> str:
    """Why a file that should be JSON is none, and what to do, for the end of a sentence."""
    if (kind := what_is(data)) is not None:
        return f"is {kind.name}: {kind.remedy}"
    if isinstance(error, json.JSONDecodeError) and ends_early(error):
        return "is JSON that ends early, as of a download that was cut: download it again"
    return f"is no JSON: {error}"


def ends_early(error: json.JSONDecodeError) -> bool:
    """Whether what was wrong with JSON is that no more of it came."""
    rest = error.doc[error.pos :].strip()
    return error.msg.startswith("Unterminated string") or bool(_CUT_WITHIN.fullmatch(rest))


def need_target(path: Path, what: str) -> None:
    """Refuse a link to nothing, as git-annex leaves it of a file that was not fetched.

    Raises:
        NotFound: with what to do.
    """
    if path.is_symlink() and not path.exists():
        target = str(path.readlink())
        kind = what_is(target.encode(errors="replace"))
        remedy = "fetch what it points to" if kind is None else kind.remedy
        raise NotFound(f"{what}: {path} is a link to {target}, which is not here: {remedy}")
