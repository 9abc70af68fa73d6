"""How a value becomes bytes, in exactly one way.

Canonical msgpack: maps with sorted text keys, shortest forms, no floats, no extension types,
integers above 2^63-1 as 16 bytes big-endian (docs/protocol.md 1). `decode` refuses any other
spelling of the same value, so a digest names one byte string and a value has one digest.
"""

from typing import TypeAlias

import msgpack

from contracts.terms.errors import Malformed, TooLarge

Value: TypeAlias = (
    "bool | int | str | bytes | list[Value] | tuple[Value, ...] | dict[str, Value] | None"
)

MAX_MESSAGE_BYTES = 4 * 2**20
_SMALL = 2**63 - 1
_LARGE = 2**127 - 1
_AS_IT_IS = frozenset((bytes, str, bool, type(None)))


def _canonical(value: Value) -> Value:
    if type(value) in _AS_IT_IS or isinstance(value, str | bytes):
        return value
    if isinstance(value, int):
        if value > _LARGE or value < -_SMALL:
            raise Malformed(f"integer {value} does not fit 16 bytes")
        return value if value <= _SMALL else value.to_bytes(16, "big")
    if isinstance(value, list | tuple):
        return [item if type(item) in _AS_IT_IS else _canonical(item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise Malformed("map keys must be text")
        return {
            key: item if type(item) in _AS_IT_IS else _canonical(item)
            for key, item in sorted(value.items())
        }
    raise Malformed(f"a {type(value).__name__} cannot be encoded")


def encode(value: Value) -> bytes:
    """Canonical bytes of `value`.

    Raises:
        Malformed: a float, a key that is not text, an integer over 127 bits, another type.
    """
    return bytes(msgpack.packb(_canonical(value), use_bin_type=True))


def decode(data: bytes, *, max_bytes: int = MAX_MESSAGE_BYTES) -> Value:
    """The value that `data` spells; large integers come back as 16 bytes.

    Raises:
        TooLarge: more than `max_bytes`.
        Malformed: not msgpack, not canonical, or trailing bytes.
    """
    if len(data) > max_bytes:
        raise TooLarge(f"{len(data)} bytes, at most {max_bytes}", size=len(data), limit=max_bytes)
    try:
        value: Value = msgpack.unpackb(data, raw=False, use_list=True, strict_map_key=True)
        canonical = encode(value)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise Malformed(f"not msgpack: {error}") from error
    if canonical != data:
        raise Malformed("not in canonical form")
    return value
