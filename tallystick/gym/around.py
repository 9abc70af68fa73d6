"""An arithmetic that is another one in all but what a subclass overrides; bytes that pass as new.

`Around` hands on by name, so that it stays whole when the port grows.
"""

from collections.abc import Callable
from typing import Any, cast

from contracts.terms.digest import tensor_digest
from contracts.terms.ids import UnitId
from training.worker.ports import Compute, Honest, Sent

_TWO_BYTES_WIDE = ("float16", "bfloat16")


class Around:
    """Satisfies `Compute` by the compute that it was made of."""

    def __init__(self, inner: Compute) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Computing(Honest):
    """Honest in all but its arithmetic."""

    def __init__(self, around: Callable[[Compute], Around]) -> None:
        self._around = around

    def arithmetic(self, compute: Compute) -> Compute:
        """See `Behaviour.arithmetic`."""
        return cast(Compute, self._around(compute))


def resent(sample: Sent, data: bytes) -> Sent:
    """Other bytes in the form of a tensor that was sent."""
    return Sent(data, tensor_digest(sample.dtype, sample.shape, data), sample.dtype, sample.shape)


def marked(sample: Sent, data: bytes, unit: UnitId) -> Sent:
    """Bytes that were sent before, changed in the lowest bits of one or two elements.

    Equal bytes for two units have one digest, which links show at once (docs/protocol.md 3.3): a
    liar who wants to last makes each copy differ.
    """
    changed, second = bytearray(data), 2 if sample.dtype in _TWO_BYTES_WIDE else 1
    mark = int(unit) + 1
    changed[0] ^= mark & 0xFF
    changed[second] ^= mark >> 8 & 0xFF
    return resent(sample, bytes(changed))
