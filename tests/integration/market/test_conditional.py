"""Who shows the tag of what he has is told that it is the same; what cannot change says so."""

import pytest

from contracts.terms.digest import blob_digest
from tests.integration.market.client import client_of
from tests.support.market_world import MANIFEST, World

IMMUTABLE = "public, max-age=31536000, immutable"


async def test_view__tag_shown__is_not_sent_again_until_it_changes(world: World) -> None:
    async with client_of(world) as client:
        first = await client.get("/offers")
        tag = first.headers["etag"]
        same = await client.get("/offers", headers={"If-None-Match": f'"other", W/{tag}'})
        await world.offer("ann", 5)
        changed = await client.get("/offers", headers={"If-None-Match": tag})

    assert first.headers["cache-control"] == "no-cache"
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    assert "content-type" not in same.headers
    assert changed.status_code == 200 and changed.headers["etag"] != tag
    assert not tag.startswith("W/")


async def test_blob__tag_shown__is_not_read_again(world: World) -> None:
    name = blob_digest(MANIFEST).hex()

    async with client_of(world) as client:
        first = await client.get(f"/blobs/{name}")
        again = await client.get(f"/blobs/{name}", headers={"If-None-Match": f'"{name}"'})
        head = await client.head(f"/blobs/{name}")

    assert first.content == MANIFEST
    assert first.headers["accept-ranges"] == "bytes"
    assert (again.status_code, again.content) == (304, b"")
    assert {each.headers["cache-control"] for each in (first, again, head)} == {IMMUTABLE}


@pytest.mark.parametrize(
    ("asked", "status", "start", "end"),
    [
        ("bytes=2-5", 206, 2, 6),
        ("bytes=2-999999999999", 206, 2, len(MANIFEST)),
        ("bytes=9999-10000", 200, 0, len(MANIFEST)),
        ("bytes=5-2", 200, 0, len(MANIFEST)),
        ("bytes=-5", 200, 0, len(MANIFEST)),
        ("bytes=0-1,4-5", 200, 0, len(MANIFEST)),
    ],
)
async def test_blob__range_asked_for__is_sent_alone_and_others_are_not_looked_at(
    world: World, asked: str, status: int, start: int, end: int
) -> None:
    async with client_of(world) as client:
        path = f"/blobs/{blob_digest(MANIFEST).hex()}"
        answer = await client.get(path, headers={"Range": asked})

    assert (answer.status_code, answer.content) == (status, MANIFEST[start:end])
    assert answer.headers["content-length"] == str(end - start)
    if status == 206:
        assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(MANIFEST)}"
