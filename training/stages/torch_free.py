"""What is derived of a stage without torch: chunks, roots, validation rows, an update's numbers.

Chunks of the flat gradient. Invariant: they are contiguous, in order, cover every element once, and
differ in length by at most one; a shared embedding is cut apart from the rest, alike.

Roots: three digests under one (docs/protocol.md 3.6). Invariant: whoever has weights root, moments
root and counter can name the state root, so weights alone can be checked against a claim
without the moments.

Validation rows come in groups as large as the job's units. Invariant: groups are of equal size, so
the mean of their losses, each by its targets, is the mean over all of them, and whoever drives the
stages needs to know `rows_per_unit` and the counts of targets alone. With 128 rows or more in the
corpus, and units that divide 128, each row is used once; else some are used twice.

The update's learning rate, clip, decay, bias corrections. Invariant: equal (config, update, sealed
norm) give equal bits on every machine. Only operations that IEEE 754 rounds correctly are used (no
`pow`, no `cos`: mathematical libraries differ in the last bit), and every scalar is rounded to fp32
before it meets a tensor. `update` counts applied updates from 0, so that a step without update
moves nothing.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from contracts.terms.chunks import Chunk
from contracts.terms.digest import digest
from contracts.terms.encoding import encode
from contracts.terms.errors import Refused
from contracts.terms.ids import Digest, StageIndex
from contracts.terms.messages import NORM_SCALE, JobSpec
from contracts.terms.targets import TargetCounts
from training.config import OptimizerConfig, slices_of, train_config
from training.memory import num_parameters, num_shared

# ------------------------------------------------------------------------------------------ chunks


def chunk_bounds(num_elements: int, num_chunks: int) -> tuple[tuple[int, int], ...]:
    """(start, end) of each chunk of a vector of `num_elements`, longer chunks first.

    Raises:
        Refused: fewer than one chunk, or more chunks than elements.
    """
    if not 1 <= num_chunks <= num_elements:
        raise Refused(f"{num_elements} elements cannot be cut into {num_chunks} chunks")
    base, longer = divmod(num_elements, num_chunks)
    ends = [base * (i + 1) + min(i + 1, longer) for i in range(num_chunks)]
    return tuple(zip([0, *ends[:-1]], ends, strict=True))


def chunk_elements(spec: JobSpec) -> Mapping[Chunk, int]:
    """How many elements each chunk of a job has.

    Raises:
        Refused: as `train_config`, or a stage has fewer elements than chunks.
    """
    model = train_config(spec.model, spec.optimizer, spec.data, spec.batch).model
    found: dict[Chunk, int] = {}
    for number, piece in enumerate(slices_of(model, spec.batch.layer_ends)):
        shared = num_shared(model, piece)
        own = num_parameters(model, piece) - shared
        vectors = (*[own] * spec.batch.num_vectors, *([shared] if shared else ()))
        bounds = [each for size in vectors for each in chunk_bounds(size, spec.batch.chunks)]
        chunks = spec.chunking.of_stage(StageIndex(number))
        lengths = (end - start for start, end in bounds)
        found |= dict(zip(chunks, lengths, strict=True))
    return found


# ------------------------------------------------------------------------------------------- roots


@dataclass(frozen=True, slots=True)
class StateRoots:
    """Digests of a state; `counter` is how far its schedule is, as the strategy counts."""

    weights: Digest
    moments: Digest
    counter: int

    @property
    def state(self) -> Digest:
        """The state root: weights root, moments root and counter under one digest."""
        return digest("stage state", encode([self.weights, self.moments, self.counter]))


# --------------------------------------------------------------------------------- validation rows

Row = TypeVar("Row")

VALIDATION_ROWS = 128


def num_groups(rows_per_unit: int, targets: TargetCounts | None = None) -> int:
    """How many groups there are: enough for `VALIDATION_ROWS` rows.

    With `targets`, which say how many rows there are, enough for these if they are fewer.
    """
    number = VALIDATION_ROWS if targets is None else len(targets.of_validation)
    return -(-min(VALIDATION_ROWS, number) // rows_per_unit)


def spaced(rows: Sequence[Row], most: int = VALIDATION_ROWS) -> tuple[Row, ...]:
    """At most so many of some rows, evenly spaced."""
    number = min(most, len(rows))
    return tuple(rows[at * len(rows) // number] for at in range(number))


def validation_weights(rows_per_unit: int, targets: TargetCounts | None) -> tuple[int, ...]:
    """What each group weighs in the loss on validation rows: rows, or the targets in them."""
    groups = num_groups(rows_per_unit, targets)
    if targets is None:
        return (rows_per_unit,) * groups
    counts = spaced(targets.of_validation)
    return tuple(sum(group_rows(counts, each, groups, rows_per_unit)) for each in range(groups))


def group_rows(rows: Sequence[Row], group: int, groups: int, rows_per_unit: int) -> tuple[Row, ...]:
    """The rows of one of `groups` groups, evenly spaced over all of `rows`."""
    total, first = groups * rows_per_unit, group * rows_per_unit
    return tuple(rows[at * len(rows) // total] for at in range(first, first + rows_per_unit))


# ------------------------------------------------------------------------ the numbers of an update

_ONE = 2**64
_HALF_PI = 28976077832308491370  # pi / 2 in units of 2**-64
_CLIP_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True, slots=True)
class UpdateScalars:
    """What one update multiplies with; each value is an fp32 number."""

    clip: float  # scale of the averaged gradient, at most 1
    decay: float  # 1 - learning rate x weight decay, for matrices
    beta1: float
    one_minus_beta1: float
    beta2: float
    one_minus_beta2: float
    inverse_root_correction2: float  # 1 / sqrt(1 - beta2^t)
    epsilon: float
    step_size: float  # learning rate / (1 - beta1^t)


def learning_rate(config: OptimizerConfig, update: int) -> float:
    """Rate of update number `update`: linear warm-up, then as the schedule says.

    `wsd` decays linearly, from its warm-up on where that ends later (arXiv 2404.06395).
    """
    peak = Fraction(config.learning_rate)
    if update < config.warmup_steps:
        return float(peak * Fraction(update + 1, config.warmup_steps))
    start, total = config.warmup_steps, config.total_steps
    if config.schedule == "wsd":
        start = max(start, total - round(total * config.decay_ratio))
    span = max(1, total - start)
    progress = min(max(0, update - start), span)
    match config.schedule:
        case "constant":
            left = Fraction(1)
        case "cosine":
            left = _half_cosine(progress, span)
        case "linear" | "wsd":
            left = 1 - Fraction(progress, span)
    final = Fraction(config.final_ratio)
    return float(peak * (final + (1 - final) * left))


def _half_cosine(progress: int, span: int) -> Fraction:
    # (1 + cos(pi p)) / 2 = cos(pi p / 2)^2, by Taylor's series in whole units of 2**-64.
    angle = _HALF_PI * progress // span
    square = angle * angle // _ONE
    term = total = _ONE
    for k in range(1, 16):
        term = -term * square // (_ONE * (2 * k - 1) * 2 * k)
        total += term
    return Fraction(max(0, total) ** 2, _ONE**2)


def clip_factor(config: OptimizerConfig, sealed_norm: int) -> float:
    """What the averaged gradient is multiplied with; `sealed_norm` is in 1e-9."""
    if not config.clip_norm:
        return 1.0
    return min(1.0, config.clip_norm / (sealed_norm / NORM_SCALE + _CLIP_EPSILON))


def power(base: float, exponent: int) -> float:
    """`base` to a whole power by repeated squaring, the same bits everywhere."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def update_scalars(config: OptimizerConfig, update: int, sealed_norm: int) -> UpdateScalars:
    """Scalars of update number `update`, for an averaged gradient of `sealed_norm` (1e-9)."""
    rate = learning_rate(config, update)
    correction1 = 1.0 - power(config.beta1, update + 1)
    correction2 = 1.0 - power(config.beta2, update + 1)
    return UpdateScalars(
        clip=fp32(clip_factor(config, sealed_norm)),
        decay=fp32(1.0 - rate * config.weight_decay),
        beta1=fp32(config.beta1),
        one_minus_beta1=fp32(1.0 - config.beta1),
        beta2=fp32(config.beta2),
        one_minus_beta2=fp32(1.0 - config.beta2),
        inverse_root_correction2=fp32(1.0 / math.sqrt(correction2)),
        epsilon=fp32(config.epsilon),
        step_size=fp32(rate / correction1),
    )


def fp32(value: float) -> float:
    """The nearest fp32 number."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded
