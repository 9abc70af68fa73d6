"""How a stage's flat gradient is cut into chunks. Torch-free.

Invariant: chunks are contiguous, in order, cover every element once, and differ in length by at
most one.
"""

from contracts.terms.errors import Refused


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
