"""Many at once, over real HTTP and a real Postgres: one wins, one job, nothing is charged twice."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence

import httpx

from contracts.keys.wallet import Session
from contracts.terms.amounts import BaseUnits
from contracts.terms.messages import JobSpec, LeaseAccept
from contracts.terms.moments import UnixSeconds
from market.bodies.base import Problem, read_body
from market.bodies.jobs import JobPosted, Permit, PostJob
from market.bodies.offers import AcceptLease, LeaseView
from market.service.rows import BudgetRow, IdempotencyRow, JobRow, LeaseRow
from tests.integration.bad_input.servers import market_at_url
from tests.integration.market.client import once
from tests.support.history import DOMAIN, make_session, make_wallet
from tests.support.market_world import World, market_spec
from tests.support.patience import patience

PERMIT = Permit(deadline=UnixSeconds(4_000_000_000), signature=bytes(65))
CLIENTS, POSTS = 20, 12


def posting(spec: JobSpec) -> bytes:
    signed = make_wallet("poster").sign(spec, DOMAIN).encoded()
    return PostJob(signed=signed, permit=PERMIT).json_bytes()


async def all_at_once(
    url: str, path: str, requests: Sequence[tuple[bytes, dict[str, str]]]
) -> list[httpx.Response]:
    """Every request on a connection of its own.

    Who is told to come back later (503), or loses the connection, sends the very same again, as
    every client may.
    """
    limits = httpx.Limits(max_connections=len(requests))
    async with httpx.AsyncClient(
        base_url=f"{url}/v1", limits=limits, timeout=patience(60), trust_env=False
    ) as client:

        async def send(content: bytes, headers: dict[str, str]) -> httpx.Response:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    answer = await client.post(path, content=content, headers=headers)
                    if answer.status_code != 503:
                        return answer
                await asyncio.sleep(1)

        return await asyncio.gather(*[send(*each) for each in requests])


async def rows_of_jobs(world: World) -> tuple[list[JobRow], list[IdempotencyRow]]:
    async with world.new_work() as work:
        return await work[JobRow].where(), await work[IdempotencyRow].where()


async def charged_once(world: World, spec: JobSpec) -> None:
    """The escrow holds one budget, by rows and on chain; the rest is still the poster's."""
    for _ in range(3):
        await world.tick()
    state = world.chain.state
    assert list(state.places) == [spec.job()]
    assert state.job(spec.job()).funded == spec.budget
    assert state.tokens[spec.poster] == 9 * spec.budget
    budgets = await world.rows(BudgetRow)
    assert [(each.job, each.funded) for each in budgets] == [(spec.job(), spec.budget)]


async def test_post__many_times_at_once_with_one_key__one_job_and_one_answer(
    world: World,
) -> None:
    spec = market_spec()
    await world.register()
    world.chain.give_tokens(spec.poster, BaseUnits(10 * spec.budget))

    async with market_at_url(world) as url:
        answers = await all_at_once(url, "/jobs", [(posting(spec), once("one"))] * POSTS)

    assert Counter(answer.status_code for answer in answers) == {202: POSTS}
    (content,) = {answer.content for answer in answers}
    assert read_body(JobPosted, content).job == spec.job()
    jobs, keys = await rows_of_jobs(world)
    assert [len(jobs), len(keys)] == [1, 1]
    await charged_once(world, spec)


async def test_post__one_key_for_two_jobs_at_once__one_of_them_is_a_conflict(
    world: World,
) -> None:
    specs = [market_spec(salt=salt) for salt in (1, 2)]
    await world.register()

    async with market_at_url(world) as url:
        requests = [(posting(spec), once("one")) for spec in specs * 5]
        answers = await all_at_once(url, "/jobs", requests)

    assert Counter(answer.status_code for answer in answers) == {202: 5, 409: 5}
    refused = [read_body(Problem, each.content) for each in answers if each.status_code == 409]
    assert {each.code for each in refused} == {"conflict"}
    jobs, keys = await rows_of_jobs(world)
    assert [len(jobs), len(keys)] == [1, 1]


async def test_accept__many_clients_for_one_lease__one_session_key_and_one_stake(
    world: World,
) -> None:
    spec = market_spec()
    await world.register()
    await world.offer("ann", 10**11)
    await world.post(spec)
    await world.tick()
    (lease,) = await world.beat("ann")
    sessions = [make_session(f"client {number}") for number in range(CLIENTS)]

    async with market_at_url(world) as url:
        path = f"/leases/{lease.lease.hex()}/accept"
        answers = await all_at_once(
            url, path, [(accepting(world, lease, each), {}) for each in sessions]
        )

    assert Counter(answer.status_code for answer in answers) == {200: 1, 409: CLIENTS - 1}
    refused = [answer for answer in answers if answer.status_code == 409]
    assert {read_body(Problem, answer.content).code for answer in refused} == {"conflict"}
    (won,) = [number for number, each in enumerate(answers) if each.status_code == 200]
    for _ in range(3):
        await world.tick()
    (row,) = await world.rows(LeaseRow)
    assert (row.state, row.session_key) == ("active", sessions[won].key)
    bonded = [event for block in world.chain.blocks for event in block.events]
    assert [event.event for event in bonded].count("Bonded") == 1


def accepting(world: World, lease: LeaseView, session: Session) -> bytes:
    accept: LeaseAccept = world.accept_of(lease, make_wallet("ann"), session)
    signed = make_wallet("ann").sign(accept, DOMAIN).encoded()
    bond = world.sign_bond("ann", lease).encoded()
    return AcceptLease(accept=signed, bond=bond).json_bytes()
