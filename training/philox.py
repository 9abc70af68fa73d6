"""Numbers that everybody draws alike from 32 bytes: Philox 4x64, a counter-based generator.

128 bits of the seed are its key, 128 the upper half of its counter. numpy keeps the stream of its
bit generators between versions. Source: Salmon 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

import numpy as np
from numpy.typing import NDArray

SEED_BYTES = 32


def philox_bytes(seed: bytes, count: int) -> NDArray[np.uint8]:
    """The first `count` bytes of the stream of a seed, the lowest of each word first."""
    assert len(seed) == SEED_BYTES
    key, counter = (int.from_bytes(half, "little") for half in (seed[:16], seed[16:]))
    words = np.random.Philox(key=key, counter=counter << 128).random_raw(-(-count // 8))
    return words.astype("<u8").view(np.uint8)[:count]
