"""Is the corpus of a job with us, whole, and does it fit the job?

Whoever works on an item, or repeats it, fetches its rows while the job runs, and who lacks them
pays for it. So the market looks before it takes a job: at every shard that the manifest lists, and
at the counts of targets. It hashes no shard again.
"""

from contracts.terms.errors import NotFound, Refused
from contracts.terms.ids import ZERO_DIGEST, Digest
from contracts.terms.messages import JobSpec
from contracts.terms.targets import MAX_COUNTS_BYTES, decode_targets
from market.service.ports import BlobStore
from market.service.stored_parts import read_blob
from training.data.manifest import (
    MAX_INDEX_BYTES,
    MAX_MANIFEST_BYTES,
    Manifest,
    Shard,
    ShardIndex,
    decode_index,
    decode_manifest,
)
from training.data.order import check_counts


async def check_corpus(spec: JobSpec, blobs: BlobStore) -> list[Digest]:
    """Refuse a job whose corpus is not all here; returns what its manifest lists, indexes too.

    Args:
        spec: Of a job whose manifest and counts are here.
        blobs: Of the market.

    Raises:
        NotFound: a shard, or its index, is not here.
        Malformed, UnknownVersion, TooLarge: what the spec names is no manifest, or no counts, or
            they are not of the same rows.
        Refused: no shard holds a row.
    """
    manifest = decode_manifest(await read_blob(spec.data.manifest, MAX_MANIFEST_BYTES, blobs))
    targets = None
    if spec.data.targets != ZERO_DIGEST:
        targets = decode_targets(await read_blob(spec.data.targets, MAX_COUNTS_BYTES, blobs))
    check_counts(manifest, targets, spec.model.sequence_length)
    return await _shards(manifest, blobs)


async def _shards(manifest: Manifest, blobs: BlobStore) -> list[Digest]:
    found = list[Digest]()
    for number, shard in enumerate(manifest.shards()):
        index = await _index(shard, blobs)
        if index is None:
            raise NotFound(
                f"shard {number} of the manifest is not in the blob store, or not whole; PUT "
                "/v1/blobs/{digest} its index and its bytes first",
                shard=number,
                index=shard.digest.hex(),
            )
        found += [shard.digest, index.blob]
    return found


async def _index(shard: Shard, blobs: BlobStore) -> ShardIndex | None:
    """Of a shard that is here, whole."""
    try:
        index = decode_index(await read_blob(shard.digest, MAX_INDEX_BYTES, blobs))
    except Refused:  # it is not here, or somebody's other blob
        return None
    is_whole = shard.num_bytes == index.num_bytes == await blobs.size(index.blob)
    return index if is_whole else None
