"""Blobs in a bucket of any S3-compatible server. Needs the extra `s3`.

A blob is the object `<prefix><digest hex>`. One that comes in several parts is hashed while they go
out, and completed only if its bytes have its name, so nothing is seen of one that is not whole.
What ends its upload aborts it; `prepare` aborts what a killed process left. Endpoint, region and
credentials are what botocore finds, as in the usual AWS_* variables. Units: bytes.
"""

import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Any

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError

from contracts.terms.errors import NotFound, ServiceUnreachable, WrongConfiguration
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from market.adapters.blobs import NAME, checked

PART_BYTES = 8 * 2**20
"""Of all parts but the last, as some servers ask; of 5 MiB at least, 10,000 parts at most."""
PIECE_BYTES = 2**20
"""What is read at once."""
MAX_UNDER_WAY = 256
"""Uploads of a process at the same time; each holds up to two parts in memory."""
_URL = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*?))?/?")
_CONFIG = AioConfig(
    connect_timeout=5,
    read_timeout=30,
    retries={"mode": "standard", "max_attempts": 3},
    max_pool_connections=64,
    # Servers other than Amazon's may not know the checksums that are sent where they can be.
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)


async def open_bucket(url: str, stack: AsyncExitStack) -> "S3Blobs":
    """The blobs under `s3://bucket/prefix`, until `stack` ends; nothing is asked of them yet.

    Raises:
        WrongConfiguration: it is no such address, or an AWS_* variable has no such value.
    """
    if (found := _URL.fullmatch(url)) is None:
        raise WrongConfiguration(f"{url} is no address of a bucket: s3://bucket/prefix")
    try:
        client = get_session().create_client("s3", config=_CONFIG)
        opened = await stack.enter_async_context(client)
    except (BotoCoreError, ValueError) as error:
        raise WrongConfiguration(f"blob store: {error}") from error
    return S3Blobs(opened, bucket=found[1], prefix=f"{found[2]}/" if found[2] else "")


class S3Blobs:
    """`BlobStore` in a bucket."""

    def __init__(self, client: Any, *, bucket: str, prefix: str) -> None:
        """Over an open client of aiobotocore; `prefix` is empty or ends with a slash."""
        self._client, self._bucket, self._prefix = client, bucket, prefix
        self._under_way = 0

    async def prepare(self, *, older_than_seconds: float) -> None:
        """See `BlobStore.prepare`."""
        with _answered():
            pages = self._client.get_paginator("list_multipart_uploads")
            async for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for left in page.get("Uploads", ()):
                    age_seconds = time.time() - left["Initiated"].timestamp()
                    if self._is_blob(left["Key"]) and age_seconds > older_than_seconds:
                        await self._abort(Key=left["Key"], UploadId=left["UploadId"])

    async def put(self, name: Digest, chunks: AsyncIterator[bytes], *, max_bytes: int) -> int:
        """See `BlobStore.put`."""
        if self._under_way >= MAX_UNDER_WAY:
            raise ServiceUnreachable(f"blob store: {self._under_way} uploads at once; try later")
        self._under_way += 1
        upload = _Upload(self._client, self._object(name))
        try:
            async for chunk in checked(name, chunks, max_bytes=max_bytes):
                await upload.append(chunk)
            return await upload.complete()
        except BaseException:
            if upload.id:
                with suppress(ServiceUnreachable):
                    await self._abort(Key=self._key(name), UploadId=upload.id)
            raise
        finally:
            self._under_way -= 1

    async def size(self, name: Digest) -> int | None:
        """See `BlobStore.size`."""
        with suppress(NotFound), _answered():
            return int((await self._client.head_object(**self._object(name)))["ContentLength"])
        return None

    async def free_bytes(self) -> int | None:
        """See `BlobStore.free_bytes`."""
        return None

    async def read(
        self, name: Digest, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """See `BlobStore.read`. Who is slow to take them holds no connection meanwhile."""
        while end is None or start < end:
            until = start + PIECE_BYTES if end is None else min(end, start + PIECE_BYTES)
            piece = await self._piece(name, start, until)
            yield piece
            if len(piece) < PIECE_BYTES:
                return
            start = until

    async def names(self, after: Digest) -> AsyncIterator[tuple[Digest, UnixMillis]]:
        """See `BlobStore.names`. A bucket lists them in order, a thousand at once."""
        key, is_all = self._key(after), False
        while not is_all:
            asked = {"Bucket": self._bucket, "Prefix": self._prefix, "StartAfter": key}
            with _answered():
                page = await self._client.list_objects_v2(**asked)
            for found in page.get("Contents", ()):
                key = found["Key"]
                if self._is_blob(key):
                    stored_at = UnixMillis(round(1000 * found["LastModified"].timestamp()))
                    yield Digest(bytes.fromhex(key.removeprefix(self._prefix))), stored_at
            is_all = not page["IsTruncated"]

    async def remove(self, name: Digest) -> None:
        """See `BlobStore.remove`."""
        with _answered():
            await self._client.delete_object(**self._object(name))

    async def _piece(self, name: Digest, start: int, end: int) -> bytes:
        """Those of [start, end) that there are."""
        asked = {**self._object(name), "Range": f"bytes={start}-{end - 1}"}
        with _answered():
            try:
                answer = await self._client.get_object(**asked)
            except ClientError as error:
                if _code(error) == "InvalidRange":
                    return b""
                raise
            async with answer["Body"] as body:
                return bytes(await body.read())

    def _is_blob(self, key: str) -> bool:
        """Whether it is one of ours: others may use the bucket, too."""
        return NAME.fullmatch(key.removeprefix(self._prefix)) is not None

    def _key(self, name: Digest) -> str:
        return self._prefix + name.hex()

    def _object(self, name: Digest) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._key(name)}

    async def _abort(self, **upload: str) -> None:
        with suppress(NotFound), _answered():
            await self._client.abort_multipart_upload(Bucket=self._bucket, **upload)


class _Upload:
    """An object on its way: in one piece if it is small, else part by part."""

    def __init__(self, client: Any, named: dict[str, str]) -> None:
        self._client, self._named = client, named
        self._held, self._size, self._tags = bytearray(), 0, list[str]()
        self.id = ""

    async def append(self, chunk: bytes) -> None:
        """Send what makes a part, and keep what is left for the last one."""
        self._held += chunk
        self._size += len(chunk)
        while len(self._held) > PART_BYTES:
            part = bytes(self._held[:PART_BYTES])
            del self._held[:PART_BYTES]
            await self._send(part)

    async def complete(self) -> int:
        """Let it be seen; returns its size."""
        last = bytes(self._held)
        if self.id:
            await self._send(last)
        parts = [{"PartNumber": at, "ETag": tag} for at, tag in enumerate(self._tags, 1)]
        with _answered():
            if not self.id:
                await self._client.put_object(**self._named, Body=last)
            else:
                await self._client.complete_multipart_upload(
                    **self._named, UploadId=self.id, MultipartUpload={"Parts": parts}
                )
        return self._size

    async def _send(self, part: bytes) -> None:
        with _answered():
            if not self.id:
                self.id = (await self._client.create_multipart_upload(**self._named))["UploadId"]
            sent = await self._client.upload_part(
                **self._named, UploadId=self.id, PartNumber=len(self._tags) + 1, Body=part
            )
            self._tags.append(sent["ETag"])


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


@contextmanager
def _answered() -> Iterator[None]:
    """What the server says, or does not, as our errors."""
    try:
        yield
    except ClientError as error:
        if _code(error) in ("404", "NoSuchKey", "NoSuchUpload"):
            raise NotFound("no such blob") from error
        raise ServiceUnreachable(f"blob store: {error}") from error
    except (BotoCoreError, aiohttp.ClientError) as error:
        raise ServiceUnreachable(f"blob store: {error}") from error
