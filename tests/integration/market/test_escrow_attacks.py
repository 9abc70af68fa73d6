"""Who signs for the escrow attacks those who share its relayer: nothing is kept out or paid for."""

import pytest

from contracts.terms import errors
from contracts.terms.amounts import BaseUnits
from contracts.terms.escrow_messages import Close, End, Grant, Limit, Quit
from contracts.terms.ids import Digest, JobId
from contracts.terms.messages import LeaseAccept
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.service import orders
from market.service.due import AT_ONCE, note_due, start_due
from market.service.orders import relay_orders
from market.service.ports import Order, Slash
from market.service.releases import release_job
from market.service.rows import LimitRow, OrderRow, SlashRow
from market.service.slash import announce_slashes, convict
from tests.support.escrow_model import ANNOUNCE, EXECUTE, TAIL
from tests.support.history import JobMaker, Member, make_wallet
from tests.support.market_world import LeasedMaker, World, market_spec, spec_changes

ANN, BOB = make_wallet("ann").account, make_wallet("bob").account


async def state_of(world: World, order: Order) -> OrderRow:
    async with world.new_work() as work:
        row = await work[OrderRow].get(order.digest())
    assert row is not None
    return row


async def limit_of(world: World, job: JobId, name: str) -> LimitRow:
    async with world.new_work() as work:
        row = await work[LimitRow].get(job, make_wallet(name).account)
    assert row is not None
    return row


async def relay(world: World, job: JobId) -> None:
    await relay_orders(job, world.now, world.new_work(), world.ports)


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


async def test_order__of_a_job_without_a_budget__is_not_kept(world: World) -> None:
    await world.register()
    spec = market_spec()
    await world.post(spec)

    with pytest.raises(errors.Conflict):
        await world.close(spec.job())


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

    await relay(world, job)

    assert (await state_of(world, close)).transaction is not None


async def test_ends__one_after_the_other__cost_the_gas_of_one(world: World) -> None:
    job = (await world.start_job()).spec.job()
    await world.grant(job, ann=50)
    blocks = len(world.chain.blocks)
    for keep in range(5):
        await world.order("ann", quit_of(world, job, "ann", 50 - keep))
    for _ in range(3):
        await relay(world, job)
        await world.sync()
    for later in range(3):
        by = UnixSeconds(world.by - later)
        await world.order("coordinator", End(job=job, accounts=(ANN,), by=by))
    for _ in range(3):
        await relay(world, job)
        await world.sync()
    for later in range(3):
        await world.order("poster", Close(job=job, by=UnixSeconds(world.by - later)))
    for _ in range(3):
        await relay(world, job)
        await world.sync()

    assert len(world.chain.blocks) == blocks + 2


async def test_grant__bucket_leaves_no_room_for_it__costs_no_gas(world: World) -> None:
    maker = await world.start_job()
    job, budget = maker.spec.job(), maker.spec.budget
    wanted, blocks = grant(world, job, ann=budget + 1), len(world.chain.blocks)
    await world.order("coordinator", wanted)

    await relay(world, job)
    waiting = await state_of(world, wanted)
    await relay_orders(job, UnixMillis(world.now + 60_001), world.new_work(), world.ports)

    assert waiting.refusal is None
    assert (await state_of(world, wanted)).refusal is not None
    assert len(world.chain.blocks) == blocks


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
    seal(maker, 5, last=True)
    await world.send(maker)
    await settle(world)
    assert (await limit_of(world, job, first)).claimed == 100

    world.chain.order(grant(world, job, **{first: 140}))
    await settle(world)

    assert (await limit_of(world, job, first)).claimed == 140


async def test_claim__job_is_over_and_its_coordinator_seals_on__costs_gas_once_a_minute(
    world: World,
) -> None:
    maker = await world.start_job()
    job, budget = maker.spec.job(), maker.spec.budget
    await world.grant(job, ann=budget)
    seal(maker, 4)
    await world.send(maker)
    await world.close(job)
    await settle(world)
    before = claims_in(world)

    for _ in range(8):
        known = len(maker.items)
        seal(maker, 1)
        await world.send(maker, known)
        await world.tick()
        world.wait(4)
    early = claims_in(world)
    world.wait(60)
    await settle(world)

    assert before == 1 and early <= 2
    vested = maker.seals[-1].seal.vested
    assert (await limit_of(world, job, "ann")).claimed == vested


def claims_in(world: World) -> int:
    return sum(each.event == "Claimed" for block in world.chain.blocks for each in block.events)


async def test_release__pay_of_another_rises_in_each_seal__is_not_held_up(world: World) -> None:
    maker = await world.start_job()
    job, budget = maker.spec.job(), maker.spec.budget
    world.chain.order(grant(world, job, ann=budget - 100, bob=100))
    await world.sync()
    seal(maker, 4)
    await world.send(maker)
    for name in ("ann", "bob"):
        world.chain.order(quit_of(world, job, name, budget))
    await world.sync()
    world.wait(TAIL + 1)

    for _ in range(4):  # ann works on, with the coordinator's help
        known = len(maker.items)
        seal(maker, 1)
        await world.send(maker, known)
        await release_job(job, world.now, world.new_work(), world.ports)
        await world.sync()
        world.wait(4)

    assert (await limit_of(world, job, "bob")).limit == 0
    assert (await limit_of(world, job, "ann")).stake > 0


async def test_slash__somebody_announces_another_account_by_its_evidence__is_not_told_of_it(
    world: World,
) -> None:
    maker = await pair(world)
    job = maker.spec.job()
    shown = world.show(b"bundle", job)
    conviction = SlashRow(shown, job, ANN, BaseUnits(1_000_000), convicted_at=world.now)
    row = await convict(conviction, world.now, world.new_work())

    await world.ports.announce(Slash(job, BOB, BaseUnits(5), row.evidence), 0)
    await world.sync()

    async with world.new_work() as work:
        assert await work[SlashRow].get(row.evidence) == row


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
    thief = Slash(job, ANN, BaseUnits(1_000_000), Digest(b"t" * 32))
    await world.ports.announce(thief, 0)
    world.wait(ANNOUNCE)
    await world.ports.burn(thief, 0)
    await world.sync()

    async with world.new_work() as work:
        held = await work[SlashRow].get(row.evidence)
    assert (await limit_of(world, job, "ann")).stake == 0
    assert held is not None and (held.state, held.amount) == ("convicted", 0)


async def settle(world: World) -> None:
    for _ in range(4):
        await world.tick()
        world.wait(4)


def seal(maker: JobMaker, steps: int, *, last: bool = False) -> None:
    for step in range(steps):
        maker.seal_step(last=last and step == steps - 1)


async def pair(world: World) -> JobMaker:
    """A job that is matched with ann and bob."""
    await world.register()
    for place, name in enumerate(("ann", "bob")):
        await world.offer(name, 10**11 + place)
    spec = market_spec(open_by=world.by, peers_per_stage=2)
    await world.post(spec)
    await world.tick()
    leases, members = dict[bytes, LeaseAccept](), list[Member]()
    for name in ("ann", "bob"):
        (lease,) = await world.beat(name)
        member = await world.accept(name, lease)
        members.append(member)
        leases[member.session.key] = world.accept_of(lease, member.wallet, member.session)
    await world.tick()
    return LeasedMaker(
        name=spec.name,
        members=members,
        spec_changes=spec_changes(spec),
        anchorer=world.anchorer,
        domain=world.domain,
        leases=leases,
    )
