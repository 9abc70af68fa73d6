"""Is a file that was packed, cut or changed told apart from one that contradicts itself?"""

import base64
import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from contracts.terms.encoding import decode, encode
from contracts.terms.errors import AuditMismatch, Unreadable
from tests.support.audited import paid_job
from verification.audit.audit_file import read_file
from verification.equivocation import read_proof
from verification.reading import read_map


def zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("job.tally", data)
    return file.getvalue()


def of_version(data: bytes, version: bytes) -> bytes:
    return data.replace(b"audit_file.v3", version)


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "gzip": (gzip.compress, "compressed by gzip: unpack it with `gunzip < FILE > NEW`"),
    "bzip2": (bz2.compress, "compressed by bzip2: unpack it with `bunzip2 < FILE > NEW`"),
    "xz": (lzma.compress, "compressed by xz: unpack it with `unxz < FILE > NEW`"),
    "zip": (zipped, "in a zip archive: unpack it with `unzip` first"),
    "cut": (lambda data: data[:-1], "ends early, after "),
    "cut in half": (lambda data: data[: len(data) // 2], "ends early, after "),
    "cut to a head": (lambda data: data[:9], "ends early, after 9 bytes: fetch it again"),
    "CRLF": (lambda data: data.replace(b"\n", b"\r\n"), "other line ends than were written (CRLF)"),
    "BOM": (lambda data: b"\xef\xbb\xbf" + data, "with a byte order mark"),
    "base64": (base64.encodebytes, "encoded by base64: decode it with `base64 -d < FILE > NEW`"),
    "base64 in a line": (base64.b64encode, "encoded by base64"),
    "web page": (lambda _: b"\n<!doctype html><title>502", "a web page"),
    "refusal": (lambda _: b'{"code":"not_found"}', "JSON, perhaps a server's refusal"),
    "LFS": (lambda _: b"version https://git-lfs.github.com/spec/v1\n", "run `git lfs pull`"),
    "empty": (lambda _: b"", "is empty: fetch it again"),
    "line end": (lambda data: data + b"\n", "goes on after its end, by 1 bytes"),
    "text": (lambda _: b"Hello Ann", "is no such file"),
    "image": (lambda _: b"\x89PNG\r\n\x1a\n\0\0", "is no such file"),
    "other msgpack": (lambda _: encode({"version": "equivocation.v2"}), "is no audit file"),
    "no version": (lambda _: encode({"version": 5}), "is no audit file"),
    "another order": (lambda _: b"\x82\xa1b\x01\xa1a\x01", "was changed on its way"),
    "newer": (lambda data: of_version(data, b"audit_file.v4"), "a newer version (audit_file.v4)"),
    "older": (lambda data: of_version(data, b"audit_file.v2"), "an older version (audit_file.v2)"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_read_file__damaged_or_of_another_version__says_what_to_do(name: str) -> None:
    damage, said = DAMAGE[name]

    with pytest.raises(Unreadable) as caught:
        read_file(damage(paid_job().data))

    assert said in caught.value.message


@pytest.mark.parametrize("kind", ["seal.v9", "none.v7"])
def test_read_file__one_item_of_a_newer_version__hides_no_mismatch(kind: str) -> None:
    # A file of this version holds messages of this version: a signer of junk would be believed.
    fields: Any = decode(paid_job().data)
    item = {"type": "signed", "message": {"kind": kind}, "signature": bytes(65)}
    fields["items"].append(item)

    with pytest.raises(AuditMismatch, match=r"items/\d+"):
        read_file(encode(fields))


def test_read_file__version_of_many_digits__is_another_kind() -> None:
    with pytest.raises(Unreadable, match="is no audit file"):
        read_file(encode({"version": "audit_file.v" + "9" * 5000}))


def test_read_file__too_few_fields__is_a_mismatch() -> None:
    with pytest.raises(AuditMismatch):
        read_file(encode({"version": "audit_file.v3"}))


def test_read_proof__an_audit_file__says_that_it_is_no_proof() -> None:
    with pytest.raises(Unreadable, match="the file is no equivocation: name another file"):
        read_proof(paid_job().data)


@pytest.mark.parametrize("version", ["file.v\u0661", "file.v", "file", "file.v-1"])
def test_read_map__version_that_is_none__is_another_kind(version: str) -> None:
    with pytest.raises(Unreadable, match="is no file"):
        read_map(encode({"version": version}), "file.v1", max_bytes=100)
