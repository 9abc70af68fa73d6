"""Clearing, leases, hosting and time: what happens in rows, round by round."""

import asyncio
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.errors import BadSignature, Conflict, Forbidden, NoMatch
from contracts.terms.ids import Digest, JobId
from contracts.terms.messages import LeaseAccept
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import Signed
from market.bodies.signing import hosting_digest
from market.domain.jobs import JobState
from market.service import clear_jobs as clear_jobs_module
from market.service.accept_lease import accept_lease
from market.service.at_rest import is_at_rest
from market.service.clear_jobs import clear_jobs
from market.service.coordinators import allocate_coordinator, note_paid
from market.service.fund_jobs import fund_jobs
from market.service.host_jobs import HOSTING_MILLIS, claim_jobs, register_host, renew_jobs
from market.service.leases import LIVE
from market.service.pace import Pace
from market.service.pass_time import SETTLES_MILLIS
from market.service.rows import (
    BatchRow,
    BudgetRow,
    DueRow,
    FreeMoneyRow,
    JobRow,
    LeaseRow,
    LimitRow,
    OfferRow,
)
from tests.support.escrow_model import TAIL
from tests.support.history import DOMAIN, START, JobMaker, make_session, make_wallet
from tests.support.market_world import STAKE, World, market_spec


async def funded_job(world: World, **changed: object) -> JobRow:
    """A job whose budget is in escrow; nobody has looked for leases yet."""
    spec = market_spec(**changed)
    await world.post(spec)
    await fund_jobs(world.now, world.new_work(), world.ports)
    await world.sync()
    return await world.job(spec.job())


async def leased(world: World) -> tuple[JobRow, LeaseRow]:
    """A job whose one slot ann has, if she accepts it."""
    await world.register()
    await world.offer("ann", 10**11)
    job = await funded_job(world)
    (lease,) = await world.clear()
    return job, lease


async def test_at_rest__a_job_is_ordered_and_dropped__not_while_anything_is_due_of_it(
    world: World,
) -> None:
    await world.register()
    await world.offer("ann", 2 * 10**11)
    assert await is_at_rest(world.new_work())
    spec = market_spec()
    await world.post(spec)
    seen = [await is_at_rest(world.new_work())]

    changes: tuple[dict[str, Any], ...] = (
        {"state": JobState.RUNNING},
        {"state": JobState.FAILED},
        {"state": JobState.FINISHED},
        {"state": JobState.CLOSED},
    )
    for changed in changes:
        async with world.new_work() as work:
            row = await work[JobRow].lock(spec.job())
            assert row is not None
            await work[JobRow].put(replace(row, **changed))
        seen.append(await is_at_rest(world.new_work()))

    assert seen == [False, False, True, True, True]


async def test_clear__one_job_breaks__the_others_are_bought_and_it_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.register()
    for name in ("ann", "ben"):
        await world.offer(name, 2 * 10**11)
    bad, good = await funded_job(world), await funded_job(world, salt=2)

    async def breaks_at_one(job: JobRow, *rest: Any) -> list[LeaseRow]:
        if job.job == bad.job:
            raise ZeroDivisionError
        return await as_it_was(job, *rest)

    as_it_was = clear_jobs_module._clear_one
    monkeypatch.setattr(clear_jobs_module, "_clear_one", breaks_at_one)
    with pytest.raises(ExceptionGroup):
        await world.clear()

    leased = {lease.job for lease in await world.rows(LeaseRow)}
    assert leased == {good.job}


@pytest.mark.parametrize("num_rounds", [1, 2], ids=["in one round", "in two"])
async def test_clear__two_machines_and_stake_for_one__one_is_leased(
    world: World, num_rounds: int
) -> None:
    await world.register()
    await world.offer("ann", 10**11)
    await world.offer("ann", 10**11, nonce=2)
    num_leased = 0
    for number in range(num_rounds):
        for nonce in range(2 // num_rounds):
            await funded_job(world, salt=10 * number + nonce, min_stake=STAKE)
        num_leased += len(await world.clear())

    assert num_leased == 1  # the other would lapse, and its owner be said to have missed it


async def three_that_never_match_and_one_that_does(world: World) -> JobRow:
    """The last of four funded jobs, and the only one that the offer is cheap enough for."""
    await world.register()
    await world.offer("ann", 10**11)
    for nonce in range(3):
        await funded_job(world, salt=nonce, price_ceiling=PricePerPflop(1))
        world.wait(1)
    return await funded_job(world, salt=3)


async def matched(world: World, pace: Pace, *, num_rounds: int) -> list[JobId]:
    """Jobs that so many rounds bought a lease for, in order."""
    found = []
    for _ in range(num_rounds):
        found += await clear_jobs(world.now, world.new_work(), pace)
    return [lease.job for lease in found]


async def test_clear__a_page_of_jobs_that_never_match__the_job_behind_it_is_matched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clear_jobs_module, "MAX_JOBS_A_ROUND", 3)
    honest = await three_that_never_match_and_one_that_does(world)

    assert await matched(world, Pace(), num_rounds=2) == [honest.job]


async def test_clear__time_for_one_job_a_round__each_is_tried_before_the_next_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clear_jobs_module, "MAX_JOBS_A_ROUND", 2)
    honest = await three_that_never_match_and_one_that_does(world)
    clock = count()
    pace = Pace(seconds=0.5, monotonic=lambda: next(clock))

    assert await matched(world, pace, num_rounds=3) == []
    assert await matched(world, pace, num_rounds=1) == [honest.job]


@pytest.mark.parametrize("num_rounds", [1, 2])
async def test_clear__no_more_jobs_behind_a_page__begins_again_at_the_oldest(
    world: World, monkeypatch: pytest.MonkeyPatch, num_rounds: int
) -> None:
    monkeypatch.setattr(clear_jobs_module, "MAX_JOBS_A_ROUND", 1)
    await world.register()
    oldest = await funded_job(world)
    world.wait(1)
    await funded_job(world, salt=2, price_ceiling=PricePerPflop(1))
    pace = Pace()
    assert await matched(world, pace, num_rounds=num_rounds) == []
    await world.offer("ann", 10**11)

    assert await matched(world, pace, num_rounds=2) == [oldest.job]  # no round without a job


async def test_clear__many_rounds_at_once_on_postgres__no_offer_leased_twice(
    world: World,
) -> None:
    await world.register()
    for name in ("ann", "bob", "cem", "dan"):
        await world.offer(name, 10**11)
    for nonce in range(6):
        await funded_job(world, salt=nonce)

    rounds = [clear_jobs(world.now, world.new_work()) for _ in range(8)]
    await asyncio.gather(*rounds)
    await world.clear()

    async with world.new_work() as work:
        leases = await work[LeaseRow].where(state=LIVE)
        offers = await work[OfferRow].where()
    assert len({lease.offer for lease in leases}) == len(leases) == 4
    assert len({lease.job for lease in leases}) == 4
    assert {offer.lease for offer in offers} == {lease.lease for lease in leases}


async def test_rows__second_live_lease_of_an_offer__is_refused_by_storage(world: World) -> None:
    _, lease = await leased(world)

    with pytest.raises(Conflict):
        async with world.new_work() as work:
            await work[LeaseRow].add(replace(lease, lease=Digest(b"\1" * 32)))


# ---------------------------------------------------------------------------------------- leases


async def test_lease__not_accepted_in_time__lapses_and_its_offer_waits(world: World) -> None:
    job, _ = await leased(world)
    world.wait(31)
    await world.beat("ann")

    await world.tick()

    (lease,) = await world.rows(LeaseRow, job=job.job)
    assert lease.state == "lapsed"
    assert (await world.job(job.job)).state == JobState.FUNDED
    world.wait(31)
    await world.beat("ann")
    assert len(await world.clear()) == 1


async def accepted(
    world: World, lease: LeaseRow, signed: Signed[LeaseAccept], bond: bytes | None = None
) -> LeaseRow:
    """The lease, if the market takes this for its acceptance."""
    work = world.new_work()
    return await accept_lease(lease.lease, signed.encoded(), bond, world.now, work, world.ports)


async def test_accept__other_terms_wallet_or_bond__is_refused_with_what_would_fit(
    world: World,
) -> None:
    _, lease = await leased(world)
    wallet = make_wallet("ann")
    accept = world.accept_of(lease, wallet, make_session("peer"))

    for changed in ({"price": 1}, {"stake": BaseUnits(1)}, {"device_class": "gpu"}):
        with pytest.raises(Conflict) as refusal:
            await accepted(world, lease, wallet.sign(accept.model_copy(update=changed), DOMAIN))
        assert refusal.value.data["field"] in changed
    for bond in (None, world.sign_bond("ann", lease, lease.stake - 1).encoded()):
        with pytest.raises(Conflict) as refusal:
            await accepted(world, lease, wallet.sign(accept, DOMAIN), bond)
        assert refusal.value.data["would_fit"] == str(lease.stake)
    with pytest.raises(BadSignature):
        await accepted(world, lease, make_wallet("eve").sign(accept, DOMAIN))


@pytest.mark.parametrize(("more", "state"), [(-1, "accepted"), (0, "active"), (1, "active")])
async def test_sync__account_bonds_by_itself__lease_is_active_if_it_is_enough(
    world: World, more: int, state: str
) -> None:
    job, lease = await leased(world)
    await world.accept("ann", lease)

    world.chain.order(world.sign_bond("ann", lease, lease.stake + more).message)
    await world.sync()

    assert await states_of(world, job.job) == [state]


async def test_accept__account_has_bonded_before__needs_no_bond_and_begins_at_once(
    world: World,
) -> None:
    job, lease = await leased(world)
    world.chain.order(world.sign_bond("ann", lease).message)
    await world.sync()
    wallet = make_wallet("ann")
    signed = wallet.sign(world.accept_of(lease, wallet, make_session("peer")), DOMAIN)

    row = await accepted(world, lease, signed)

    assert row.state == "active"
    assert (await world.job(job.job)).state == JobState.MATCHED


async def test_sync__account_quits_before_the_opening__lease_ends_and_another_is_looked_for(
    world: World,
) -> None:
    maker = await world.start_job()
    job = maker.spec.job()

    await world.quit("ann", job, keep=0)
    await world.tick()

    assert await states_of(world, job) == ["ended"]
    assert (await world.job(job)).state == JobState.FUNDED
    await world.beat("ann")
    assert await world.clear() == []  # until it is released


async def states_of(world: World, job: JobId) -> list[str]:
    return [lease.state for lease in await world.rows(LeaseRow, job=job)]


# --------------------------------------------------------------------------------------- hosting


async def test_host__claims_its_jobs_and_loses_them_when_silent(world: World) -> None:
    maker = await world.start_job()
    job = maker.spec.job()
    held = await claim_jobs("host", world.now, world.new_work())
    again = await claim_jobs("host", world.now, world.new_work())

    assert [row.job for row in held.jobs] == [row.job for row in again.jobs] == [job]
    kept = await renew_jobs("host", [job], [], world.now, world.new_work())
    assert kept.jobs[0].until == world.now + HOSTING_MILLIS


async def test_host__another_name_for_a_known_coordinator__is_forbidden(world: World) -> None:
    await world.register("host")

    with pytest.raises(Forbidden):
        await world.register("other")


async def test_host__signature_of_somebody_else__is_a_bad_signature(world: World) -> None:
    wallet = make_wallet("coordinator")
    signature = make_wallet("eve").sign_digest(hosting_digest("host", wallet.account))

    with pytest.raises(BadSignature):
        await register_host("host", [(wallet.account, signature)], world.now, world.new_work())


async def test_coordinators__paid_for_by_a_job__is_nobody_elses(world: World) -> None:
    await world.register()
    row = await world.post(market_spec())

    first = await allocate_coordinator(make_wallet("eve").account, world.now, world.new_work())
    async with world.new_work() as work:
        await note_paid(row.coordinator, row.job, work)

    assert first == row.coordinator
    with pytest.raises(NoMatch):
        await allocate_coordinator(make_wallet("ann").account, world.now, world.new_work())


# ------------------------------------------------------------------------------------------ time


async def past_its_deadline(world: World, seconds: int = 0) -> tuple[JobMaker, JobId]:
    """A job of five sealed steps, so long after its deadline."""
    maker = await world.start_job(deadline=UnixSeconds(START + 1000))
    await world.grant(maker.spec.job(), ann=maker.spec.budget)
    await world.seal(maker, 5)
    world.wait(1001 + seconds)
    await world.tick()
    return maker, maker.spec.job()


async def test_deadline__in_the_middle_of_the_work__coordinator_may_still_give_its_last_seal(
    world: World,
) -> None:
    maker, job = await past_its_deadline(world)
    while_it_settles = (await world.job(job)).state
    await world.seal(maker, last=True)
    await world.tick()

    limit = await world.row(LimitRow, job, make_wallet("ann").account)
    assert (while_it_settles, (await world.job(job)).state) == (
        JobState.RUNNING,
        JobState.FINISHED,
    )
    assert limit.claimed == maker.seals[-1].seal.earned


async def test_deadline__no_last_seal_comes__fails_and_what_has_vested_is_paid(
    world: World,
) -> None:
    maker, job = await past_its_deadline(world, SETTLES_MILLIS // 1000)
    await world.tick()

    limit = await world.row(LimitRow, job, make_wallet("ann").account)
    seal = maker.seals[-1].seal
    assert (await world.job(job)).state == JobState.FAILED
    assert (limit.claimed, limit.earned) == (seal.vested, seal.earned)


# ---------------------------------------------------------------------------- a chain that forgets


@pytest.mark.parametrize("lost", [pytest.param(1, marks=pytest.mark.nightly), 5])
async def test_sync__chain_forgets_blocks__everything_happens_once(world: World, lost: int) -> None:
    maker = await world.start_job()
    await world.grant(maker.spec.job(), ann=maker.spec.budget)
    await world.seal(maker, 3, last=True)
    for turn in range(14):
        await world.tick()
        world.chain.forget(min(lost, len(world.chain.blocks) - 12))
        world.wait(6)
        if turn == 4:
            await world.close(maker.spec.job())
    world.wait(TAIL)
    await world.ticks(8, 6)

    job, account = maker.spec.job(), make_wallet("ann").account
    limit, budget = (
        await world.row(LimitRow, job, account),
        await world.row(BudgetRow, job),
    )
    events = [event.event for block in world.chain.blocks for event in block.events]
    earned = maker.seals[-1].seal.earned
    assert (await world.job(job)).state == JobState.CLOSED
    assert (limit.claimed, limit.limit) == (earned, earned)
    assert budget.funded == budget.committed == earned
    free = {each.account: each.amount for each in await world.rows(FreeMoneyRow)}
    assert free[account] == STAKE + earned
    assert free[maker.spec.poster] == maker.spec.budget - earned
    assert await world.rows(DueRow) == []
    assert all(batch.block and batch.beacon for batch in await world.rows(BatchRow))
    for once in ("Opened", "Anchored", "Claimed", "Closed", "Bonded", "Released", "Reclaimed"):
        assert events.count(once) == 1, once
