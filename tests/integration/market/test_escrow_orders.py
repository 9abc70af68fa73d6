"""Orders for the escrow: who may give them, that each is sent once, and what is paid and freed."""

from collections.abc import Callable

import pytest

from contracts.keys.wallet import Wallet
from contracts.terms import errors
from contracts.terms.amounts import BaseUnits
from contracts.terms.escrow_messages import Bond, Close, End, Grant, Limit, Quit
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixSeconds
from market.service import orders
from market.service.claims import claim_job
from market.service.due import AGAIN_MILLIS, begin_due, note_done, note_due, start_due
from market.service.orders import take_order
from market.service.ports import Order
from market.service.releases import release_job
from market.service.rows import BudgetRow, DueRow, FreeMoneyRow, OrderRow
from tests.support.escrow_model import TAIL
from tests.support.history import make_wallet
from tests.support.market_world import STAKE, World, market_spec

ANN = make_wallet("ann").account


def grant(world: World, job: JobId, limit: int) -> Grant:
    return Grant(job=job, limits=(Limit(account=ANN, limit=BaseUnits(limit)),), by=world.by)


# ------------------------------------------------------------------------------------------ intake


@pytest.mark.parametrize(
    ("order", "signer"),
    [
        (grant, "coordinator"),
        (lambda w, job, n: End(job=job, accounts=(ANN,), by=w.by), "coordinator"),
        (lambda w, job, n: Close(job=job, by=w.by), "poster"),
        (lambda w, job, n: Quit(job=job, account=ANN, keep=BaseUnits(n), by=w.by), "ann"),
    ],
)
async def test_take_order__by_who_may_give_it__is_sent_and_by_nobody_else(
    world: World, order: Callable[[World, JobId, int], Order], signer: str
) -> None:
    job = (await world.start_job()).spec.job()
    wanted, blocks = order(world, job, 5), len(world.chain.blocks)

    for thief in {"coordinator", "poster", "ann", "eve"} - {signer}:
        with pytest.raises(errors.BadSignature):
            await world.order(thief, wanted)
    first = await world.order(signer, wanted)
    assert await world.order(signer, wanted) == first
    for _ in range(3):
        await world.relay(job)

    assert (await world.row(OrderRow, wanted.digest())).transaction is not None
    assert len(world.chain.blocks) == blocks + 1


async def test_take_order__stranger_late_or_of_another_job__is_refused(world: World) -> None:
    job, eve = (await world.start_job()).spec.job(), make_wallet("eve")
    coordinator = make_wallet("coordinator")

    async def given(by: Wallet, order: Order, of: JobId = job) -> None:
        signed = by.sign(order, world.domain)
        await take_order(of, signed.encoded(), world.now, world.new_work(), world.ports)

    for order in (
        Bond(job=job, account=eve.account, stake=BaseUnits(1), by=world.by),
        Quit(job=job, account=eve.account, keep=BaseUnits(1), by=world.by),
    ):
        with pytest.raises(errors.Forbidden):
            await given(eve, order)
    with pytest.raises(errors.Expired):
        late = UnixSeconds(world.now // 1000 - 1)
        await given(coordinator, grant(world, job, 5).model_copy(update={"by": late}))
    with pytest.raises(errors.Malformed):
        far = UnixSeconds(world.now // 1000 + 61)
        await given(coordinator, grant(world, job, 5).model_copy(update={"by": far}))
    with pytest.raises(errors.Malformed):
        await given(coordinator, grant(world, job, 5), JobId(b"j" * 32))
    with pytest.raises(errors.NotFound):
        other = JobId(b"j" * 32)
        await given(coordinator, grant(world, other, 5), other)
    spec = market_spec(salt=2)
    await world.post(spec)
    with pytest.raises(errors.Conflict):  # it has no budget yet
        await given(coordinator, grant(world, spec.job(), 5), spec.job())


# --------------------------------------------------------------------------------------- what waits


async def test_relay__bond_that_the_balance_does_not_cover__waits_for_a_deposit(
    world: World,
) -> None:
    await world.register()
    await world.offer("ann", 10**11)
    spec = market_spec()
    await world.post(spec)
    await world.tick()
    (lease,) = await world.beat("ann")
    world.chain.withdraw(ANN, STAKE)
    await world.sync()
    await world.accept("ann", lease)

    await world.tick()
    waiting = world.chain_events.count("Bonded")
    world.chain.deposit(ANN, STAKE)
    world.wait(6)
    await world.tick()

    assert waiting == 0
    assert (await world.limit(spec.job())).stake == lease.stake


@pytest.mark.parametrize(
    ("more", "seconds", "refusal"),
    [
        (5, 51, "it came too late"),
        (0, 0, "it raises no limit"),
        (10**12, 0, None),  # above what the bucket allows: it may have room before its time is over
        (10**12, 41, "bucket and budget leave no room for it"),
    ],
)
async def test_relay__grant_that_would_do_nothing__costs_no_gas(
    world: World, monkeypatch: pytest.MonkeyPatch, more: int, seconds: int, refusal: str | None
) -> None:
    monkeypatch.setattr(orders, "ROOM_MILLIS", 40_000)  # less than a signature counts
    job = (await world.start_job()).spec.job()
    await world.grant(job, ann=6)
    wanted, blocks = grant(world, job, 5 + more), len(world.chain.blocks)
    await world.order("coordinator", wanted)

    world.wait(seconds)
    await world.relay(job)

    row = await world.row(OrderRow, wanted.digest())
    assert (row.transaction, row.refusal) == (None, refusal)
    assert len(world.chain.blocks) == blocks


# --------------------------------------------------------------------------------- paid and freed


async def test_claim__limit_rises_after_the_last_seal__the_rest_is_paid_too(world: World) -> None:
    maker = await world.start_job()
    job = maker.spec.job()
    await world.grant(job, ann=1000)
    await world.seal(maker, 4, last=True)
    await world.tick()
    first = await world.limit(job)

    await world.grant(job, ann=maker.spec.budget)
    for _ in range(3):
        world.wait(4)
        await world.tick()

    assert first.claimed == 1000 < maker.seals[-1].seal.vested
    assert (await world.limit(job)).claimed == maker.seals[-1].seal.vested
    assert world.chain_events.count("Claimed") == 2


async def test_claim__job_runs__is_left_to_its_agents(world: World) -> None:
    maker = await world.start_job()
    job = maker.spec.job()
    await world.grant(job, ann=maker.spec.budget)
    await world.seal(maker, 5)

    assert await claim_job(job, world.now, world.new_work(), world.ports) is None
    assert "Claimed" not in world.chain_events


async def test_release__account_quit_while_the_job_runs__what_it_earned_is_shown_first(
    world: World,
) -> None:
    maker = await world.start_job()
    job = maker.spec.job()
    await world.grant(job, ann=maker.spec.budget)
    await world.seal(maker, 5)
    earned, vested = maker.seals[-1].seal.earned, maker.seals[-1].seal.vested
    await world.quit("ann", job, keep=maker.spec.budget)
    await world.tick()
    early = await release_job(job, world.now, world.new_work(), world.ports)

    world.wait(TAIL + 1)
    await world.ticks(4)

    after = await world.limit(job)
    assert early is not None and early > world.now - (TAIL + 20) * 1000
    assert (after.limit, after.earned, after.claimed, after.stake) == (earned, earned, vested, 0)
    assert world.chain_events.count("Released") == 1


async def test_release__nothing_is_held__asks_for_no_other_look(world: World) -> None:
    job = (await world.start_job()).spec.job()

    assert await release_job(job, world.now, world.new_work(), world.ports) is None


async def test_reclaim__job_is_closed__what_is_free_goes_back_after_the_tail(world: World) -> None:
    maker = await world.start_job()
    job, spec = maker.spec.job(), maker.spec
    await world.grant(job, ann=1000)
    await world.close(job)
    await world.tick()
    world.wait(TAIL - 1)
    await world.tick()
    before = world.chain_events.count("Reclaimed")

    for _ in range(4):
        world.wait(4)
        await world.tick()

    budget, free = (
        await world.row(BudgetRow, job),
        await world.row(FreeMoneyRow, spec.poster),
    )
    assert before == 0
    assert (budget.funded, budget.committed) == (0, 0)
    assert free.amount == spec.budget


# ---------------------------------------------------------------------------------- what is due


async def test_due__started_and_lost__is_started_again_and_what_comes_meanwhile_is_kept(
    world: World,
) -> None:
    job, started = JobId(b"j" * 32), list[tuple[str, JobId]]()

    async def start() -> int:
        return await start_due(
            world.now, world.new_work(), lambda task, of: started.append((task, of))
        )

    async with world.new_work() as work:
        await note_due(job, "grant", world.now, work)
        await note_due(job, "release", world.now + 10**6, work)
    assert (await start(), await start()) == (1, 0)
    world.wait(AGAIN_MILLIS // 1000 + 1)
    assert await start() == 1  # the first was lost

    begun = await begin_due(job, "grant", world.now, world.new_work())
    async with world.new_work() as work:
        await note_due(job, "grant", world.now, work)  # while it runs
    await note_done(begun, None, world.new_work())
    assert await start() == 1
    begun = await begin_due(job, "grant", world.now, world.new_work())
    await note_done(begun, None, world.new_work())

    assert [row.task for row in await world.rows(DueRow)] == ["release"]
    assert started == [("grant", job)] * 3
