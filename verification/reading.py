"""How an untrusted file is read: was it damaged, and is every field of it as it should be? Pure.

Damage accuses nobody, so it is told apart from a file that was read and contradicts itself: it is
`Unreadable`, with what became of the file and what to do. What a file is is seen by its content.

A `Field` is a decoded value with the path that leads to it: every field is read by its path,
nothing missing, nothing left over. Whatever is not as expected raises `AuditMismatch` with that
path, so that a reader of an audit file learns where it lies.
"""

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import msgpack

from contracts.terms.encoding import Value, decode, encode
from contracts.terms.errors import AuditMismatch, Malformed, TallystickError, Unreadable
from contracts.terms.ids import Address
from contracts.terms.messages import Message
from contracts.terms.signatures import Signed, decode_signed
from contracts.terms.typed_data import Domain


def mismatch(path: str, message: str) -> NoReturn:
    """Refuse what is at `path`.

    Raises:
        AuditMismatch: always; data: `path`.
    """
    raise AuditMismatch(f"{path}: {message}", path=path)


def require(condition: bool, path: str, message: str) -> None:
    """Refuse what is at `path` unless `condition`."""
    if not condition:
        mismatch(path, message)


@contextmanager
def at(path: str) -> Iterator[None]:
    """Errors inside are mismatches at `path`, but for damage."""
    try:
        yield
    except (AuditMismatch, Unreadable):
        raise
    except TallystickError as error:
        raise AuditMismatch(f"{path}: {error.message}", path=path) from error


@dataclass(frozen=True)
class Field:
    """A value of the file and its path."""

    value: Value
    path: str = ""

    def child(self, key: str | int, value: Value) -> "Field":
        """The value under `key` of this one."""
        return Field(value, f"{self.path}/{key}" if self.path else str(key))

    def record(self, *names: str) -> dict[str, "Field"]:
        """A map with exactly these keys."""
        if not isinstance(self.value, dict) or set(self.value) != set(names):
            mismatch(self.path or "file", f"expected exactly the fields {', '.join(names)}")
        return {name: self.child(name, self.value[name]) for name in names}

    def list(self) -> list["Field"]:
        """A list."""
        if not isinstance(self.value, list):
            mismatch(self.path, "expected a list")
        return [self.child(index, value) for index, value in enumerate(self.value)]

    def bytes(self, *lengths: int) -> bytes:
        """Bytes, of one of `lengths` where given."""
        if not isinstance(self.value, bytes) or (lengths and len(self.value) not in lengths):
            mismatch(self.path, f"expected bytes of length {' or '.join(map(str, lengths))}")
        return self.value

    def integer(self) -> int:
        """A number that is not negative; large ones travel as 16 bytes."""
        value = self.value
        if isinstance(value, bytes) and len(value) == 16 and value[0] < 128 and any(value[:8]):
            value = int.from_bytes(value, "big")
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            mismatch(self.path, "expected a number that is not negative")
        return value

    def boolean(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            mismatch(self.path, "expected true or false")
        return self.value

    def text(self, expected: str) -> None:
        """Exactly the text `expected`."""
        require(self.value == expected, self.path, f"expected {expected}")


def read_domain(fields: Mapping[str, Field]) -> Domain:
    """Where wallet signatures hold, of the fields `chain_id` and `escrow`."""
    chain_id = fields["chain_id"].integer()
    require(chain_id < 2**64, fields["chain_id"].path, "no chain id")
    return Domain(chain_id, Address(fields["escrow"].bytes(20)))


def read_signed(field: Field) -> Signed[Message]:
    """A signed message of any kind."""
    with at(field.path):
        return decode_signed(encode(field.value))


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
