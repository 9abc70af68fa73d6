"""Who has signed in, or shows a key, steers his own jobs without a signature for each wish."""

import httpx
import pytest

from contracts.keys.wallet import Wallet
from contracts.terms.ids import JobId
from market.bodies import SESSION_COOKIE, AskJob, OperationView, SessionOpened, read_body
from tallystick.sdk.sign_in import checksummed
from tests.integration.market.test_callers import SITE, Door, bearer, code
from tests.support.history import make_wallet
from tests.support.market_world import World, market_spec

POSTER = make_wallet("poster")


@pytest.fixture
def door(world: World) -> Door:
    """An application that one can sign in to."""
    return Door(world)


async def session(door: Door, wallet: Wallet) -> SessionOpened:
    """A session whose cookie the client does not keep."""
    opened = await door.post(
        await door.message(wallet, address=checksummed(wallet.account)), wallet
    )
    assert opened.status_code == 201, opened.text
    door.client.cookies.clear()
    return read_body(SessionOpened, opened.content)


async def pause(door: Door, job: JobId, **headers: str) -> httpx.Response:
    """Ask for a pause; no signature."""
    door.world.beats += 1
    return await door.client.post(
        f"/jobs/{job.hex()}/pause",
        content=AskJob(at=door.world.now).json_bytes(),
        headers={"Idempotency-Key": str(door.world.beats)} | headers,
    )


async def draft(world: World) -> JobId:
    await world.register()
    spec = market_spec()
    await world.post(spec)
    return spec.job()


async def test_pause__by_the_session_of_its_poster__is_an_operation(door: Door) -> None:
    job, opened = await draft(door.world), await session(door, POSTER)

    answer = await pause(door, job, **bearer(opened.token))

    assert answer.status_code == 202, answer.text
    assert read_body(OperationView, answer.content).action == "pause"
    assert (await door.world.job(job)).wanted == "paused"


async def test_pause__by_a_stranger_or_by_somebody_else__changes_nothing(door: Door) -> None:
    job, other = await draft(door.world), await session(door, make_wallet("eve"))

    assert code(await pause(door, job)) == (401, "bad_signature")
    assert code(await pause(door, job, **bearer(other.token))) == (403, "forbidden")
    assert (await door.world.job(job)).wanted == "running"


async def test_pause__by_a_key__needs_the_scope_jobs(door: Door) -> None:
    job, opened = await draft(door.world), await session(door, POSTER)
    reads, steers = await door.make_key(opened, "read"), await door.make_key(opened, "jobs")

    assert code(await pause(door, job, **bearer(reads.token))) == (403, "forbidden")
    assert (await pause(door, job, **bearer(steers.token))).status_code == 202


async def test_pause__by_a_cookie__comes_from_a_page_of_this_site(door: Door) -> None:
    job = await draft(door.world)
    cookie = {"Cookie": f"{SESSION_COOKIE}={(await session(door, POSTER)).token}"}

    assert code(await pause(door, job, **cookie)) == (403, "forbidden")
    assert code(await pause(door, job, Origin="http://evil.example", **cookie)) == (
        403,
        "forbidden",
    )
    assert (await pause(door, job, Origin=SITE, **cookie)).status_code == 202
