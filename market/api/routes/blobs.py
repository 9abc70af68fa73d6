"""Blobs by their BLAKE3 digest: shards of data, manifests, checkpoints, evidence."""

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from contracts.terms.errors import NotFound, WrongBytes
from market.api.conditional import is_known
from market.api.context import IMMUTABLE, ApiDep, DigestPath, stream
from market.api.openapi import in_bytes
from market.api.refusals import refused
from market.api.schemas import MAX_BUNDLE_BYTES

router = APIRouter(tags=["blobs"])

BYTES = "application/octet-stream"
_BLOB = in_bytes(BYTES, b"any bytes")
_CONTENT: dict[int | str, dict[str, Any]] = {200: _BLOB}


@router.put(
    "/blobs/{name}",
    status_code=204,
    openapi_extra={"requestBody": {"required": True, **_BLOB}},
    responses=refused(WrongBytes),
)
async def put_blob(blob: DigestPath, api: ApiDep, request: Request) -> Response:
    """Store the body under its digest; bytes that hash to something else are refused."""
    await api.market.blobs.put(blob, stream(request, MAX_BUNDLE_BYTES), max_bytes=MAX_BUNDLE_BYTES)
    return Response(status_code=204)


@router.get("/blobs/{name}", responses={**_CONTENT, **refused(NotFound)}, response_class=Response)
async def get_blob(blob: DigestPath, api: ApiDep, request: Request) -> Response:
    """The bytes of a blob."""
    headers = await _headers(blob, api)
    if is_known(request, headers["ETag"]):
        return Response(status_code=304, headers={**IMMUTABLE, "ETag": headers["ETag"]})
    return StreamingResponse(api.market.blobs.read(blob), media_type=BYTES, headers=headers)


@router.head("/blobs/{name}", response_class=Response, responses=refused(NotFound))
async def head_blob(blob: DigestPath, api: ApiDep) -> Response:
    """Whether a blob is here, and its size."""
    return Response(media_type=BYTES, headers=await _headers(blob, api))


async def _headers(blob: DigestPath, api: ApiDep) -> dict[str, str]:
    size = await _size(blob, api)
    return {**IMMUTABLE, "Content-Length": str(size), "ETag": f'"{blob.hex()}"'}


async def _size(blob: DigestPath, api: ApiDep) -> int:
    size = await api.market.blobs.size(blob)
    if size is None:
        raise NotFound("no such blob", digest=blob.hex())
    return size
