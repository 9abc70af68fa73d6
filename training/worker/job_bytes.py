"""How the bytes of a job are digested, by what they spell: dtype and shape follow from its spec."""

from contracts.terms.digest import tensor_digest
from contracts.terms.errors import Malformed
from contracts.terms.ids import Digest
from contracts.terms.messages import JobSpec
from contracts.terms.work import Sort
from training.averaging.slices import slice_digest
from training.compression.formats import FORMATS

_TOKEN_BYTES = (1, 2, 4)


class JobBytes:
    """Of one job."""

    def __init__(self, spec: JobSpec) -> None:
        self._codecs = spec.rules.boundary_codec, spec.rules.gradient_codec
        rows, length = spec.batch.rows_per_unit, spec.model.sequence_length
        self._boundary = (rows, length, spec.model.width)
        self.rows_shape = (rows, length + 1)

    def digest(self, sort: Sort, data: bytes) -> Digest:
        """Digest of wire bytes.

        A boundary tensor of another length has a digest, too: its peer may have bound it, and
        nobody can compute on it. Raises Malformed: no rows, or no whole number of elements.
        """
        boundary, gradient = self._codecs
        match sort:
            case "boundary":
                return tensor_digest(FORMATS[boundary].dtype_name, self._boundary, data)
            case "part":
                return slice_digest(data, gradient)
            case "rows":
                return tensor_digest(f"uint{8 * self.token_bytes(data)}", self.rows_shape, data)

    def token_bytes(self, rows: bytes) -> int:
        """Bytes of one token in the rows of an item; raises Malformed."""
        num_rows, length = self.rows_shape
        size, rest = divmod(len(rows), num_rows * length)
        if rest or size not in _TOKEN_BYTES:
            raise Malformed(f"{len(rows)} bytes are no {num_rows} rows of {length} tokens")
        return size
