"""Who shows the tag of what he has is told that it is the same; what cannot change says so."""

from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import blob_digest
from contracts.terms.ids import Digest, EpochNumber
from contracts.terms.moments import UnixMillis
from market.service.rows import EpochRow
from tests.integration.market.client import client_of
from tests.support.market_world import MANIFEST, World

IMMUTABLE = "public, max-age=31536000, immutable"


def epoch(number: int, state: str) -> EpochRow:
    return EpochRow(EpochNumber(number), state, Digest(bytes(32)), BaseUnits(0), UnixMillis(number))


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


async def test_epoch__final__is_kept_for_ever_and_not_before(world: World) -> None:
    async with world.new_work() as work:
        await work[EpochRow].add(epoch(1, "final"))
        await work[EpochRow].add(epoch(2, "proposed"))

    async with client_of(world) as client:
        final, proposed = [(await client.get(f"/epochs/{n}")).headers for n in (1, 2)]

    assert final["cache-control"] == IMMUTABLE and final["etag"]
    assert proposed["cache-control"] == "no-cache"
