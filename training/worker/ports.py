"""What a worker needs to compute with; `stage_compute` has torch, `counting` is the fake."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from typing_extensions import Buffer

from contracts.terms.ids import Digest, StepNumber, UnitId
from contracts.terms.messages import DTypeName
from training.averaging.slices import Slice


@dataclass(frozen=True)
class Roots:
    """Digests of a stage's state, and of its weights alone."""

    state: Digest
    weights: Digest


@dataclass(frozen=True)
class Sent:
    """A boundary tensor as it travels: wire bytes after the job's codec, and what they spell."""

    data: bytes
    digest: Digest  # `tensor_digest` of dtype name, shape and data
    dtype: DTypeName  # of the wire bytes
    shape: tuple[int, ...]  # of the tensor: (rows, tokens, width)


@dataclass(frozen=True)
class Passed:
    """What came out of a pass through the stage; None where the stage has no such tensor."""

    x: Digest  # of the input: of the rows on the first stage
    y: Sent | None = None
    dx: Sent | None = None
    loss: int | None = None  # 1e-6 nats per token, mean over the unit; on the last stage


class Compute(Protocol):
    """The arithmetic of one stage. Not thread-safe: one call at a time, and each may take long.

    A unit is counted by its backward pass, on the last stage by its forward pass. Boundary tensors
    come and go as wire bytes; what was received is computed with as decoded, so that whoever
    repeats the unit from the bytes repeats the numbers. They are not kept here: whoever calls has
    them on disk. After `NotFinite` the gradient is as before, or empty (`units` says which).
    """

    @property
    def is_first(self) -> bool:
        """Whether the stage reads rows instead of x."""
        ...

    @property
    def is_last(self) -> bool:
        """Whether the stage has the loss instead of y."""
        ...

    def begin_step(self) -> None:
        """Forget all units."""
        ...

    @property
    def units(self) -> tuple[UnitId, ...]:
        """Units in the gradient, in the order they were added."""
        ...

    def forward(self, step: StepNumber, unit: UnitId, x: Buffer | None) -> Passed:
        """Compute a unit, again if it was computed before; on the last stage also count it.

        Raises:
            NotFinite: inf or nan. Unavailable: its rows cannot be fetched now.
            WrongBytes: its rows are not those of the manifest. Malformed: x has another size.
            Refused: it is counted already.
        """
        ...

    def keeps(self, unit: UnitId) -> bool:
        """Whether the forward pass of a unit is kept, so that its backward needs no x."""
        ...

    def forget(self, unit: UnitId) -> None:
        """Keep no forward pass of a unit."""
        ...

    def backward(
        self, step: StepNumber, unit: UnitId, x: Buffer | None, dy: Buffer | None
    ) -> Passed:
        """Count a unit; on the last stage, which has no dy, both passes.

        Its last forward is continued if it `keeps` that, else repeated from `x`, and y is in what
        comes back. Raises: see `forward`.
        """
        ...

    def subtract(self, step: StepNumber, unit: UnitId, x: Buffer | None, dy: Buffer | None) -> None:
        """Take a unit, counted from these tensors, out of the gradient again.

        Raises:
            Refused: it is not counted. NotFinite: inf or nan.
        """
        ...

    def evaluate(self, group: UnitId, x: Buffer | None) -> Passed:
        """Forward pass of one group of validation rows: y, or on the last stage the loss.

        Raises: see `forward`.
        """
        ...

    def measure(self, seed: int) -> None:
        """Forward and backward of one reference unit of seeded numbers; changes nothing."""
        ...

    def gradient(self) -> tuple[Slice, ...]:
        """The mean gradient of the units so far, cut in the job's chunks."""
        ...

    def mean(
        self, parts: Sequence[Buffer], weights: Sequence[int], totals: Sequence[int] = ()
    ) -> Slice:
        """Weighted mean of one chunk's parts, in the given order.

        Args:
            parts: Wire bytes.
            weights: Of each part.
            totals: What each weight is a part of, by default their sum. A chunk that two stages
                share is the sum of their means: each part has the total of its own stage.

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
        """Load the newest state that is whole, with its step; if there is none, 0 and no change."""
        ...

    def checkpoint(self, folder: Path, step: StepNumber) -> Path:
        """File of the state after `step`, equal bytes at every member of the stage.

        Raises:
            NotFound: it is not kept.
        """
        ...

    def adopt(self, folder: Path, step: StepNumber, file: Path, root: Digest | None) -> None:
        """Take over a checkpoint that came from others, and keep it: `file` moves into `folder`.

        Args:
            folder: Where checkpoints are kept.
            step: Whose state it is.
            file: What came.
            root: State root that a seal names; None while there is no such seal yet.

        Raises:
            WrongBytes: its state root is another. Malformed, UnknownVersion: no checkpoint of
                this stage and step.
            Unavailable: the disk is full or cannot be written.
        """
        ...

    def oldest_kept(self, folder: Path) -> StepNumber:
        """Step of the oldest state in `folder`, 0 if there is none: chunks since are needed."""
        ...
