"""Which rows of the corpus an item holds: a fixed function of (manifest, seed, item).

Invariants: every row of the training shards is used once before any is used again, as items are
(`contracts.terms.items`); no state is kept, so any peer or auditor derives the same rows. A row is
sequence_length + 1 tokens of one shard: the inputs, and the labels one token later; rows of a shard
follow each other with one token of overlap, and its last tokens that fill no row are unused.

Rows of chats (`is_marked`) do not overlap. The order is that of `contracts.terms.row_order`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from contracts.terms.errors import Malformed, Refused
from contracts.terms.ids import Digest
from contracts.terms.items import ItemNumber
from contracts.terms.row_order import rows_at
from contracts.terms.targets import TargetCounts
from training.config import DataConfig
from training.data.manifest import Manifest, Shard


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
    stride: int  # tokens from one row to the next

    @property
    def num_rows(self) -> int:
        """How many rows the shards hold."""
        return self.ends[-1]

    def position(self, row: int) -> RowPosition:
        """Where row number `row` lies, 0 <= row < num_rows."""
        shard = bisect_right(self.ends, row)
        first = self.ends[shard - 1] if shard else 0
        offset = (row - first) * self.stride * self.token_bytes
        length = (self.sequence_length + 1) * self.token_bytes
        return RowPosition(self.shards[shard], offset, length)


def index_rows(
    shards: Sequence[Shard], sequence_length: int, *, token_bytes: int = 1, is_marked: bool = False
) -> RowIndex:
    """Number the rows of `shards`, whose tokens have `token_bytes` bytes.

    Args:
        shards: In their order.
        sequence_length: Tokens that a row predicts.
        token_bytes: Of one token.
        is_marked: Whether these are rows of chats.

    Raises:
        Refused: no shard is long enough for one row.
    """
    lengths = [shard.num_bytes // token_bytes for shard in shards]
    stride = sequence_length + is_marked
    counts = [max(0, length - sequence_length - 1 + stride) // stride for length in lengths]
    if not sum(counts):
        raise Refused(
            f"no shard holds a row of {sequence_length + 1} tokens (the longest has "
            f"{max(lengths, default=0)}): use a larger corpus or a shorter sequence_length"
        )
    return RowIndex(tuple(shards), sequence_length, token_bytes, tuple(accumulate(counts)), stride)


def index_corpus(manifest: Manifest, sequence_length: int) -> tuple[RowIndex, RowIndex]:
    """Number the rows to train on, and those to validate on; raises as `index_rows`."""
    size, is_marked = manifest.token_bytes, manifest.is_marked
    return (
        index_rows(manifest.train, sequence_length, token_bytes=size, is_marked=is_marked),
        index_rows(manifest.validation, sequence_length, token_bytes=size, is_marked=is_marked),
    )


def check_counts(manifest: Manifest, targets: TargetCounts | None, sequence_length: int) -> None:
    """Compare the number of rows with that of their counts of targets.

    Raises:
        Malformed: they are not of the same rows. Also as `index_rows`.
    """
    rows = tuple(each.num_rows for each in index_corpus(manifest, sequence_length))
    counted = None if targets is None else (len(targets.of_train), len(targets.of_validation))
    if counted != (rows if manifest.is_marked else None):
        raise Malformed("the manifest and the counts of targets are not of the same rows")


def row_numbers(
    manifest_id: Digest, data: DataConfig, num_rows: int, item: ItemNumber
) -> tuple[int, ...]:
    """Row numbers of `item`, in its order."""
    first = item * data.rows_per_unit
    places = range(first, first + data.rows_per_unit)
    return rows_at(places, num_rows, manifest_id, data.seed)
