"""Who gets in by a signed request, and who does not: each refusal with its code."""

from dataclasses import dataclass, field
from typing import Annotated

import httpx
import pytest
from fastapi import FastAPI

from contracts.terms.digest import blob_digest
from contracts.terms.ids import JobId
from market.api.app import make_app
from market.api.callers import Caller, caller
from market.bodies.base import API_PREFIX, Problem, read_body
from market.bodies.jobs import AskJob, OperationView
from tallystick.sdk.http import Signer, signed_by
from tests.support.history import DOMAIN, make_wallet
from tests.support.market_world import World, market_spec

SITE = "http://127.0.0.1:8420"
ANN, POSTER = make_wallet("ann"), make_wallet("poster")


@dataclass
class Door:
    """An application with one route that needs the scope `jobs`, and its client."""

    world: World
    app: FastAPI = field(init=False)
    client: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        self.app = make_app(self.world.api())

        @self.app.post("/v1/steer")
        async def steer(who: Annotated[Caller, caller("jobs")]) -> str:
            return who.account.hex()

        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url=SITE + API_PREFIX)

    async def post(
        self, path: str, by: Signer | None, content: bytes = b"", key: str = ""
    ) -> httpx.Response:
        """Send a request that `by` has signed; None: nobody has."""
        now, target = self.world.now, API_PREFIX + path
        headers = {"Idempotency-Key": key} if key else {}
        if by is not None:
            body = blob_digest(content)
            signed = signed_by(by, DOMAIN, "POST", target, body, now, key=key)
            headers["Authorization"] = signed
        return await self.client.post(path, content=content, headers=headers)

    async def pause(self, job: JobId, by: Signer | None) -> httpx.Response:
        """Ask for a pause, without a signature in the body."""
        self.world.beats += 1
        wish = AskJob(at=self.world.now).json_bytes()
        return await self.post(f"/jobs/{job.hex()}/pause", by, wish, str(self.world.beats))


@pytest.fixture
def door(world: World) -> Door:
    return Door(world)


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, read_body(Problem, response.content).code


async def test_request__signed_by_a_wallet__is_its_account(door: Door) -> None:
    answer = await door.post("/steer", ANN)

    assert (answer.status_code, answer.json()) == (200, ANN.account.hex())


async def test_request__signed_by_the_session_key_of_a_lease__may_not_steer_jobs(
    door: Door,
) -> None:
    maker = await door.world.start_job()

    answer = await door.post("/steer", maker.members[0].session)

    assert code(answer) == (403, "forbidden")


async def test_request__signed_by_nobody__is_a_bad_signature(door: Door) -> None:
    assert code(await door.post("/steer", None)) == (401, "bad_signature")


async def test_request__with_a_token__is_a_bad_signature(door: Door) -> None:
    for token in ("", "x", "tss_" + "a" * 43, "the host's token"):
        headers = {"Authorization": f"Bearer {token}"}
        assert code(await door.client.post("/steer", headers=headers)) == (401, "bad_signature")


# ----------------------------------------------------------------------------------------- wishes


async def draft(world: World) -> JobId:
    await world.register()
    spec = market_spec()
    await world.post(spec)
    return spec.job()


async def test_pause__by_a_request_that_its_poster_signed__is_an_operation(door: Door) -> None:
    job = await draft(door.world)

    answer = await door.pause(job, POSTER)

    assert answer.status_code == 202, answer.text
    assert read_body(OperationView, answer.content).action == "pause"
    assert (await door.world.job(job)).wanted == "paused"
