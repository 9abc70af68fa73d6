"""A job through Postgres and a real anvil: every base unit is found again on chain."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from contracts.terms.errors import ChainForgot, ChainUnreachable
from contracts.terms.ids import JobId
from market.domain.jobs import JobState
from market.service.reconcile import reconcile
from market.service.rows import LimitRow, OrderRow, TransactionRow
from tests.integration.market.on_chain import ChainWorld, chain_spec, chain_world
from tests.support.history import JobMaker
from tests.support.market_world import STAKE
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


async def paid(world: ChainWorld, maker: JobMaker) -> None:
    """The market has claimed what the last seal vests."""

    async def reached() -> bool:
        limits = await world.rows(LimitRow, job=maker.spec.job())
        return [each.claimed for each in limits] == [maker.seals[-1].seal.vested]

    await until(world, reached)


async def matched_job(world: ChainWorld) -> JobMaker:
    await world.register()
    await world.offer("ann", 10**11)
    spec = chain_spec()
    await world.post(spec)

    async def offered() -> bool:
        return bool(await world.beat("ann"))

    await until(world, offered)
    (lease,) = await world.beat("ann")
    member = await world.accept("ann", lease)
    await in_state(world, spec.job(), JobState.MATCHED)
    return world.maker(spec, (member, lease))


async def check_money(world: ChainWorld, maker: JobMaker) -> None:
    """Everything on chain is as the rows say, and nothing is missing."""
    job, provider = maker.spec.job(), maker.members[0].wallet.account
    contracts, head = world.on.contracts, await world.on.chain.head()
    earned, budget = maker.seals[-1].seal.earned, maker.spec.budget
    found = (await contracts.escrow.channels([(job, provider)], head))[job, provider]
    held = (await contracts.escrow.budgets([job], head))[job]
    free = await contracts.escrow.balances([provider], head)
    assert found.claimed == found.earned == earned > 0
    assert (held.funded, held.committed) == (budget, found.limit)
    assert free[provider][0] == STAKE - found.stake + earned
    total = await contracts.token.balance(contracts.escrow.address, head)
    assert total == STAKE + budget
    assert await reconcile(world.new_reading(), world.ports) > 0


async def test_market__on_a_real_chain__pays_at_once_and_to_the_base_unit(
    tmp_path: Path, database: str
) -> None:
    async with chain_world(tmp_path, database) as world:
        maker = await matched_job(world)
        await world.grant(maker.spec.job(), ann=maker.spec.budget)
        await world.seal(maker, 4, last=True)
        await paid(world, maker)

        await check_money(world, maker)
        job = maker.spec.job()
        await world.quit("ann", job, keep=maker.seals[-1].seal.earned)
        await world.close(job)
        await in_state(world, job, JobState.CLOSED)
        limit = await world.limit(job)
        assert limit.limit == limit.claimed and limit.end
        orders = await world.rows(OrderRow)
        assert sorted(each.kind for each in orders) == ["bond", "close", "grant", "quit"]
        assert all(each.transaction and not each.refusal for each in orders)


async def test_market__chain_killed_and_started_again__happens_once(
    tmp_path: Path, database: str
) -> None:
    async with chain_world(tmp_path, database) as world:
        maker = await matched_job(world)
        await world.on.anvil.save()
        await world.grant(maker.spec.job(), ann=maker.spec.budget)
        await world.seal(maker, 2, last=True)
        await world.tick()  # anchored and paid, and not in the state file yet
        await world.on.anvil.stop()
        await world.on.anvil.start()
        await paid(world, maker)
        await world.on.anvil.stop()
        await world.on.anvil.start()
        await rounds(world, 3)
        await paid(world, maker)

        await check_money(world, maker)
        logs = await world.on.contracts.events(0, (await world.on.chain.head()).number)
        names = [log.event for log in logs]
        for once in ("Anchored", "Opened", "Bonded", "LimitSet", "Claimed"):
            assert names.count(once) == 1, once
        sent = await world.rows(TransactionRow, failed=False)
        assert len({(each.account, each.key) for each in sent}) == len(sent)


async def test_fund_jobs__permit_of_somebody_else__job_fails_with_the_contracts_reason(
    tmp_path: Path, database: str
) -> None:
    async with chain_world(tmp_path, database) as world:
        await world.register()
        spec = chain_spec()
        await world.post(spec, permit_by="mallory")

        await in_state(world, spec.job(), JobState.FAILED)
        row = await world.job(spec.job())
        assert row.failure is not None and "ERC20InsufficientAllowance" in row.failure
