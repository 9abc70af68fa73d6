"""Which row of a corpus stands at which place of a job: a permutation keyed by signed values. Pure.

Invariant: every row is used once before any is used again. The order of pass e is a permutation
keyed by (manifest, seed, e): a four-round Feistel network over the next even power of two, walked
until it lands on a row (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"). About
2 us per round, no table.
"""

from contracts.terms.digest import digest
from contracts.terms.ids import Digest

_ROUNDS = 4


def permuted(position: int, num_rows: int, key: bytes) -> int:
    """Where a keyed permutation of range(num_rows) sends `position`."""
    half_bits = max(1, ((num_rows - 1).bit_length() + 1) // 2)
    value = _feistel(position, half_bits, key)
    while value >= num_rows:
        value = _feistel(value, half_bits, key)
    return value


def _feistel(value: int, half_bits: int, key: bytes) -> int:
    mask = (1 << half_bits) - 1
    left, right = value >> half_bits, value & mask
    for turn in range(_ROUNDS):
        mixed = digest("row order round", key + bytes([turn]) + right.to_bytes(8, "big"))
        left, right = right, left ^ (int.from_bytes(mixed[:8], "big") & mask)
    return left << half_bits | right


def rows_at(places: range, num_rows: int, manifest: Digest, seed: int) -> tuple[int, ...]:
    """Numbers of the rows at consecutive places of a job, which may pass the end of a pass."""
    numbers = []
    for place in places:
        turn, position = divmod(place, num_rows)
        key = digest("row order", manifest + seed.to_bytes(8, "big") + turn.to_bytes(8, "big"))
        numbers.append(permuted(position, num_rows, key))
    return tuple(numbers)
