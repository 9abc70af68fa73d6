"""Is a thing that travels in parts with us, index and all? A blob that is no index is as none."""

from contracts.terms.errors import Malformed, NotFound, UnknownVersion
from contracts.terms.ids import Digest
from contracts.terms.parts import MAX_INDEX_BYTES, Parts, decode_parts
from market.service.ports import BlobStore


async def size_in_parts(name: Digest, blobs: BlobStore) -> int | None:
    """Bytes of what the index `name` lists; None if it, or any of its parts, is not here."""
    index = await _index(name, blobs)
    if index is None:
        return None
    for part, size in index.sizes():
        if await blobs.size(part) != size:
            return None
    return index.num_bytes


async def _index(name: Digest, blobs: BlobStore) -> Parts | None:
    size = await blobs.size(name)
    if size is None or size > MAX_INDEX_BYTES:
        return None
    try:
        return decode_parts(b"".join([piece async for piece in blobs.read(name)]))
    except (Malformed, UnknownVersion, NotFound):  # somebody's other blob
        return None
