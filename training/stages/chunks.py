"""How a stage's flat gradient is cut into chunks, and one norm made of theirs. Torch-free.

Invariants: chunks are contiguous, in order, cover every element once, and differ in length by at
most one; norms are exact integer arithmetic, so every member derives the same sealed norm.
Units: norms in 1e-9, their squares in 1e-12 (`contracts/terms/messages.py`).
"""

from collections.abc import Iterable
from math import isqrt

from contracts.terms.errors import Refused
from contracts.terms.messages import NORM_SCALE, NORM_SQUARED_SCALE


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


def global_norm(norms_squared: Iterable[int]) -> int:
    """The norm, in 1e-9, of a gradient whose chunks have these squared norms, in 1e-12."""
    return isqrt(sum(norms_squared) * (NORM_SCALE**2 // NORM_SQUARED_SCALE))
