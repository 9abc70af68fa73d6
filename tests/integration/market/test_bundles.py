"""Bundles of leases in rows: all or nothing, spares, late joiners, and providers that vanish."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from contracts.terms.digest import peer_id
from contracts.terms.ids import ZERO_DIGEST, JobId, StageIndex
from contracts.terms.messages import JobSpec, Notice
from contracts.terms.moments import UnixMillis
from market.bodies.signing import heartbeat_digest
from market.domain.jobs import JobState
from market.service.hear import hear_lease
from market.service.leases import ACCEPT_MILLIS, BOND_MILLIS
from market.service.pass_time import pass_deadlines, release_silent
from market.service.ports import UnitOfWork
from market.service.rows import JobRow, LeaseRow, OfferRow
from tests.support.history import JobMaker, Member, make_session, make_wallet
from tests.support.market_world import (
    STAKE,
    World,
    market_spec,
    sign_digest,
)

PRICE = 10**11
LONG = 76  # seconds: lease_grace, and how long an offer may be silent


async def post(world: World, **changed: object) -> JobSpec:
    """A job of one stage with two peers and a spare, unless changed."""
    spec = market_spec(**({"peers_per_stage": 2, "spares": 1} | changed))
    await world.post(spec)
    return spec


async def leases(world: World, job: JobId) -> dict[str, LeaseRow]:
    """The job's newest lease of each provider."""
    names = {make_wallet(name).account: name for name in world.offers}
    rows = await world.rows(LeaseRow, job=job, order="reserved_at")
    return {names[row.account]: row for row in rows}


async def accept_all(world: World, job: JobId) -> list[Member]:
    """Everybody accepts what is reserved, and bonds; the job is matched."""
    members = [
        await world.accept(name, lease)
        for name, lease in sorted((await leases(world, job)).items())
        if lease.state == "reserved"
    ]
    await world.tick()
    return members


async def running(world: World, names: tuple[str, ...], **changed: object) -> JobMaker:
    """A job that has sealed a step with all its members."""
    await world.register()
    for name in names:
        await world.offer(name, PRICE)
    spec = await post(world, **changed)
    await world.tick()
    members: list[Member] = []
    while new := await accept_all(world, spec.job()):
        members += new
    by_account = {lease.account: lease for lease in (await leases(world, spec.job())).values()}
    maker = world.maker(spec, *((each, by_account[each.wallet.account]) for each in members))
    await world.seal(maker)
    assert (await world.job(spec.job())).state == JobState.RUNNING
    return maker


async def hear(world: World, *names: str, job: JobId) -> None:
    """Agents and their peers are alive."""
    for name in names:
        await world.beat(name)
        lease = (await leases(world, job))[name].lease
        session = make_session(f"peer {name} {lease.hex()}")
        signature = sign_digest(session, heartbeat_digest(lease, world.now))
        await hear_lease(lease, world.now, signature, world.now, world.new_work())


async def leave(world: World, maker: JobMaker, name: str) -> None:
    """The coordinator posts the Notice that this peer left, and seals the step with it."""
    lease = (await leases(world, maker.spec.job()))[name]
    peer = peer_id(make_session(f"peer {name} {lease.lease.hex()}").key)
    sent, items = len(maker.items), maker.step_items()
    notice = Notice(
        job=maker.spec.job(), step=maker.next_step, number=maker.record.next_notice, what="leave",
        peer=peer, stage=StageIndex(0), address="", evidence=ZERO_DIGEST,
    )  # fmt: skip
    maker.seal([*items, maker.session.sign(notice)])
    maker.members = [m for m in maker.members if m.session.peer != peer]
    await world.send(maker, sent)


# ---------------------------------------------------------------------------------------- bundles


async def test_lapse__spare_never_bonds__job_goes_on_to_run(world: World) -> None:
    await world.register()
    for name in ("ann", "bob", "cem", "dan"):
        await world.offer(name, PRICE)
    spec = await post(world)
    await world.tick()
    rows = await leases(world, spec.job())
    poor, *rich = sorted(rows)
    for name in rich:
        await world.accept(name, rows[name])
    await world.tick()
    await world.accept(poor, rows[poor])
    world.chain.withdraw(make_wallet(poor).account, STAKE)
    await world.sync()

    world.wait((ACCEPT_MILLIS + BOND_MILLIS) // 1000 + 1)
    await world.tick()

    assert (await leases(world, spec.job()))[poor].state == "lapsed"
    assert (await world.job(spec.job())).state == JobState.MATCHED


# ------------------------------------------------------------------------------------ late joiners


async def test_clear__job_runs__late_offer_becomes_a_spare_and_its_lease_is_stored(
    world: World,
) -> None:
    maker = await running(world, ("ann", "bob"))
    await world.offer("late", PRICE)

    await world.tick()
    (member,) = await accept_all(world, maker.spec.job())

    rows = await leases(world, maker.spec.job())
    assert rows["late"].state == "active"
    assert rows["late"].price == rows["ann"].price
    assert (await world.job(maker.spec.job())).state == JobState.RUNNING
    accept = world.accept_of(rows["late"], member.wallet, member.session)
    sent = len(maker.items)
    maker.keep(member.wallet.sign(accept, maker.domain))
    assert (await world.send(maker, sent)).stored == 1


# -------------------------------------------------------------------------------------- vanished


async def test_release__silent_and_left__its_slot_is_bought_again_for_good(world: World) -> None:
    maker = await running(world, ("ann", "bob"), spares=0)
    job = maker.spec.job()
    world.wait(LONG)
    await hear(world, "ann", job=job)
    await world.offer("new", PRICE)
    await leave(world, maker, "bob")

    await world.tick()
    await world.tick()

    rows = await leases(world, job)
    assert (rows["ann"].state, rows["bob"].state) == ("active", "silent")
    assert rows["new"].state == "reserved"
    assert (await world.row(OfferRow, world.offers["bob"])).lease is None

    await world.beat("bob")  # it comes back, and its slot is another's
    await world.tick()
    rows = await leases(world, job)
    assert (rows["bob"].state, rows["new"].state) == ("silent", "reserved")


@pytest.mark.parametrize("passes", [release_silent, pass_deadlines])
async def test_pass_time__messages_hold_the_row_of_the_job__waits_for_them(
    world: World, passes: Callable[[UnixMillis, UnitOfWork], Awaitable[int]]
) -> None:
    maker = await running(world, ("ann", "bob"), spares=0)
    job = maker.spec.job()
    world.wait(LONG)
    await hear(world, "ann", job=job)
    await leave(world, maker, "bob")
    at = world.now if passes is release_silent else UnixMillis(2**52)

    async with world.new_work() as storing:
        await storing[JobRow].lock(job)
        passing = asyncio.ensure_future(passes(at, world.new_work()))
        done, _ = await asyncio.wait([passing], timeout=0.2)

    assert not done
    assert await passing == 1


async def test_come_back__heard_again_and_a_slot_is_free__goes_on_under_the_same_lease(
    world: World,
) -> None:
    maker = await running(world, ("ann", "bob"), spares=0)
    job = maker.spec.job()
    before = (await leases(world, job))["bob"]
    world.wait(LONG)
    await hear(world, "ann", job=job)
    await leave(world, maker, "bob")
    await world.tick()
    assert (await leases(world, job))["bob"].state == "silent"

    await world.beat("bob")
    await world.tick()
    await world.tick()

    after = (await leases(world, job))["bob"]
    assert after == before
    assert [row.lease for row in await world.beat("bob")] == [before.lease]
