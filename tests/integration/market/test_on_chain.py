"""A job through Postgres and a real anvil: every base unit is found again on chain."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from contracts.terms.errors import ChainForgot, ChainUnreachable
from contracts.terms.ids import JobId
from market.domain.jobs import JobState
from market.service.reconcile import Booked
from market.service.rows import BatchRow, EpochRow, TransactionRow
from market.service.settle_epoch import load_settlement
from market.service.show_jobs import job_view
from tests.integration.market.on_chain import ChainWorld, chain_world
from tests.support.history import JobMaker, make_wallet
from tests.support.market_world import market_spec
from tests.support.patience import patience

SECONDS = 40.0


async def until(world: ChainWorld, reached: Callable[[], Awaitable[bool]]) -> None:
    """Run rounds of the market until something is so; what the chain forgot is tried again."""
    async with asyncio.timeout(patience(SECONDS)):
        while not await reached():
            try:
                await world.tick()
            except (ChainForgot, ChainUnreachable):
                continue
            await asyncio.sleep(0.05)


async def rounds(world: ChainWorld, number: int) -> None:
    left = iter(range(number))

    async def enough() -> bool:
        return next(left, None) is None

    await until(world, enough)


async def in_state(world: ChainWorld, job: JobId, *states: JobState) -> None:
    async def reached() -> bool:
        return (await world.job(job)).state in states

    await until(world, reached)


async def settled(world: ChainWorld, maker: JobMaker) -> None:
    async def reached() -> bool:
        async with world.new_work() as work:
            newest = await work[EpochRow].where(order="-epoch", limit=1)
            settlement = await load_settlement(work)
        paid = settlement.debited(maker.spec.job())
        done = bool(newest) and newest[0].state == "final"
        return done and paid == maker.seals[-1].seal.vested

    await until(world, reached)


async def matched_job(world: ChainWorld) -> JobMaker:
    await world.register()
    await world.offer("ann", 10**11)
    spec = market_spec()
    await world.post(spec)

    async def offered() -> bool:
        return bool(await world.beat("ann"))

    await until(world, offered)
    (lease,) = await world.beat("ann")
    member = await world.accept("ann", lease)
    await in_state(world, spec.job(), JobState.MATCHED)
    return world.maker(spec, member, lease)


async def check_money(world: ChainWorld, maker: JobMaker) -> None:
    """Claim, and find everything on chain as in the ledger."""
    job, provider = maker.spec.job(), maker.members[0].wallet.account
    contracts = world.on.contracts
    async with world.new_work() as work:
        leaf, proof = (await load_settlement(work)).claim_proof(provider)
    call = contracts.settlement.claim(provider, leaf.cumulative, leaf.jobs_root.hash, proof)
    await world.sender("ann").send("claim", call)
    await in_state(world, job, JobState.REFUNDED)
    await world.tick()
    head = await world.on.chain.head()
    row = await world.job(job)
    async with world.new_work() as work:
        view = await job_view(row, work, Booked())
    earned = maker.seals[-1].seal.earned
    assert await contracts.token.balance(provider, head) == earned == view.paid
    poster = make_wallet("poster").account
    assert await contracts.token.balance(poster, head) == view.refunded
    assert view.escrowed == maker.spec.budget == view.paid + view.refunded
    assert view.reconciled
    funds = await contracts.escrow.funds(job, head)
    assert funds.deposited == funds.debited == earned


async def test_market__on_a_real_chain__pays_and_refunds_to_the_base_unit(
    tmp_path: Path, database: str
) -> None:
    async with chain_world(tmp_path, database) as world:
        maker = await matched_job(world)
        for _ in range(3):
            maker.seal_step()
        await world.send(maker)
        await settled(world, maker)
        maker.seal_step(last=True)
        await world.send(maker)
        await settled(world, maker)

        await check_money(world, maker)
        async with world.new_work() as work:
            batches = await work[BatchRow].where()
            epochs = await work[EpochRow].where()
        assert all(batch.coin for batch in batches) and len(batches) == 2
        assert [epoch.state for epoch in epochs] == ["final"] * len(epochs) and len(epochs) >= 2


async def test_market__chain_killed_and_started_again__happens_once(
    tmp_path: Path, database: str
) -> None:
    async with chain_world(tmp_path, database) as world:
        maker = await matched_job(world)
        await world.on.anvil.save()
        maker.seal_step()
        maker.seal_step(last=True)
        await world.send(maker)
        await world.tick()  # anchored, and not in the state file yet
        await world.on.anvil.stop()
        await world.on.anvil.start()
        await settled(world, maker)
        await world.on.anvil.stop()
        await world.on.anvil.start()
        await rounds(world, 3)
        await settled(world, maker)

        await check_money(world, maker)
        logs = await world.on.contracts.events(0, (await world.on.chain.head()).number)
        names = [log.event for log in logs]
        assert names.count("Anchored") == 1 and names.count("JobOpened") == 1
        assert names.count("Debited") == names.count("EpochPosted") == 1
        async with world.new_work() as work:
            sent = await work[TransactionRow].where(failed=False)
        assert len({(each.account, each.intention) for each in sent}) == len(sent)


async def test_fund_jobs__permit_of_somebody_else__job_fails_with_the_contracts_reason(
    tmp_path: Path, database: str
) -> None:
    async with chain_world(tmp_path, database) as world:
        await world.register()
        spec = market_spec()
        await world.post(spec, permit_by="mallory")

        await in_state(world, spec.job(), JobState.FAILED)
        row = await world.job(spec.job())
        assert row.failure is not None and "ERC20InsufficientAllowance" in row.failure
