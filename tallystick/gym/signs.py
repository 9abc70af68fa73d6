"""Signs of numbers that are there as wire bytes: little-endian floats of `element_bytes` each.

The sign is the highest bit of an element's last byte, under every gradient codec.
"""

import random
from fractions import Fraction
from math import ceil

_SIGN = 0x80
_TURNED = bytes(byte ^ _SIGN for byte in range(256))
_SIGN_ONLY = bytes(byte & _SIGN for byte in range(256))


def all_turned(data: bytes, element_bytes: int) -> bytes:
    """Every number negated: as long, and the opposite."""
    changed = bytearray(data)
    changed[element_bytes - 1 :: element_bytes] = _last(data, element_bytes).translate(_TURNED)
    return bytes(changed)


def some_turned(data: bytes, element_bytes: int, share: Fraction, chance: random.Random) -> bytes:
    """That share of the numbers negated, at least one."""
    changed, num_elements = bytearray(data), len(data) // element_bytes
    for element in chance.sample(range(num_elements), ceil(num_elements * share)):
        changed[(element + 1) * element_bytes - 1] ^= _SIGN
    return bytes(changed)


def shuffled(data: bytes, element_bytes: int, chance: random.Random) -> bytes:
    """Every sign by chance: as long, and in no direction."""
    last = _last(data, element_bytes)
    coins = chance.randbytes(len(last)).translate(_SIGN_ONLY)
    mixed = int.from_bytes(last, "big") ^ int.from_bytes(coins, "big")
    changed = bytearray(data)
    changed[element_bytes - 1 :: element_bytes] = mixed.to_bytes(len(last), "big")
    return bytes(changed)


def _last(data: bytes, element_bytes: int) -> bytes:
    return data[element_bytes - 1 :: element_bytes]
