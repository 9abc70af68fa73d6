"""Blobs by their BLAKE3 digest: shards of data, manifests, checkpoints, evidence.

Whoever stores one is an account, which is charged for it; whoever reads one need be nobody.
"""

from typing import Annotated

from fastapi import Request, Response
from starlette.responses import StreamingResponse

from contracts.terms.errors import Malformed, NotFound, WrongBytes
from contracts.terms.ids import Digest
from market.api.callers import Caller, caller
from market.api.conditional import is_known
from market.api.context import IMMUTABLE, ApiDep, DigestPath, WorkDep, announced_bytes, stream
from market.api.routing import Routes
from market.bodies.base import MAX_BUNDLE_BYTES
from market.bodies.routes import GET_BLOB, HEAD_BLOB, OCTETS, PUT_BLOB
from market.bodies.signing import signed_call
from market.service.store_blob import Upload, store_blob

router = Routes(tags=["blobs"])


@router.on(PUT_BLOB)
async def put_blob(
    blob: DigestPath,
    api: ApiDep,
    request: Request,
    work: WorkDep,
    who: Annotated[Caller, caller("blobs")],
) -> Response:
    """Store the body under its digest, at the caller's expense.

    Bytes that hash to something else are refused, as is what is beyond the caller's quota
    (`too_large`). One that is here already costs nothing and is not read.
    """
    size = announced_bytes(request, MAX_BUNDLE_BYTES)
    if size is None:
        raise Malformed("Content-Length: say how long the blob is, it is charged before it comes")
    _check_signed(blob, request)
    await store_blob(
        Upload(who.account, blob, size),
        stream(request, size),
        now=api.market.clock(),
        bounds=api.blob_bounds,
        work=work,
        blobs=api.market.blobs,
        uploads=api.uploads,
    )
    return Response(status_code=204)


def _check_signed(blob: Digest, request: Request) -> None:
    """A signed request names the digest of its body, so nothing need come to see that it is wrong.

    Raises:
        WrongBytes: it names another than its path.
    """
    call = signed_call(request.headers.get("authorization", ""))
    if call is not None and call.body != blob:
        raise WrongBytes(
            "the body that was signed has another name", expected=blob.hex(), actual=call.body.hex()
        )


@router.on(GET_BLOB)
async def get_blob(blob: DigestPath, api: ApiDep, request: Request) -> Response:
    """The bytes of a blob."""
    headers = await _headers(blob, api)
    if is_known(request, headers["ETag"]):
        return Response(status_code=304, headers={**IMMUTABLE, "ETag": headers["ETag"]})
    return StreamingResponse(api.market.blobs.read(blob), media_type=OCTETS, headers=headers)


@router.on(HEAD_BLOB)
async def head_blob(blob: DigestPath, api: ApiDep) -> Response:
    """Whether a blob is here, and its size."""
    return Response(media_type=OCTETS, headers=await _headers(blob, api))


async def _headers(blob: DigestPath, api: ApiDep) -> dict[str, str]:
    size = await _size(blob, api)
    return {**IMMUTABLE, "Content-Length": str(size), "ETag": f'"{blob.hex()}"'}


async def _size(blob: DigestPath, api: ApiDep) -> int:
    size = await api.market.blobs.size(blob)
    if size is None:
        raise NotFound("no such blob", digest=blob.hex())
    return size
