"""How the bytes of a job are digested, by what they spell."""

from contracts.terms.digest import formed_digest, tensor_digest
from contracts.terms.errors import Malformed
from contracts.terms.ids import Digest
from contracts.terms.messages import JobSpec
from contracts.terms.work import Sort
from training.averaging.slices import slice_digest

_TOKEN_BYTES = (1, 2, 4)


class JobBytes:
    """Of one job."""

    def __init__(self, spec: JobSpec) -> None:
        self._gradient = spec.rules.gradient_codec
        self.rows_shape = (spec.batch.rows_per_unit, spec.model.sequence_length + 1)

    def digest(self, sort: Sort, data: bytes) -> Digest:
        """Digest of rows or a part as they travel, or of a boundary tensor as it is formed.

        That may be of whatever form: nobody can compute on one that is not the job's. Raises
        Malformed: no rows, or no whole number of elements.
        """
        match sort:
            case "boundary":
                return formed_digest(data)
            case "part":
                return slice_digest(data, self._gradient)
            case "rows":
                return tensor_digest(f"uint{8 * self.token_bytes(data)}", self.rows_shape, data)

    def token_bytes(self, rows: bytes) -> int:
        """Bytes of one token in the rows of an item; raises Malformed."""
        num_rows, length = self.rows_shape
        size, rest = divmod(len(rows), num_rows * length)
        if rest or size not in _TOKEN_BYTES:
            raise Malformed(f"{len(rows)} bytes are no {num_rows} rows of {length} tokens")
        return size
