"""Is a thing that travels in parts with us, index and all? A blob that is no index is as none."""

from contracts.terms.errors import NotFound, Refused, TooLarge
from contracts.terms.ids import Digest
from contracts.terms.parts import Parts
from market.service.ports import BlobStore


async def read_blob(name: Digest, max_bytes: int, blobs: BlobStore) -> bytes:
    """All bytes of a blob.

    Raises:
        NotFound: it is not here. TooLarge: it has more than `max_bytes`.
    """
    if (size := await blobs.size(name)) is None:
        raise NotFound("no such blob", digest=name.hex())
    if size > max_bytes:
        raise TooLarge(f"blob {name.hex()} has more than {max_bytes} bytes", limit=max_bytes)
    return b"".join([piece async for piece in blobs.read(name)])


async def read_index(name: Digest, blobs: BlobStore) -> Parts | None:
    """The index of this name; None if it is not here, or somebody's other blob."""
    try:
        return Parts.decoded(await read_blob(name, Parts.max_bytes, blobs))
    except Refused:
        return None


async def stored_whole(name: Digest, blobs: BlobStore) -> Parts | None:
    """The index of this name; None if it, or any of its parts, is not here."""
    index = await read_index(name, blobs)
    for part, size in () if index is None else index.sizes():
        if await blobs.size(part) != size:
            return None
    return index


async def size_in_parts(name: Digest, blobs: BlobStore) -> int | None:
    """Bytes of what the index `name` lists; None if it, or any of its parts, is not here."""
    index = await stored_whole(name, blobs)
    return None if index is None else index.num_bytes
