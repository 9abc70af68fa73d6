"""Epochs of several jobs: whatever one of them does, the others are paid."""

import pytest

from contracts.terms.errors import ContractRefused
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.domain.jobs import JobState
from market.service.rows import DebitRow
from tests.integration.market.test_closes import paid
from tests.integration.market.test_slash import convicted, slash_of
from tests.support.fakes.memory_chain import Effect, MemoryChain
from tests.support.history import DOMAIN, START
from tests.support.market_world import ANCHORER, EPOCH_SECONDS, World


async def test_settle__chain_refuses_one_debit__others_are_paid_and_it_is_tried_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    maker, other = await world.start_job(), await world.start_job("bob", nonce=2)
    held = world.chain.state.jobs[maker.spec.job()]
    deposited, held.deposited = held.deposited, 1
    for each in (maker, other):
        for _ in range(3):
            each.seal_step()
        await world.send(each)
    for _ in range(6):
        world.wait(6)
        await world.tick()
    while_refused = await paid(world, maker), await paid(world, other)

    held.deposited = deposited
    for _ in range(16):
        world.wait(6)
        await world.tick()

    assert while_refused == (0, other.seals[-1].seal.vested)
    assert f"{maker.spec.job().hex()} is left out: Overdrawn" in caplog.text
    assert await paid(world, maker) == maker.seals[-1].seal.vested > 0


async def test_settle__chain_refuses_every_epoch__no_job_is_left_out(world: World) -> None:
    maker = await world.start_job()
    for _ in range(3):
        maker.seal_step()
    await world.send(maker)
    world.chain.state.funded = 1  # so that no sum fits
    for _ in range(4):
        world.wait(6)
        await world.tick()
    while_refused = await paid(world, maker)

    world.chain.state.funded = 0
    await world.tick()

    assert while_refused == 0 < await paid(world, maker)


async def test_settle__more_jobs_than_an_epoch_holds__each_is_paid_in_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("market.service.settle_epoch.MAX_DEBITS", 2)
    makers = [await world.start_job(f"p{nonce}", nonce=nonce) for nonce in range(5)]
    for _ in range(3):
        for maker in makers:
            known = len(maker.items) if maker.seals else 0
            for _ in range(3):  # so that all have something to pay in every epoch
                maker.seal_step()
            await world.send(maker, known)
        for _ in range(2):
            world.wait(EPOCH_SECONDS // 2)
            await world.tick()

    async with world.new_work() as work:
        debits = await work[DebitRow].where()

    by_epoch = [[row.job for row in debits if row.epoch == epoch] for epoch in (1, 2, 3)]
    assert [len(jobs) for jobs in by_epoch] == [2, 2, 2]
    assert {job for jobs in by_epoch for job in jobs} == {maker.spec.job() for maker in makers}


async def test_settle__other_jobs_end_in_every_period__a_running_one_is_paid_meanwhile(
    world: World,
) -> None:
    running = await world.start_job()
    for nonce in (2, 3, 4):
        ending = await world.start_job(f"p{nonce}", nonce=nonce)
        ending.seal_step(last=True)
        await world.send(ending)
        await world.tick()  # an epoch with what ended
        if nonce == 2:
            for _ in range(3):
                running.seal_step()
            await world.send(running)
        for _ in range(3):
            world.wait(EPOCH_SECONDS // 4)
            await world.tick()

    assert await paid(world, running) == running.seals[-1].seal.vested > 0


class Refusing(MemoryChain):
    """Notes what it refuses."""

    def __init__(self) -> None:
        super().__init__(DOMAIN, ANCHORER, now=START)
        self.refused: list[str] = []

    def _mine(self, name: str, effect: Effect) -> Digest:
        try:
            return super()._mine(name, effect)
        except ContractRefused as refusal:
            self.refused.append(f"{name}: {refusal.message}")
            raise


class Ahead(World):
    """A market whose clock is three seconds ahead of its chain's."""

    @property
    def now(self) -> UnixMillis:
        """The market's clock."""
        return UnixMillis(super().now + 3000)


async def test_tick__chain_is_behind_the_markets_clock__sends_nothing_that_is_not_due(
    world: World,
) -> None:
    chain = Refusing()
    world = Ahead(world.new_work, world.new_reading, chain)
    maker = await world.start_job(deadline=UnixSeconds(START + 63))
    for _ in range(3):
        maker.seal_step()
    await world.send(maker)
    slash = await convicted(world, maker)
    world.wait(8)

    for _ in range(60):
        world.wait(2)
        await world.tick()
        if (await world.job(maker.spec.job())).settled:
            break

    assert [each for each in chain.refused if "NothingReserved" not in each] == []
    assert (await slash_of(world, slash.evidence)).state == "executed"
    assert (await world.job(maker.spec.job())).state == JobState.REFUNDED
    assert await paid(world, maker) == maker.seals[-1].seal.earned
