"""Who shows the tag of what he has is told that it is the same; what cannot change says so."""

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
    assert (again.status_code, again.content) == (304, b"")
    assert {each.headers["cache-control"] for each in (first, again, head)} == {IMMUTABLE}
