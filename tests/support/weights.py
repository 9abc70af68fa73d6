"""Weights as the file that travels, and as an index with its parts."""

from io import BytesIO

from contracts.terms.digest import blob_digest
from contracts.terms.ids import Digest
from training.models.sources import BytesSource, parts_of, read
from training.models.weights import StoredWeights, Weights, weights_source, write_weights


def weights_file(weights: Weights) -> bytes:
    """The file of tensors in memory, or on disk."""
    if isinstance(weights, StoredWeights):
        source = weights_source(weights)
        return bytes(read(source, 0, source.num_bytes))
    file = BytesIO()
    write_weights(file, weights, {name: values.shape for name, values in weights.items()})
    return file.getvalue()


def in_parts(data: bytes, part_bytes: int = 1000) -> tuple[Digest, dict[Digest, bytes]]:
    """Name of the index of `data`, and all blobs: the index and its parts."""
    index = parts_of(BytesSource(data), part_bytes=part_bytes)
    parts = [data[start : start + part_bytes] for start in range(0, len(data), part_bytes)]
    blobs = {blob_digest(part): part for part in parts} | {index.digest(): index.encoded()}
    return index.digest(), blobs
