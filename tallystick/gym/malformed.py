"""Peers that send what no tensor may be: not finite, or longer than its header says.

Digests, headers and signatures are in order, so the bytes are bound to whom they come from.
"""

from dataclasses import replace

from typing_extensions import Buffer

from contracts.terms.ids import StepNumber, UnitId
from contracts.terms.messages import GradientCodecName
from tallystick.gym.around import Around, resent
from tallystick.gym.plan import Plan
from training.averaging.slices import Slice, slice_digest
from training.worker.ports import Compute, Honest, Passed, Sent

_ONES = b"\xff"  # all bits set: nan in every float format, and as the scale of a block


def not_finite(data: bytes) -> bytes:
    """As many bytes, of which none is a number."""
    return _ONES * len(data)


def oversized(data: bytes) -> bytes:
    """The bytes twice."""
    return data + data


class Spoilt(Around):
    """Honest passes, whose boundary tensors nobody can then compute with."""

    def __init__(self, inner: Compute, plan: Plan, *, is_oversized: bool) -> None:
        super().__init__(inner)
        self._plan, self._change = plan, oversized if is_oversized else not_finite

    def forward(self, step: StepNumber, unit: UnitId, x: Buffer | None) -> Passed:
        """See `Compute.forward`."""
        return self._spoilt(step, unit, self._inner.forward(step, unit, x))

    def backward(
        self, step: StepNumber, unit: UnitId, x: Buffer | None, dy: Buffer | None
    ) -> Passed:
        """See `Compute.backward`."""
        return self._spoilt(step, unit, self._inner.backward(step, unit, x, dy))

    def _spoilt(self, step: StepNumber, unit: UnitId, passed: Passed) -> Passed:
        if not self._plan.lies_about(step, unit):
            return passed
        return replace(passed, y=self._changed(passed.y), dx=self._changed(passed.dx))

    def _changed(self, sent: Sent | None) -> Sent | None:
        return None if sent is None else resent(sent, self._change(sent.data))


class SpoiltParts(Honest):
    """Parts of a gradient that nobody can add up, as long as the true ones by their own word."""

    def __init__(self, plan: Plan, codec: GradientCodecName, *, is_oversized: bool) -> None:
        self._plan, self._codec = plan, codec
        self._change = oversized if is_oversized else not_finite

    def parts(self, compute: Compute, step: StepNumber) -> tuple[Slice, ...]:
        """See `Behaviour.parts`."""
        honest = compute.gradient()
        if not self._plan.lies_in(step):
            return honest
        return tuple(self._spoilt(piece) for piece in honest)

    def _spoilt(self, piece: Slice) -> Slice:
        data = self._change(piece.data)
        return Slice(data, slice_digest(data, self._codec), piece.norm_squared)
