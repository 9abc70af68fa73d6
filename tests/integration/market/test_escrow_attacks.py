"""Who signs for the escrow attacks those who share its relayer: nothing is kept out or paid for."""

from dataclasses import replace

import pytest

from contracts.terms import errors
from contracts.terms.amounts import BaseUnits
from contracts.terms.escrow_messages import Close, End, Grant, Limit, Quit
from contracts.terms.ids import Digest, JobId
from contracts.terms.moments import UnixSeconds
from market.service import orders
from market.service.due import AT_ONCE, note_due, start_due
from market.service.releases import release_job
from market.service.rows import OrderRow, SlashRow
from market.service.slash import announce_slashes, convict
from tests.support.escrow_model import ANNOUNCE, EXECUTE, TAIL
from tests.support.history import JobMaker, make_wallet
from tests.support.market_world import World, market_spec

ANN, BOB = make_wallet("ann").account, make_wallet("bob").account


def grant(world: World, job: JobId, **limits: int) -> Grant:
    wanted = tuple(
        Limit(account=make_wallet(name).account, limit=BaseUnits(limit))
        for name, limit in limits.items()
    )
    return Grant(job=job, limits=wanted, by=world.by)


def quit_of(world: World, job: JobId, name: str, keep: int) -> Quit:
    account = make_wallet(name).account
    return Quit(job=job, account=account, keep=BaseUnits(keep), by=world.by)


async def test_due__somebody_keeps_as_many_due_as_are_started__the_oldest_has_its_turn(
    world: World,
) -> None:
    victim, started = JobId(b"v" * 32), list[JobId]()
    async with world.new_work() as work:
        await note_due(victim, "claim", world.now - 1, work)
        for each in range(AT_ONCE):
            await note_due(JobId(each.to_bytes(32, "big")), "grant", world.now, work)

    await start_due(world.now, world.new_work(), lambda task, job: started.append(job))

    assert victim in started and len(started) == AT_ONCE


async def test_close__coordinator_has_as_many_waiting_as_it_may__is_taken(world: World) -> None:
    job = (await world.start_job()).spec.job()
    for each in range(orders.MAX_WAITING):
        await world.order("coordinator", grant(world, job, ann=each + 1))
    with pytest.raises(errors.Conflict):
        await world.order("coordinator", grant(world, job, ann=1000))

    await world.close(job)


async def test_close__behind_many_quits__is_sent_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "MAX_SENT", 2)
    job, names = (await world.start_job()).spec.job(), ("ann", "bob", "cy")
    world.chain.order(grant(world, job, ann=5, bob=5, cy=5))
    await world.sync()
    for name in names:
        await world.order(name, quit_of(world, job, name, 5))
    close = Close(job=job, by=world.by)
    await world.order("poster", close)

    await world.relay(job)

    assert (await world.row(OrderRow, close.digest())).transaction is not None


async def test_ends__one_after_the_other__cost_the_gas_of_one(world: World) -> None:
    job = (await world.start_job()).spec.job()
    await world.grant(job, ann=50)
    blocks = len(world.chain.blocks)
    for keep in range(5):
        await world.order("ann", quit_of(world, job, "ann", 50 - keep))
    for _ in range(3):
        await world.relay(job)
        await world.sync()
    for later in range(3):
        by = UnixSeconds(world.by - later)
        await world.order("coordinator", End(job=job, accounts=(ANN,), by=by))
    for _ in range(3):
        await world.relay(job)
        await world.sync()
    for later in range(3):
        await world.order("poster", Close(job=job, by=UnixSeconds(world.by - later)))
    for _ in range(3):
        await world.relay(job)
        await world.sync()

    assert len(world.chain.blocks) == blocks + 2


async def test_order__too_many_an_hour_on_the_gas_of_the_market__is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "MAX_AN_HOUR", 3)
    job = (await world.start_job()).spec.job()
    for limit in range(3):
        await world.grant(job, ann=5 + limit)

    with pytest.raises(errors.Conflict):
        await world.grant(job, ann=50)
    await world.close(job)


async def test_grant__to_wallets_that_have_no_part_in_the_job__is_not_relayed(
    world: World,
) -> None:
    job = (await world.start_job()).spec.job()
    bob = BOB

    for order in (grant(world, job, ann=5, bob=5), End(job=job, accounts=(bob,), by=world.by)):
        with pytest.raises(errors.Forbidden):
            await world.order("coordinator", order)


async def test_claim__another_subtree_has_the_same_total__is_sent_too(world: World) -> None:
    maker = await pair(world)
    job = maker.spec.job()
    first, second = sorted(("ann", "bob"), key=lambda name: make_wallet(name).account)
    world.chain.order(grant(world, job, **{first: 100, second: 40}))
    await world.sync()
    await world.seal(maker, 5, last=True)
    await world.ticks(4)
    assert (await world.limit(job, first)).claimed == 100

    world.chain.order(grant(world, job, **{first: 140}))
    await world.ticks(4)

    assert (await world.limit(job, first)).claimed == 140


async def test_claim__job_is_over_and_its_coordinator_seals_on__costs_gas_once_a_minute(
    world: World,
) -> None:
    maker = await world.start_job()
    job, budget = maker.spec.job(), maker.spec.budget
    await world.grant(job, ann=budget)
    await world.seal(maker, 4)
    await world.close(job)
    await world.ticks(4)
    before = world.chain_events.count("Claimed")

    for _ in range(8):
        await world.seal(maker)
        await world.tick()
        world.wait(4)
    early = world.chain_events.count("Claimed")
    world.wait(60)
    await world.ticks(4)

    assert before == 1 and early <= 2
    vested = maker.seals[-1].seal.vested
    assert (await world.limit(job, "ann")).claimed == vested


async def test_release__pay_of_another_rises_in_each_seal__is_not_held_up(world: World) -> None:
    maker = await world.start_job()
    job, budget = maker.spec.job(), maker.spec.budget
    world.chain.order(grant(world, job, ann=budget - 100, bob=100))
    await world.sync()
    await world.seal(maker, 4)
    for name in ("ann", "bob"):
        world.chain.order(quit_of(world, job, name, budget))
    await world.sync()
    world.wait(TAIL + 1)

    for _ in range(4):  # ann works on, with the coordinator's help
        await world.seal(maker)
        await release_job(job, world.now, world.new_work(), world.ports)
        await world.sync()
        world.wait(4)

    assert (await world.limit(job, "bob")).limit == 0
    assert (await world.limit(job, "ann")).stake > 0


async def test_slash__somebody_announces_another_account_by_its_evidence__is_not_told_of_it(
    world: World,
) -> None:
    maker = await pair(world)
    job = maker.spec.job()
    shown = world.show(b"bundle", job)
    conviction = SlashRow(shown, job, ANN, BaseUnits(1_000_000), convicted_at=world.now)
    row = await convict(conviction, world.now, world.new_work())

    await world.ports.announce(replace(row, account=BOB, amount=BaseUnits(5)), 0)
    await world.sync()

    assert await world.row(SlashRow, row.evidence) == row


async def test_slash__somebody_who_shares_the_role_burns_what_ours_did_not__is_not_told_as_ours(
    world: World,
) -> None:
    job = (await world.start_job()).spec.job()
    shown = world.show(b"bundle", job)
    conviction = SlashRow(shown, job, ANN, BaseUnits(5), convicted_at=world.now)
    row = await convict(conviction, world.now, world.new_work())
    await announce_slashes(world.now, world.new_work(), world.ports)
    await world.sync()

    world.wait(ANNOUNCE + EXECUTE)  # nobody burned it
    thief = replace(row, evidence=Digest(b"t" * 32), amount=BaseUnits(1_000_000))
    await world.ports.announce(thief, 0)
    world.wait(ANNOUNCE)
    await world.ports.burn(thief, 0)
    await world.sync()

    held = await world.row(SlashRow, row.evidence)
    assert (await world.limit(job, "ann")).stake == 0
    assert (held.state, held.amount) == ("convicted", 0)


async def pair(world: World) -> JobMaker:
    """A job that is matched with ann and bob."""
    await world.register()
    for place, name in enumerate(("ann", "bob")):
        await world.offer(name, 10**11 + place)
    spec = market_spec(open_by=world.by, peers_per_stage=2)
    await world.post(spec)
    await world.tick()
    leased = []
    for name in ("ann", "bob"):
        (lease,) = await world.beat(name)
        leased.append((await world.accept(name, lease), lease))
    await world.tick()
    return world.maker(spec, *leased)
