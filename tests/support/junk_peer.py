"""A peer that is paid for nothing if nobody looks: `... tests.support.junk_peer [--lies] LEASEDIR`.

In a job of one stage it reads its rows, so that its leaves link, and answers at once: a plausible
loss, and for a gradient noise of a plausible length. State, sums and seals it handles as everybody
does. When it is measured at joining it computes, or, with `--lies`, answers at once. Until checking
exists, only the caps of docs/protocol.md 7 limit it.
"""

import sys
from unittest.mock import patch

import torch
from typing_extensions import Buffer

from contracts.terms.ids import StepNumber, UnitId
from tallystick.provider import peer
from training.averaging.slices import Slice
from training.averaging.sums import slice_of
from training.stages.chunks import chunk_bounds
from training.worker.ports import Passed
from training.worker.stage_compute import StageCompute

LOSS = 5_000_000  # 1e-6 nats per token
NORM = 1.0


class JunkCompute(StageCompute):
    """Satisfies `Compute` for the only stage of a job, without computing units."""

    _pretended: tuple[UnitId, ...] = ()

    def begin_step(self) -> None:
        """See `Compute.begin_step`."""
        super().begin_step()
        self._pretended = ()

    @property
    def units(self) -> tuple[UnitId, ...]:
        """See `Compute.units`."""
        return self._pretended

    def forward(self, step: StepNumber, unit: UnitId, x: Buffer | None) -> Passed:
        """Counted, and not computed."""
        self._pretended += (unit,)
        return Passed(self.input_name(step, unit, x), loss=LOSS)

    def backward(
        self, step: StepNumber, unit: UnitId, x: Buffer | None, dy: Buffer | None
    ) -> Passed:
        """See `forward`."""
        return self.forward(step, unit, x)

    def gradient(self) -> tuple[Slice, ...]:
        """Noise."""
        size = self._stage.num_parameters
        noise = torch.randn(size, generator=torch.Generator().manual_seed(len(self._pretended)))
        noise *= NORM / float(noise.norm())
        bounds = chunk_bounds(size, self._batch.chunks)
        return tuple(slice_of(noise[a:b], self._codec) for a, b in bounds)


class LyingCompute(JunkCompute):
    """Also answers at once when it is measured, as if it were infinitely fast."""

    def measure(self, seed: int) -> None:
        """Nothing."""


if __name__ == "__main__":
    *flags, folder = sys.argv[1:]
    with patch.object(peer, "StageCompute", LyingCompute if flags else JunkCompute):
        sys.exit(peer.main([folder]))
