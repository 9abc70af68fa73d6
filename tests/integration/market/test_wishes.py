"""A poster pauses, resumes and cancels its job at a market."""

import asyncio
from collections.abc import Sequence

import httpx
import pytest

from contracts.keys.wallet import Wallet
from contracts.terms.ids import JobId
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixMillis
from market.bodies.base import Problem, read_body
from market.bodies.jobs import (
    AskJob,
    HeededWish,
    HostedJob,
    HostedJobs,
    HostHeartbeat,
    JobAction,
    JobView,
    OperationView,
)
from market.domain.jobs import JobState
from market.service.coding import spec_of
from market.service.host_jobs import HOSTING_MILLIS
from market.service.rows import JobRow, LeaseRow, OfferRow
from tests.integration.market.client import HOST, client_of, once, signed
from tests.integration.market.test_auditors import AUDIT
from tests.support.history import JobMaker, make_wallet
from tests.support.market_world import PERMIT, World, market_spec

POSTER = make_wallet("poster")


async def post(
    client: httpx.AsyncClient,
    world: World,
    job: JobId,
    action: JobAction,
    *,
    key: str = "",
    at: UnixMillis | None = None,
    by: Wallet = POSTER,
) -> httpx.Response:
    """What is answered to a wish, of this moment if no other is said."""
    at = world.now if at is None else at
    path, body = f"/jobs/{job.hex()}/{action}", AskJob(at=at).json_bytes()
    headers = signed(world, by, "POST", path, body, key=key or f"{action} {at}")
    return await client.post(path, content=body, headers=headers)


async def ask(
    world: World, client: httpx.AsyncClient, job: JobId, action: JobAction
) -> OperationView:
    """What the poster of the tests asks for, a moment later than before."""
    world.beats += 1
    answer = await post(client, world, job, action)
    assert answer.status_code == 202, answer.text
    return read_body(OperationView, answer.content)


async def again(client: httpx.AsyncClient, operation: OperationView) -> OperationView:
    """The operation as it is now."""
    answer = await client.get(f"/operations/{operation.operation.hex()}")
    return read_body(OperationView, answer.content)


async def hosted(client: httpx.AsyncClient) -> Sequence[HostedJob]:
    """What the host of the tests is given."""
    answer = await client.post("/hosting/claim", headers=HOST)
    return read_body(HostedJobs, answer.content).jobs


async def heed(client: httpx.AsyncClient, job: JobId, wish: int) -> None:
    """The host says that the job is as the wish wants it."""
    said = (HeededWish(job=job, wish=wish),)
    body = HostHeartbeat(jobs=(job,), heeded=said)
    answer = await client.post("/hosting/heartbeat", content=body.json_bytes(), headers=HOST)
    assert answer.status_code == 200, answer.text


async def posted(world: World, **changed: object) -> JobSpec:
    """A draft."""
    await world.register()
    spec = market_spec(**changed)
    await world.post(spec)
    return spec


async def running(world: World, client: httpx.AsyncClient) -> JobMaker:
    """A job of which some steps are sealed."""
    maker = await world.start_job()
    await hosted(client)
    await world.seal(maker, 3)
    return maker


def problem(answer: httpx.Response) -> Problem:
    return read_body(Problem, answer.content)


async def leases_of(world: World, job: JobId) -> list[str]:
    return [lease.state for lease in await world.rows(LeaseRow, job=job)]


# ------------------------------------------------------------------------------ pause and resume


async def test_pause__running__is_done_when_its_coordinator_says_so(world: World) -> None:
    async with client_of(world) as client:
        maker = await running(world, client)
        job = maker.spec.job()

        paused = await ask(world, client, job, "pause")
        [told] = await hosted(client)
        await heed(client, job, told.wish)
        after_it = await again(client, paused)
        resumed = await ask(world, client, job, "resume")
        view = read_body(JobView, (await client.get(f"/jobs/{job.hex()}")).content)

    assert (paused.state, paused.waits_for) == ("pending", "coordinator")
    assert (told.wanted, told.wish) == ("paused", 1)
    assert after_it.state == "done" and after_it.result is not None
    assert after_it.result.job_state == "running"
    assert (resumed.state, view.wanted) == ("pending", "running")


async def test_pause__not_matched_yet__is_not_cleared_until_it_is_resumed(world: World) -> None:
    async with client_of(world) as client:
        spec = await posted(world)
        await world.offer("ann", 10**11)
        paused = await ask(world, client, spec.job(), "pause")
        await world.tick()
        before = await leases_of(world, spec.job())
        await ask(world, client, spec.job(), "resume")
        await world.tick()

    assert paused.state == "done"
    assert before == []
    assert await leases_of(world, spec.job()) == ["reserved"]


async def test_pause__matched__no_host_is_given_it(world: World) -> None:
    async with client_of(world) as client:
        job = (await world.start_job()).spec.job()
        assert [each.job for each in await hosted(client)] == [job]

        paused = await ask(world, client, job, "pause")
        while_paused = await hosted(client)
        world.beats += HOSTING_MILLIS  # nobody renews its row
        let_go = await again(client, paused)
        await ask(world, client, job, "resume")

        assert (paused.state, paused.waits_for) == ("pending", "host")
        assert while_paused == ()
        assert let_go.state == "done"
        assert [each.job for each in await hosted(client)] == [job]


# ------------------------------------------------------------------------------ who may ask, once


async def test_ask__same_request_many_times_at_once__is_one_operation(world: World) -> None:
    async with client_of(world) as client:
        job = (await posted(world)).job()
        answers = await asyncio.gather(
            *(post(client, world, job, "pause", key="k") for _ in range(8))
        )

    assert {(each.status_code, each.content) for each in answers} == {(202, answers[0].content)}
    assert (await world.job(job)).wish == 1


async def test_ask__moment_is_used_again__is_expired(world: World) -> None:
    async with client_of(world) as client:
        job, then = (await posted(world)).job(), world.now
        await post(client, world, job, "pause", key="first", at=then)
        await ask(world, client, job, "resume")

        replayed = await post(client, world, job, "pause", key="second", at=then)

    assert problem(replayed).code == "expired"
    assert (await world.job(job)).wanted == "running"


async def test_ask__signature_is_of_another_wish_or_key__is_refused(world: World) -> None:
    async with client_of(world) as client:
        job = (await posted(world)).job()
        body = AskJob(at=world.now).json_bytes()
        for_another = signed(world, POSTER, "POST", f"/jobs/{job.hex()}/pause", body, key="k")

        path, codes = f"/jobs/{job.hex()}/cancel", []
        for headers in (for_another, for_another | once("another")):
            codes.append(problem(await client.post(path, content=body, headers=headers)).code)

    assert codes == ["bad_signature"] * 2
    assert (await world.job(job)).wanted == "running"


async def test_ask__by_anybody__counts_if_its_poster_signed_the_request(
    world: World,
) -> None:
    maker = await world.start_job()
    path, codes = f"/jobs/{maker.spec.job().hex()}/pause", []
    callers = (None, maker.members[0].session, make_wallet("thief"), POSTER)
    async with client_of(world) as client:
        for number, by in enumerate(callers):
            body, key = AskJob(at=world.now).json_bytes(), f"{number}"
            headers = signed(world, by, "POST", path, body, key=key) if by else once(key)
            codes.append((await client.post(path, content=body, headers=headers)).status_code)
        for token in ("", "x", "tss_" + "a" * 43, "the host's token"):
            headers = once(f"by {token}") | {"Authorization": f"Bearer {token}"}
            answer = await client.post(path, content=body, headers=headers)
            assert problem(answer).code == "bad_signature"

    assert codes == [401, 403, 403, 202]
    assert (await world.job(maker.spec.job())).wanted == "paused"


async def test_ask__after_a_cancel__nothing_but_a_cancel_is_taken(world: World) -> None:
    async with client_of(world) as client:
        maker = await running(world, client)
        job = maker.spec.job()
        first = await ask(world, client, job, "cancel")
        world.beats += 1
        refused = await post(client, world, job, "resume")
        second = await ask(world, client, job, "cancel")

    assert problem(refused).code == "conflict"
    assert first.operation != second.operation
    assert (second.state, (await world.job(job)).wish) == ("pending", 1)


# ---------------------------------------------------------------------------------------- cancel


async def balance(world: World, spec: JobSpec) -> int:
    return (await world.ports.account(spec.poster)).token


async def test_cancel__draft__is_dropped_and_nothing_was_paid(world: World) -> None:
    async with client_of(world) as client:
        spec = await posted(world)
        cancelled = await ask(world, client, spec.job(), "cancel")
        await world.tick()

    row: JobRow = await world.job(spec.job())
    assert (cancelled.state, row.state) == ("done", JobState.FAILED)
    assert row.failure == "cancelled by its poster"
    assert await balance(world, spec) == spec.budget


@pytest.mark.parametrize("changed", [{}, {"audit": AUDIT}])
async def test_cancel__funded__fails_at_once_and_no_host_is_given_it(
    world: World, changed: dict[str, object]
) -> None:
    async with client_of(world) as client:
        spec = await posted(world, **changed)
        await world.tick()
        await world.offer("ann", 10**11)
        await world.clear()
        assert await leases_of(world, spec.job()) == ["reserved"]

        cancelled = await ask(world, client, spec.job(), "cancel")
        await world.tick()
        assert await hosted(client) == ()

    assert cancelled.state == "done"
    assert (await world.job(spec.job())).state == JobState.FAILED
    assert await leases_of(world, spec.job()) == ["ended"]
    assert (await world.row(OfferRow, world.offers["ann"])).lease is None


async def test_cancel__draft_whose_permit_is_mined_after_all__stays_failed(world: World) -> None:
    async with client_of(world) as client:
        spec = await posted(world)
        row = await world.job(spec.job())
        cancelled = await ask(world, client, spec.job(), "cancel")
        await world.ports.open_job(spec_of(row), PERMIT.deadline, PERMIT.signature)
        await world.sync()

        assert (await again(client, cancelled)).state == "done"
        assert await hosted(client) == ()
    assert (await world.job(spec.job())).state == JobState.FAILED


async def test_cancel__running__is_done_with_the_last_seal(world: World) -> None:
    async with client_of(world) as client:
        maker = await running(world, client)
        job = maker.spec.job()
        cancelled = await ask(world, client, job, "cancel")
        await world.seal(maker, last=True)
        over = await again(client, cancelled)

    assert cancelled.waits_for == "coordinator"
    assert over.state == "done" and over.result is not None
    assert over.result.job_state == "finished"
    assert maker.seals[-1].seal.earned > 0
