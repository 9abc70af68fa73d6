"""Which rows of the corpus an item holds: a fixed function of (manifest, seed, item).

Invariants: every row of the training shards is used once before any is used again, as items are
(`contracts.terms.items`); no state is kept, so any peer or auditor derives the same rows. A row is
sequence_length + 1 tokens of one shard: the inputs, and the labels one token later; rows of a shard
follow each other with one token of overlap, and its last tokens that fill no row are unused.

The order of pass e is a permutation keyed by (manifest, seed, e): a four-round Feistel network
over the next even power of two, walked until it lands on a row (Black and Rogaway 2002, "Ciphers
with arbitrary finite domains"). About 2 us per round, no table.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from contracts.terms.digest import digest
from contracts.terms.errors import Refused
from contracts.terms.ids import Digest
from contracts.terms.items import ItemNumber
from training.config import DataConfig
from training.data.manifest import Shard

_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class RowPosition:
    """Where a row lies: `length` bytes of `shard` from `offset`."""

    shard: Shard
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class RowIndex:
    """The rows of a list of shards, numbered from 0 in shard order."""

    shards: tuple[Shard, ...]
    sequence_length: int
    token_bytes: int
    ends: tuple[int, ...]  # rows up to and with each shard

    @property
    def num_rows(self) -> int:
        """How many rows the shards hold."""
        return self.ends[-1]

    def position(self, row: int) -> RowPosition:
        """Where row number `row` lies, 0 <= row < num_rows."""
        shard = bisect_right(self.ends, row)
        first = self.ends[shard - 1] if shard else 0
        offset = (row - first) * self.sequence_length * self.token_bytes
        length = (self.sequence_length + 1) * self.token_bytes
        return RowPosition(self.shards[shard], offset, length)


def index_rows(shards: Sequence[Shard], sequence_length: int, *, token_bytes: int = 1) -> RowIndex:
    """Number the rows of `shards`, whose tokens have `token_bytes` bytes.

    Raises:
        Refused: no shard is long enough for one row.
    """
    lengths = [shard.num_bytes // token_bytes for shard in shards]
    counts = [max(0, length - 1) // sequence_length for length in lengths]
    if not sum(counts):
        raise Refused(
            f"no shard holds a row of {sequence_length + 1} tokens (the longest has "
            f"{max(lengths, default=0)}): use a larger corpus or a shorter sequence_length"
        )
    return RowIndex(tuple(shards), sequence_length, token_bytes, tuple(accumulate(counts)))


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


def row_numbers(
    manifest_id: Digest, data: DataConfig, num_rows: int, item: ItemNumber
) -> tuple[int, ...]:
    """Row numbers of `item`, in its order."""
    first = item * data.rows_per_unit
    numbers = []
    for sample in range(first, first + data.rows_per_unit):
        turn, position = divmod(sample, num_rows)
        key = digest(
            "row order", manifest_id + data.seed.to_bytes(8, "big") + turn.to_bytes(8, "big")
        )
        numbers.append(permuted(position, num_rows, key))
    return tuple(numbers)
