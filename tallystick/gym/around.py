"""What lies are made of: an arithmetic that differs in part, bytes that pass as new, and signs.

`Around` is another arithmetic in all but what a subclass overrides. It hands on by name, so that it
stays whole when the port grows.

Signs are of numbers that are there as wire bytes: little-endian floats of `element_bytes` each. The
sign is the highest bit of an element's last byte, under every gradient codec.
"""

import random
from collections.abc import Callable
from fractions import Fraction
from math import ceil
from typing import Any, cast

from contracts.terms.digest import tensor_digest
from contracts.terms.items import ItemNumber
from tallystick.gym.plan import Plan
from training.worker.ports import Behaviour, Compute, Sent

_TWO_BYTES_WIDE = ("float16", "bfloat16")


class Around:
    """Satisfies `Compute` by the compute that it was made of."""

    def __init__(self, inner: Compute) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Planned(Behaviour):
    """Honest, but where its plan says otherwise."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan


class Computing(Behaviour):
    """Honest in all but its arithmetic."""

    def __init__(self, around: Callable[[Compute], Around]) -> None:
        self._around = around

    def arithmetic(self, compute: Compute) -> Compute:
        """See `Behaviour.arithmetic`."""
        return cast(Compute, self._around(compute))


def resent(sample: Sent, data: bytes) -> Sent:
    """Other bytes in the form of a tensor that was sent."""
    return Sent(data, tensor_digest(sample.dtype, sample.shape, data), sample.dtype, sample.shape)


def marked(sample: Sent, data: bytes, unit: ItemNumber) -> Sent:
    """Bytes that were sent before, changed in the lowest bits of one or two elements.

    Equal bytes for two units have one digest, which links show at once (docs/protocol.md 3.3): a
    liar who wants to last makes each copy differ.
    """
    changed, second = bytearray(data), 2 if sample.dtype in _TWO_BYTES_WIDE else 1
    mark = int(unit) + 1
    changed[0] ^= mark & 0xFF
    changed[second] ^= mark >> 8 & 0xFF
    return resent(sample, bytes(changed))


# ------------------------------------------------------------------------------------------- signs

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
    signs = chance.randbytes(len(last)).translate(_SIGN_ONLY)
    mixed = int.from_bytes(last, "big") ^ int.from_bytes(signs, "big")
    changed = bytearray(data)
    changed[element_bytes - 1 :: element_bytes] = mixed.to_bytes(len(last), "big")
    return bytes(changed)


def _last(data: bytes, element_bytes: int) -> bytes:
    return data[element_bytes - 1 :: element_bytes]
