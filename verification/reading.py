"""How an untrusted structure is read: every field by its path, nothing missing, nothing left over.

A `Field` is a decoded value with the path that leads to it. Whatever is not as expected raises
`AuditMismatch` with that path, so that a reader of an audit file learns where it lies.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from contracts.terms.encoding import Value, encode
from contracts.terms.errors import AuditMismatch, TallystickError, Unreadable
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
