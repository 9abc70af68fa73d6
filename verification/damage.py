"""Is a file the file that was written, or was it packed, cut or changed on its way? Pure.

Damage accuses nobody, so it is told apart from a file that was read and contradicts itself: it is
`Unreadable`, with what became of the file and what to do. What a file is is seen by its content.
"""

import base64
from typing import NoReturn

import msgpack

from contracts.terms.encoding import Value, decode
from contracts.terms.errors import Malformed, Unreadable

_AGAIN = "fetch it again"
_BINARY = "fetch it again, as a binary file"
_FORMS: tuple[tuple[bytes, str, str], ...] = (
    (b"\x1f\x8b", "compressed by gzip", "unpack it with `gunzip < FILE > NEW`"),
    (b"PK\x03\x04", "in a zip archive", "unpack it with `unzip` first"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it with `zstd -d < FILE > NEW`"),
    (b"BZh", "compressed by bzip2", "unpack it with `bunzip2 < FILE > NEW`"),
    (b"\xfd7zXZ\x00", "compressed by xz", "unpack it with `unxz < FILE > NEW`"),
    (b"\xef\xbb\xbf", "stored as text, with a byte order mark", _BINARY),
    (b"\xff\xfe", "stored as text, with a byte order mark", _BINARY),
    (b"\xfe\xff", "stored as text, with a byte order mark", _BINARY),
    (b"version https://git-lfs", "a pointer of Git LFS", "run `git lfs pull`"),
    (b"<", "a web page, perhaps of an error or a login", "fetch the file itself"),
    (b"{", "JSON, perhaps a server's refusal", "read it, and fetch the file itself"),
)
_HEAD = 64  # bytes that are looked at
_MAP, _KEY = range(0x80, 0x90), range(0xA1, 0xC0)  # first bytes of a small map and of its key


def read_map(data: bytes, version: str, *, max_bytes: int) -> Value:
    """The map that a file of this version spells; its fields are not checked.

    Args:
        data: The file.
        version: Such as `audit_file.v3`, which the map holds as `version`.
        max_bytes: See `decode`.

    Raises:
        Unreadable: it was damaged, or is of another version or kind. TooLarge: see `decode`.
    """
    try:
        value = decode(data, max_bytes=max_bytes)
    except Malformed:
        damaged(data)
    kind, number = _version(version)
    found, found_number = _version(value.get("version") if isinstance(value, dict) else None)
    if found != kind:
        raise Unreadable(f"the file is no {kind.replace('_', ' ')}: name another file")
    if found_number > number:
        raise _newer(f"{found}.v{found_number}")
    if found_number < number:
        raise Unreadable(f"the file is of an older version ({found}.v{found_number}): make it anew")
    return value


def _newer(what: str) -> Unreadable:
    return Unreadable(
        f"the file says that it is of a newer version ({what:.80}), so nothing of it was checked: "
        "upgrade with `pip install --upgrade tallystick`"
    )


def damaged(data: bytes) -> NoReturn:
    """Refuse bytes that cannot be read, by what became of them; raises Unreadable."""
    raise Unreadable(f"the file {_found(data)}")


def _version(text: object) -> tuple[str, int]:
    kind, _, number = text.rpartition(".v") if isinstance(text, str) else ("", "", "")
    is_one = number.isascii() and number.isdecimal() and len(number) < 10
    return (kind, int(number)) if is_one else ("", 0)


def _found(data: bytes) -> str:
    if not data:
        return f"is empty: {_AGAIN}"
    head = data[:_HEAD]
    for start, form, remedy in _FORMS:
        if head.lstrip().startswith(start):
            return f"is {form}: {remedy}"
    if _begins(_from_base64(head)):
        return "is encoded by base64: decode it with `base64 -d < FILE > NEW`"
    if not _begins(head):
        return "is no such file: name another one"
    if 1 < data.count(b"\n") == data.count(b"\r\n"):
        return f"has other line ends than were written (CRLF): {_BINARY}"
    return _cut_or_longer(data)


def _from_base64(head: bytes) -> bytes:
    text = b"".join(head.split())
    try:
        return base64.b64decode(text[: len(text) // 4 * 4], validate=True)
    except ValueError:
        return b""


def _begins(data: bytes) -> bool:
    return data[:1] != b"" and data[0] in _MAP and (len(data) < 2 or data[1] in _KEY)


def _cut_or_longer(data: bytes) -> str:
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    try:
        unpacker.skip()
    except msgpack.OutOfData:
        return f"ends early, after {len(data)} bytes: {_AGAIN}"
    except (ValueError, msgpack.UnpackException):
        return f"was changed on its way: {_BINARY}"
    if extra := len(data) - unpacker.tell():
        return f"goes on after its end, by {extra} bytes: {_AGAIN}, or cut them off"
    return f"was changed on its way: {_BINARY}"
