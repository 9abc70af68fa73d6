"""Who shows the tag of what he has is told that it is the same; what cannot change says so."""

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
from fastapi import FastAPI
from starlette.responses import StreamingResponse

from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import blob_digest
from contracts.terms.ids import Digest, EpochNumber
from contracts.terms.moments import UnixMillis
from market.api.app import make_app
from market.service.rows import BatchRow, EpochRow
from tests.integration.market.client import ON_MEMORY, client_of
from tests.support.market_world import MANIFEST, World

pytestmark = ON_MEMORY
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


async def test_view__star__is_any_that_is_there(world: World) -> None:
    async with client_of(world) as client:
        there = await client.get("/offers", headers={"If-None-Match": "*"})
        missing = await client.get("/jobs/" + "11" * 32, headers={"If-None-Match": "*"})

    assert (there.status_code, missing.status_code) == (304, 404)
    assert "etag" not in missing.headers


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


async def test_batch__with_its_coin__is_kept_for_ever_and_not_before(world: World) -> None:
    row = BatchRow(Digest(bytes(32)), 1, UnixMillis(1))
    seen = []

    async with client_of(world) as client:
        for coin in (None, Digest(bytes(32))):
            async with world.new_work() as work:
                await work[BatchRow].put(replace(row, coin=coin))
            response = await client.get(f"/batches/{row.root.hex()}")
            seen.append(response.headers["cache-control"])

    assert seen == ["no-cache", IMMUTABLE]


async def test_stream__of_events__passes_as_it_comes(world: World) -> None:
    app: FastAPI = make_app(world.api())

    @app.get("/v1/stream")
    async def stream() -> StreamingResponse:
        async def events() -> AsyncIterator[bytes]:
            yield b"data: 1\n\n"
            yield b"data: 2\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    wire = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=wire, base_url="http://market/v1") as client:
        response = await client.get("/stream")

    assert response.text == "data: 1\n\ndata: 2\n\n"
    assert "etag" not in response.headers
