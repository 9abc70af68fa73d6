"""What a worker needs to compute with; `stage_compute` has torch, `counting` is the fake."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from typing_extensions import Buffer

from contracts.terms.ids import Digest, StepNumber, UnitId
from contracts.terms.messages import UnitLeaf
from training.averaging.slices import Slice


@dataclass(frozen=True)
class Roots:
    """Digests of a stage's state, and of its weights alone."""

    state: Digest
    weights: Digest


class Compute(Protocol):
    """The arithmetic of one stage. Not thread-safe: one call at a time, and each may take long."""

    def begin_step(self) -> None:
        """Forget all units."""
        ...

    @property
    def units(self) -> tuple[UnitId, ...]:
        """Units in the gradient, in the order they were added."""
        ...

    def add_unit(self, step: StepNumber, unit: UnitId) -> UnitLeaf:
        """Compute a unit and add its gradient.

        Raises:
            NotFinite: inf or nan. Unavailable: its rows cannot be fetched now.
            WrongBytes: its rows are not those of the manifest.
        """
        ...

    def gradient(self) -> tuple[Slice, ...]:
        """The mean gradient of the units so far, cut in the job's chunks."""
        ...

    def mean(self, parts: Sequence[Buffer], weights: Sequence[int]) -> Slice:
        """Weighted mean of one chunk's parts, in the given order.

        Raises:
            Malformed: parts of different lengths. NotFinite: inf or nan.
        """
        ...

    def apply(self, chunks: Sequence[Buffer], sealed_norm: int) -> None:
        """Update the state by all averaged chunks; the norm is in 1e-9.

        Raises:
            Malformed: another number of elements. NotFinite: inf or nan.
        """
        ...

    def roots(self) -> Roots:
        """Digests of the present state."""
        ...

    def save(self, folder: Path, step: StepNumber) -> None:
        """Keep the state after `step`, whole or not at all; the one before is kept too.

        Raises:
            Unavailable: the disk is full or cannot be written.
        """
        ...

    def restore(self, folder: Path) -> StepNumber:
        """Load the newest state that is whole; 0, and the initial state, if there is none."""
        ...

    def oldest_kept(self, folder: Path) -> StepNumber:
        """Step of the oldest state in `folder`, 0 if there is none: chunks since are needed."""
        ...

    def validation_loss(self) -> int:
        """Loss on validation rows, 1e-6 nats per token.

        Raises:
            Unavailable: its rows cannot be fetched now.
        """
        ...
