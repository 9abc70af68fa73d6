"""The bytes of rows, from blobs that are checked against their digests.

Invariant: no byte of a blob is used before its BLAKE3 was compared. Shards stay in memory up to
`cache_bytes`; the least recently used goes first. Not thread-safe: one loader per worker.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from contracts.terms.digest import blob_digest
from contracts.terms.errors import Malformed, Refused, WrongBytes
from contracts.terms.ids import ZERO_DIGEST, Digest
from contracts.terms.items import ItemNumber
from contracts.terms.messages import JobSpec
from contracts.terms.targets import TargetCounts, decode_targets
from training.config import DataConfig, train_config
from training.data.manifest import Manifest, decode_manifest
from training.data.order import RowPosition, index_rows, row_numbers
from training.stages.torch_free import VALIDATION_ROWS, group_rows, num_groups, spaced

CACHE_BYTES = 256 * 2**20


class BlobSource(Protocol):
    """Where blobs come from: the market's store, a folder, or a dict in tests."""

    def fetch(self, digest: Digest) -> bytes:
        """Bytes that claim this digest.

        Raises:
            NotFound: there is no such blob.
            ServiceUnreachable: the store does not answer.
        """


class CheckedBlobs:
    """Blobs of `source` after their digests were compared, with a bounded memory of them."""

    def __init__(self, source: BlobSource, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._source = source
        self._cache_bytes = cache_bytes
        self._kept: OrderedDict[Digest, bytes] = OrderedDict()
        self._kept_bytes = 0

    def fetch(self, digest: Digest) -> bytes:
        """The blob with this digest.

        Raises:
            WrongBytes: the source served other bytes.
            NotFound: there is no such blob.
            ServiceUnreachable: the source does not answer.
        """
        if digest in self._kept:
            self._kept.move_to_end(digest)
            return self._kept[digest]
        data = self._source.fetch(digest)
        actual = blob_digest(data)
        if actual != digest:
            raise WrongBytes(
                f"blob {digest.hex()} has other bytes", expected=digest.hex(), actual=actual.hex()
            )
        self._keep(digest, data)
        return data

    def _keep(self, digest: Digest, data: bytes) -> None:
        self._kept[digest] = data
        self._kept_bytes += len(data)
        while self._kept_bytes > self._cache_bytes and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped)


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
    ) -> None:
        """`rows_at_once`: of a set of validation rows, in units of other sizes."""
        self._blobs = CheckedBlobs(source)
        self._data = data
        self._rows_at_once = rows_at_once or data.rows_per_unit
        self._manifest_id = manifest.digest()
        self.token_bytes = manifest.token_bytes
        self._train, self._validation = (
            index_rows(
                shards,
                sequence_length,
                token_bytes=manifest.token_bytes,
                is_marked=manifest.is_marked,
            )
            for shards in (manifest.train, manifest.validation)
        )

    @property
    def num_rows(self) -> tuple[int, int]:
        """How many there are to train on, and to validate on."""
        return self._train.num_rows, self._validation.num_rows

    def positions(self, item: ItemNumber) -> tuple[RowPosition, ...]:
        """Where the rows of `item` lie."""
        numbers = row_numbers(self._manifest_id, self._data, self._train.num_rows, item)
        return tuple(self._train.position(number) for number in numbers)

    def load(self, item: ItemNumber) -> tuple[bytes, ...]:
        """The item's rows, each sequence_length + 1 tokens; errors as `CheckedBlobs.fetch`."""
        return tuple(self._read(position) for position in self.positions(item))

    def read(self, name: str) -> bytes:
        """All rows of `rows/STAGE/ITEM` or `validation/NUMBER`, one after another.

        Raises:
            Refused: no such set of validation rows. Also as `CheckedBlobs.fetch`.
        """
        kind, *_, number = name.split("/")
        if kind == "rows":
            return b"".join(self.load(ItemNumber(int(number))))
        group, size = int(number), self._rows_at_once
        if group >= num_groups(size):
            raise Refused(f"there is no group {group} of validation rows")
        return b"".join(group_rows(self.validation_rows(VALIDATION_ROWS), group, size))

    def validation_rows(self, max_rows: int | None = None) -> tuple[bytes, ...]:
        """Rows of the validation shards, at most `max_rows` of them, evenly spaced."""
        numbers: Sequence[int] = range(self._validation.num_rows)
        return tuple(
            self._read(self._validation.position(number))
            for number in (numbers if max_rows is None else spaced(numbers, max_rows))
        )

    def _read(self, position: RowPosition) -> bytes:
        shard = self._blobs.fetch(position.shard)
        return shard[position.offset : position.offset + position.length]


def corpus_rows(spec: JobSpec, blobs: BlobSource) -> UnitRows:
    """The rows of a job's corpus; fetches its manifest.

    Raises:
        NotFound, ServiceUnreachable, WrongBytes: the manifest, or the counts of targets.
        Malformed: either is none, or they are not of the same rows.
    """
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch)
    manifest = decode_manifest(CheckedBlobs(blobs).fetch(spec.data.manifest))
    length, size = config.model.sequence_length, spec.batch.rows_at_once
    rows, targets = (
        UnitRows(manifest, config.data, length, blobs, rows_at_once=size),
        targets_of(spec, blobs),
    )
    counted = None if targets is None else (len(targets.of_train), len(targets.of_validation))
    if counted != (rows.num_rows if manifest.is_marked else None):
        raise Malformed("the manifest and the counts of targets are not of the same rows")
    return rows


def targets_of(spec: JobSpec, blobs: BlobSource) -> TargetCounts | None:
    """How many targets each row has, where the job says which tokens are targets.

    Raises:
        NotFound, ServiceUnreachable, WrongBytes: the counts. Malformed: they are none.
    """
    if spec.data.targets == ZERO_DIGEST:
        return None
    return decode_targets(CheckedBlobs(blobs).fetch(spec.data.targets))
