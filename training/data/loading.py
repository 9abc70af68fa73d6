"""The bytes of rows, from blobs that are checked against their digests.

Invariant: no byte is used before a BLAKE3 was compared, of a blob or of the piece of a shard that
it lies in. Of a shard of up to `WHOLE_BYTES` all pieces are fetched at once, of a longer one those
that a row lies in. Up to `cache_bytes` of them stay in memory; the least recently used goes first.
Not thread-safe: one loader per worker.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from contracts.terms.digest import blob_digest
from contracts.terms.errors import Malformed, Refused, WrongBytes
from contracts.terms.ids import ZERO_DIGEST, Digest
from contracts.terms.items import ItemNumber
from contracts.terms.messages import JobSpec
from contracts.terms.targets import TargetCounts
from training.config import DataConfig, train_config
from training.data.manifest import PIECE_BYTES, Manifest, Shard, ShardIndex
from training.data.order import RowPosition, check_counts, index_corpus, row_numbers
from training.stages.torch_free import VALIDATION_ROWS, group_rows, num_groups, spaced

CACHE_BYTES = 256 * 2**20
INDEX_CACHE_BYTES = 64 * 2**20
WHOLE_BYTES = 4 * 2**20

K = TypeVar("K")


class BlobSource(Protocol):
    """Where blobs come from: the market's store, a folder, or a dict in tests."""

    def fetch(self, digest: Digest) -> bytes:
        """Bytes that claim this digest.

        Raises:
            NotFound: there is no such blob.
            ServiceUnreachable: the store does not answer.
        """

    def fetch_range(self, digest: Digest, start: int, end: int) -> bytes:
        """Bytes that claim to be [start, end) of this blob, fewer where it ends; raises alike."""


class _Kept(Generic[K]):
    """Values by digest, up to so many bytes; the least recently used goes first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0
        self._values: OrderedDict[Digest, tuple[K, int]] = OrderedDict()

    def get(self, digest: Digest) -> K | None:
        found = self._values.get(digest)
        if found is None:
            return None
        self._values.move_to_end(digest)
        return found[0]

    def put(self, digest: Digest, value: K, num_bytes: int) -> None:
        if digest not in self._values:
            self._num_bytes += num_bytes
        self._values[digest] = value, num_bytes
        while self._num_bytes > self._max_bytes and len(self._values) > 1:
            _, (_, dropped) = self._values.popitem(last=False)
            self._num_bytes -= dropped


class CheckedBlobs:
    """Blobs and pieces of shards of `source`, their digests compared, with a bounded memory."""

    def __init__(self, source: BlobSource, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._source = source
        self._kept = _Kept[bytes](cache_bytes)
        self._indexes = _Kept[ShardIndex](min(cache_bytes, INDEX_CACHE_BYTES))

    def fetch(self, digest: Digest) -> bytes:
        """The blob with this digest.

        Raises:
            WrongBytes: the source served other bytes.
            NotFound: there is no such blob.
            ServiceUnreachable: the source does not answer.
        """
        if (kept := self._kept.get(digest)) is not None:
            return kept
        data = _checked(self._source.fetch(digest), digest, f"blob {digest.hex()}")
        self._kept.put(digest, data, len(data))
        return data

    def read(self, shard: Shard, start: int, end: int) -> bytes:
        """Bytes [start, end) of a shard, 0 <= start < end <= its length.

        Raises:
            Malformed, UnknownVersion, TooLarge: no index of this shard. Also as `fetch`.
        """
        index = self._index(shard)
        numbers = range(start // PIECE_BYTES, -(-end // PIECE_BYTES))
        found = {number: self._kept.get(index.piece(number)) for number in numbers}
        lacking = [number for number, piece in found.items() if piece is None]
        if lacking:
            found |= self._pieces(index, lacking[0], lacking[-1] + 1)
        joined = b"".join(found[number] or b"" for number in numbers)
        first = numbers.start * PIECE_BYTES
        return joined[start - first : end - first]

    def _index(self, shard: Shard) -> ShardIndex:
        if (kept := self._indexes.get(shard.digest)) is not None:
            return kept
        what = f"index {shard.digest.hex()}"
        data = _checked(self._source.fetch(shard.digest), shard.digest, what)
        index = ShardIndex.decoded(data)
        if index.num_bytes != shard.num_bytes:
            raise Malformed(f"{what}: {index.num_bytes} bytes, not {shard.num_bytes}")
        self._indexes.put(shard.digest, index, len(data))
        return index

    def _pieces(self, index: ShardIndex, first: int, end: int) -> dict[int, bytes]:
        """Pieces [first, end) of a shard, all of a short one."""
        if index.num_bytes <= WHOLE_BYTES:
            first, data = 0, self._source.fetch(index.blob)
            end = -(-index.num_bytes // PIECE_BYTES)
        else:
            data = self._source.fetch_range(index.blob, first * PIECE_BYTES, end * PIECE_BYTES)
        pieces = {}
        for number in range(first, end):
            at = (number - first) * PIECE_BYTES
            what = f"piece {number} of shard {index.blob.hex()}"
            pieces[number] = _checked(data[at : at + PIECE_BYTES], index.piece(number), what)
            self._kept.put(index.piece(number), pieces[number], len(pieces[number]))
        return pieces


def _checked(data: bytes, digest: Digest, what: str) -> bytes:
    if (actual := blob_digest(data)) != digest:
        raise WrongBytes(f"{what} has other bytes", expected=digest.hex(), actual=actual.hex())
    return data


class UnitRows:
    """Rows of units, and of validation, of one job; a token has `token_bytes` bytes."""

    def __init__(
        self,
        manifest: Manifest,
        data: DataConfig,
        sequence_length: int,
        source: BlobSource,
        *,
        rows_at_once: int | None = None,
        targets: TargetCounts | None = None,
    ) -> None:
        """Find the rows of a corpus.

        Args:
            manifest: Of the corpus.
            data: Of the job.
            sequence_length: Tokens of a row, but for the last target.
            source: Of the corpus's blobs.
            rows_at_once: Of a set of validation rows, in units of other sizes.
            targets: Of a job on chats; they say how many validation rows there are.
        """
        self._blobs = CheckedBlobs(source)
        self._data = data
        self._rows_at_once = rows_at_once or data.rows_per_unit
        self._num_groups = num_groups(self._rows_at_once, targets)
        self._manifest_id = manifest.digest()
        self.token_bytes = manifest.token_bytes
        self._train, self._validation = index_corpus(manifest, sequence_length)

    def positions(self, item: ItemNumber) -> tuple[RowPosition, ...]:
        """Where the rows of `item` lie."""
        numbers = row_numbers(self._manifest_id, self._data, self._train.num_rows, item)
        return tuple(self._train.position(number) for number in numbers)

    def load(self, item: ItemNumber) -> tuple[bytes, ...]:
        """The item's rows, each sequence_length + 1 tokens; errors as `CheckedBlobs.read`."""
        return tuple(self._read(position) for position in self.positions(item))

    def read(self, name: str) -> bytes:
        """All rows of `rows/STAGE/ITEM` or `validation/NUMBER`, one after another.

        Raises:
            Refused: no such set of validation rows. Also as `CheckedBlobs.read`.
        """
        kind, *_, number = name.split("/")
        if kind == "rows":
            return b"".join(self.load(ItemNumber(int(number))))
        group, size = int(number), self._rows_at_once
        if group >= self._num_groups:
            raise Refused(f"there is no group {group} of validation rows")
        rows = self.validation_rows(VALIDATION_ROWS)
        return b"".join(group_rows(rows, group, self._num_groups, size))

    def validation_rows(self, max_rows: int | None = None) -> tuple[bytes, ...]:
        """Rows of the validation shards, at most `max_rows` of them, evenly spaced."""
        numbers: Sequence[int] = range(self._validation.num_rows)
        return tuple(
            self._read(self._validation.position(number))
            for number in (numbers if max_rows is None else spaced(numbers, max_rows))
        )

    def _read(self, position: RowPosition) -> bytes:
        start = position.offset
        return self._blobs.read(position.shard, start, start + position.length)


def corpus_rows(spec: JobSpec, blobs: BlobSource) -> UnitRows:
    """The rows of a job's corpus; fetches its manifest.

    Raises:
        NotFound, ServiceUnreachable, WrongBytes: the manifest, or the counts of targets.
        Malformed, UnknownVersion: either is none, or they are not of the same rows.
    """
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch)
    manifest = Manifest.decoded(CheckedBlobs(blobs).fetch(spec.data.manifest))
    length, size = config.model.sequence_length, spec.batch.rows_at_once
    targets = targets_of(spec, blobs)
    check_counts(manifest, targets, length)
    return UnitRows(manifest, config.data, length, blobs, rows_at_once=size, targets=targets)


def targets_of(spec: JobSpec, blobs: BlobSource) -> TargetCounts | None:
    """How many targets each row has, where the job says which tokens are targets.

    Raises:
        NotFound, ServiceUnreachable, WrongBytes: the counts.
        Malformed, UnknownVersion: they are none.
    """
    if spec.data.targets == ZERO_DIGEST:
        return None
    return TargetCounts.decoded(CheckedBlobs(blobs).fetch(spec.data.targets))
