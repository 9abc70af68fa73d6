"""Do a job's tensors, weights and evidence fit what carries and keeps them? Pure.

A job that is admitted can deliver its model: weights of each stage fit an index of parts, and all
of them the disk of the store; a chunk of a gradient and a boundary tensor fit one call; of a
checked job what shows a wrong peer-step fits one bundle. Units: bytes.
"""

from collections.abc import Iterator
from typing import NamedTuple

from contracts.terms.chunks import MAX_CHUNK_BYTES
from contracts.terms.errors import Refused
from contracts.terms.messages import JobSpec
from contracts.terms.parts import MAX_WHOLE_BYTES
from training.compression.formats import FORMATS
from training.config import ModelConfig, StageSlice, shares_embedding, slices_of, train_config
from training.memory import FP32, num_parameters
from verification.auditing.bundle import MAX_BUNDLE_BYTES

HEAD_BYTES = 2**20
"""Names and shapes before the tensors of a stage, at most."""


class Size(NamedTuple):
    """Something that travels, what bounds it, and what makes it smaller."""

    what: str
    num_bytes: int
    most: int
    remedy: str


def parameters_of(spec: JobSpec) -> int:
    """Trainable elements of a job's model, in all of its stages together.

    Raises:
        Refused: as `train_config`.
    """
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch).model
    slices = slices_of(config, spec.batch.layer_ends)
    return sum(num_parameters(config, each) for each in slices)


def check_sizes(spec: JobSpec, config: ModelConfig, free_bytes: int | None) -> None:
    """Refuse a job of which something is larger than what carries or keeps it.

    Args:
        spec: The job.
        config: Its model.
        free_bytes: Of the disk of the blob store; None: not known.

    Raises:
        Refused: with the bound; data: `bytes`, `would_fit`.
    """
    for size in _sizes(spec, config, free_bytes):
        if size.num_bytes > size.most:
            raise Refused(
                f"{size.what} has {size.num_bytes} bytes, at most {size.most} fit: {size.remedy}",
                bytes=str(size.num_bytes),
                would_fit=str(size.most),
            )


def _sizes(spec: JobSpec, config: ModelConfig, free_bytes: int | None) -> Iterator[Size]:
    slices = slices_of(config, spec.batch.layer_ends)
    weights = [HEAD_BYTES + FP32 * num_parameters(config, each) for each in slices]
    for number, stage in enumerate(slices):
        what = f"stage {number}"
        yield Size(f"the model of {what}", weights[number], MAX_WHOLE_BYTES, "have more stages")
        chunk = _chunk_bytes(spec, config, stage)
        yield Size(f"a chunk of the gradient of {what}", chunk, MAX_CHUNK_BYTES, "have more chunks")
        if spec.rules.audit is not None:
            evidence = weights[number] + _shown_bytes(spec, config, stage)
            remedy = "have more stages, or fewer rows in a unit"
            yield Size(f"evidence against {what}", evidence, MAX_BUNDLE_BYTES, remedy)
    if len(slices) > 1:
        boundary = _boundary_bytes(spec, config)
        yield Size("a unit between two stages", boundary, MAX_CHUNK_BYTES, "lower rows_per_unit")
    if free_bytes is not None:
        remedy = "the market's disk is too full for it, ask its operator or train a smaller one"
        yield Size("the trained model", sum(weights), free_bytes, remedy)


def _chunk_bytes(spec: JobSpec, config: ModelConfig, stage: StageSlice) -> int:
    """The largest chunk that a member of `stage` gives parts to, in the job's codec."""
    own, shared = num_parameters(config, stage), 0
    if shares_embedding(config, stage):
        shared = config.vocab_size * config.width
    largest = -(-max(own - shared, shared) // spec.batch.chunks)
    return FORMATS[spec.rules.gradient_codec].num_bytes(largest)


def _boundary_bytes(spec: JobSpec, config: ModelConfig) -> int:
    elements = spec.batch.rows_per_unit * config.sequence_length * config.width
    return FORMATS[spec.rules.boundary_codec].num_bytes(elements)


def _shown_bytes(spec: JobSpec, config: ModelConfig, stage: StageSlice) -> int:
    """What a bundle has beside the weights: a gradient, and x and dy of an equal part of units."""
    gradient = FORMATS[spec.rules.gradient_codec].num_bytes(num_parameters(config, stage))
    boundaries = (not stage.has_embedding) + (not stage.has_head)
    units = -(-spec.batch.units_per_step // spec.batch.peers_per_stage)
    return gradient + units * boundaries * _boundary_bytes(spec, config)
