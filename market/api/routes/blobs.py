"""Blobs by their BLAKE3 digest: shards of data, manifests, checkpoints, evidence."""

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from contracts.terms.errors import NotFound
from market.api.context import ApiDep, DigestPath, stream
from market.api.schemas import MAX_BUNDLE_BYTES

router = APIRouter(tags=["blobs"])

BYTES = "application/octet-stream"
_CONTENT: dict[int | str, dict[str, Any]] = {200: {"content": {BYTES: {}}}}


@router.put(
    "/blobs/{name}",
    status_code=204,
    openapi_extra={"requestBody": {"required": True, "content": {BYTES: {}}}},
)
async def put_blob(blob: DigestPath, api: ApiDep, request: Request) -> Response:
    """Store the body under its digest; bytes that hash to something else are refused."""
    await api.market.blobs.put(blob, stream(request, MAX_BUNDLE_BYTES), max_bytes=MAX_BUNDLE_BYTES)
    return Response(status_code=204)


@router.get("/blobs/{name}", responses=_CONTENT, response_class=Response)
async def get_blob(blob: DigestPath, api: ApiDep) -> Response:
    """The bytes of a blob."""
    headers = {"Content-Length": str(await _size(blob, api)), "ETag": f'"{blob.hex()}"'}
    return StreamingResponse(api.market.blobs.read(blob), media_type=BYTES, headers=headers)


@router.head("/blobs/{name}", response_class=Response)
async def head_blob(blob: DigestPath, api: ApiDep) -> Response:
    """Whether a blob is here, and its size."""
    headers = {"Content-Length": str(await _size(blob, api)), "ETag": f'"{blob.hex()}"'}
    return Response(media_type=BYTES, headers=headers)


async def _size(blob: DigestPath, api: ApiDep) -> int:
    size = await api.market.blobs.size(blob)
    if size is None:
        raise NotFound("no such blob", digest=blob.hex())
    return size
