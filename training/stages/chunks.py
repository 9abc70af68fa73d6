"""How a stage's flat gradient is cut into chunks. Torch-free.

Invariant: chunks are contiguous, in order, cover every element once, and differ in length by at
most one; a shared embedding is cut apart from the rest, alike.
"""

from collections.abc import Mapping

from contracts.terms.chunks import Chunk
from contracts.terms.errors import Refused
from contracts.terms.ids import StageIndex
from contracts.terms.messages import JobSpec
from training.config import slices_of, train_config
from training.memory import num_parameters, num_shared


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
        vectors = (num_parameters(model, piece) - shared, *([shared] if shared else ()))
        bounds = [each for size in vectors for each in chunk_bounds(size, spec.batch.chunks)]
        chunks = spec.chunking.of_stage(StageIndex(number))
        lengths = (end - start for start, end in bounds)
        found |= dict(zip(chunks, lengths, strict=True))
    return found
