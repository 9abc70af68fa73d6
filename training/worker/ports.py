"""What a worker needs to compute with; `stage_compute` has torch, `counting` is the fake."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from typing_extensions import Buffer

from contracts.terms.ids import ZERO_DIGEST, ChunkIndex, Digest, StepNumber, UnitId
from contracts.terms.messages import AuditReport, DTypeName
from training.averaging.slices import Slice
from training.stages.torch_free import StateRoots


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


@dataclass(frozen=True)
class Numbers:
    """What wire bytes spell, after the codec: fp32, little-endian, in C order."""

    shape: tuple[int, ...]
    data: Buffer


@dataclass(frozen=True)
class Rows:
    """What of the corpus a unit is computed from: inputs and labels, one row after another."""

    data: bytes
    digest: Digest  # which the first stage's leaf calls x


@dataclass(frozen=True)
class ReplayedUnit:
    """What a unit came to when it was repeated; None where the stage has no such tensor."""

    unit: UnitId
    rows: Rows | None  # in a stage that reads any
    x: Digest = ZERO_DIGEST  # of the input: of the rows on the first stage
    y: Sent | None = None
    dx: Sent | None = None
    loss: int | None = None  # 1e-6 nats per token, mean over the unit; on the last stage
    projection: int = 0  # 1e-6, of the gradient of all units so far (`training.worker.projections`)
    is_finite: bool = True
    """Whether anything came of it: if not, x or dy spells nothing, or nothing finite follows."""


class Replay(Protocol):
    """One peer-step once more, with weights and a gradient of its own; like `Compute`, one call at
    a time. After an error it is over: what it holds may be half of something.
    """

    def unit(self, unit: UnitId, x: Buffer | None, dy: Buffer | None) -> ReplayedUnit:
        """Forward and backward of the next unit, in the order of the leaves.

        Raises:
            Refused: x or dy is missing or too many; repeated already.
            Unavailable, WrongBytes: its rows.
        """

    def gradient(self) -> tuple[Slice, ...]:
        """The mean gradient of the units so far, cut and coded as `Compute.gradient` does it."""

    def boundary(self, data: Buffer) -> Numbers:
        """The numbers of a boundary tensor; raises Malformed, NotFinite."""

    def parameters(
        self, parts: Sequence[Buffer], norms_squared: Sequence[int] = ()
    ) -> dict[str, Numbers]:
        """The gradient of each parameter by name, from the wire bytes of all parts in order.

        Raises:
            Malformed: another number of elements. NotFinite: inf or nan.
            WrongBytes: a part is longer or shorter than `norms_squared` (1e-12) says, where it
                does.
        """


class Replayer(Protocol):
    """Repeats peer-steps of one stage of a job."""

    def need_weights(self, weights: Path, state_root: Digest) -> None:
        """Refuse a file of weights that are not of the state with this root; raises as `begin`."""

    def begin(self, step: StepNumber, weights: Path, state_root: Digest, seed: bytes) -> Replay:
        """Begin a peer-step of `step`.

        Args:
            step: Decides the rows of the units.
            weights: File of the weights that it was computed on: those after the step before.
            state_root: That the GradCommit says.
            seed: Of the projections, 32 bytes.

        Raises:
            WrongBytes: the weights are of another state. NotFound, Malformed, UnknownVersion: they
                are gone, or of another stage.
        """


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

    @property
    def is_last(self) -> bool:
        """Whether the stage has the loss instead of y."""

    def begin_step(self) -> None:
        """Forget all units."""

    def num_elements(self, chunk: ChunkIndex) -> int:
        """How many elements the chunk with this number has, of those that the stage applies."""

    @property
    def units(self) -> tuple[UnitId, ...]:
        """Units in the gradient, in the order they were added."""

    def forward(self, step: StepNumber, unit: UnitId, x: Buffer | None) -> Passed:
        """Compute a unit, again if it was computed before; on the last stage also count it.

        Raises:
            NotFinite: inf or nan. Unavailable: its rows cannot be fetched now.
            WrongBytes: its rows are not those of the manifest. Malformed: x has another size.
            Refused: it is counted already.
        """

    def input_name(self, step: StepNumber, unit: UnitId, x: Buffer | None) -> Digest:
        """What a leaf calls a unit's input; nothing is computed. Raises: see `forward`."""

    def keeps(self, unit: UnitId) -> bool:
        """Whether the forward pass of a unit is kept, so that its backward needs no x."""

    def forget(self, unit: UnitId) -> None:
        """Keep no forward pass of a unit."""

    def backward(
        self, step: StepNumber, unit: UnitId, x: Buffer | None, dy: Buffer | None
    ) -> Passed:
        """Count a unit; on the last stage, which has no dy, both passes.

        Its last forward is continued if it `keeps` that, else repeated from `x`, and y is in what
        comes back. Raises: see `forward`.
        """

    def subtract(self, step: StepNumber, unit: UnitId, x: Buffer | None, dy: Buffer | None) -> None:
        """Take a unit, counted from these tensors, out of the gradient again.

        Raises:
            Refused: it is not counted. NotFinite: inf or nan.
        """

    def evaluate(self, group: UnitId, x: Buffer | None) -> Passed:
        """Forward pass of one group of validation rows: y, or on the last stage the loss.

        Raises: see `forward`.
        """

    def measure(self, seed: int) -> None:
        """Forward and backward of one reference unit of seeded numbers; changes nothing."""

    def gradient(self) -> tuple[Slice, ...]:
        """The mean gradient of the units so far, cut in the job's chunks."""

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

    def apply(self, chunks: Sequence[Buffer], sealed_norm: int) -> None:
        """Update the state by all averaged chunks; the norm is in 1e-9.

        Raises:
            Malformed: another number of elements. NotFinite: inf or nan.
        """

    def roots(self) -> StateRoots:
        """Digests of the present state."""

    def replayer(self) -> Replayer:
        """Repeats peer-steps of this stage, beside the step in work, which it does not touch."""

    def save_weights(self, file: Path, roots: StateRoots) -> None:
        """Keep the present weights for replays, whole or not at all.

        Equal bytes at every member of the stage; `roots` are those of the present state.

        Raises:
            Unavailable: the disk is full or cannot be written.
        """

    def roots_of_weights(self, file: Path) -> StateRoots:
        """What such a file says of the state that its weights are a part of; compares nothing.

        Raises:
            NotFound: they are not kept. Malformed, UnknownVersion: the file is damaged.
        """

    def save(self, folder: Path, step: StepNumber) -> None:
        """Keep the state after `step`, whole or not at all; the one before is kept too.

        Raises:
            Unavailable: the disk is full or cannot be written.
        """

    def restore(self, folder: Path) -> StepNumber:
        """Load the newest state that is whole, with its step; if there is none, 0 and no change."""

    def checkpoint(self, folder: Path, step: StepNumber) -> Path:
        """File of the state after `step`, equal bytes at every member of the stage.

        Raises:
            NotFound: it is not kept.
        """

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

    def oldest_kept(self, folder: Path) -> StepNumber:
        """Step of the older of two states in `folder`, else 0: chunks since are needed.

        Beside one checkpoint the initial state counts: who joins before all have the first one
        begins with it.
        """


# --------------------------------------------------------------------------------------- behaviour

Moment: TypeAlias = Literal["closed", "sealed"]
"""A StepClose asks for our GradCommit; a seal is in our state."""

Departure: TypeAlias = Literal["stay", "leave", "vanish"]
"""Leave: in order, after what is open. Vanish: at once, without a word, for good."""


@dataclass(frozen=True)
class Wanted:
    """Something that somebody asks us for."""

    kind: Literal["tensor", "part", "weights"]
    digest: Digest  # of the tensor, or of the part's GradCommit; zero for weights
    is_sealed: bool  # its step is: only audits and returning members ask for it now
    at: StepNumber  # that we work on


class Behaviour:
    """Where a peer could lie. Each hook answers what honest code would, unless it is overridden.

    The adversaries of `tallystick.gym` play the code of real workers through this alone: what is
    signed, stored and sent around these answers is what an honest peer signs, stores and sends.
    """

    def arithmetic(self, compute: Compute) -> Compute:
        """What passes are computed with and units are gathered in; asked when a stage is built."""
        return compute

    def parts(self, compute: Compute, step: StepNumber) -> tuple[Slice, ...]:
        """The gradient of `step` that we bind ourselves to and send, chunk by chunk."""
        return compute.gradient()

    def mean(
        self,
        compute: Compute,
        step: StepNumber,
        parts: Sequence[Buffer],
        weights: Sequence[int],
        totals: Sequence[int],
    ) -> Slice:
        """The mean of one chunk that we bind ourselves to; arguments as of `Compute.mean`."""
        return compute.mean(parts, weights, totals)

    async def serves(self, wanted: Wanted) -> bool:
        """Whether who asks for something that may be here gets it; it waits until we say."""
        return True

    def departure(self, step: StepNumber, moment: Moment) -> Departure:
        """Whether we go now: `step` is the one that was closed, or sealed."""
        return "stay"

    async def report(
        self, agreeing: AuditReport, replay: Callable[[], Awaitable[AuditReport]]
    ) -> AuditReport:
        """What we say of a peer-step as its auditor.

        Args:
            agreeing: A report that finds no difference; nothing was computed for it.
            replay: Makes the true one.
        """
        return await replay()


HONEST = Behaviour()
