"""Is the corpus of a job with us, whole, and does it fit the job?

Whoever works on an item, or repeats it, fetches its rows while the job runs, and who lacks them
pays for it. So the market looks before it takes a job: at every shard that the manifest lists, and
at the counts of targets. It hashes no shard again.
"""

from contracts.terms.errors import NotFound, Refused
from contracts.terms.ids import ZERO_DIGEST
from contracts.terms.messages import JobSpec
from contracts.terms.targets import MAX_COUNTS_BYTES, decode_targets
from market.service.ports import BlobStore
from market.service.stored_parts import read_blob
from training.data.manifest import (
    MAX_INDEX_BYTES,
    MAX_MANIFEST_BYTES,
    Manifest,
    Shard,
    decode_index,
    decode_manifest,
)
from training.data.order import check_counts


async def check_corpus(spec: JobSpec, blobs: BlobStore) -> None:
    """Refuse a job whose corpus is not all here.

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
    await _check_shards(manifest, blobs)


async def _check_shards(manifest: Manifest, blobs: BlobStore) -> None:
    for number, shard in enumerate(manifest.shards()):
        if not await _is_here(shard, blobs):
            raise NotFound(
                f"shard {number} of the manifest is not in the blob store, or not whole; PUT "
                "/v1/blobs/{digest} its index and its bytes first",
                shard=number,
                index=shard.digest.hex(),
            )


async def _is_here(shard: Shard, blobs: BlobStore) -> bool:
    try:
        index = decode_index(await read_blob(shard.digest, MAX_INDEX_BYTES, blobs))
    except Refused:  # it is not here, or somebody's other blob
        return False
    return shard.num_bytes == index.num_bytes == await blobs.size(index.blob)
