"""Real workers share the money of many jobs; one is killed in the middle, and nothing twice."""

import asyncio
import signal
from pathlib import Path

import pytest

from contracts.terms.amounts import BaseUnits
from contracts.terms.escrow_messages import Grant, Limit
from market.service.rows import AuditBondRow, BudgetRow, DueRow, LimitRow, OrderRow, TransactionRow
from tests.integration.market.on_chain import chain_spec, chain_world
from tests.support.history import make_session, make_wallet
from tests.support.market_world import DEVICE
from tests.support.patience import patience
from tests.support.workers import are_ready, num_done, workers

JOBS = 20
NAMES = ("one", "two")


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_workers__two_share_the_grants_of_many_jobs_and_one_is_killed__each_is_sent_once(
    tmp_path: Path, database: str, redis_url: str
) -> None:
    async with chain_world(tmp_path, database) as world:
        await world.register()
        account = make_wallet("ann").account
        jobs = []
        for salt in range(JOBS):
            spec = chain_spec(salt=salt)
            await world.post(spec)
            await world.tick()  # opened
            jobs.append(spec.job())
            async with world.new_work() as work:  # whoever is asked to audit may get a limit
                key, price = make_session("audit ann").key, spec.price_ceiling
                await work[AuditBondRow].add(
                    AuditBondRow(spec.job(), account, key, DEVICE, price, BaseUnits(0), world.now)
                )

        async with asyncio.timeout(patience(60)):
            while len(await world.rows(BudgetRow)) < JOBS:
                await asyncio.sleep(0.1)
                await world.sync()

        async def limits() -> list[LimitRow]:
            return await world.rows(LimitRow, account=account)

        where = {"database": database, "redis": redis_url, "rpc": world.on.anvil.url}
        with workers(tmp_path, dict.fromkeys(NAMES, "default,chain"), **where) as processes:
            async with asyncio.timeout(patience(60)):
                while not are_ready(tmp_path, *NAMES):
                    await asyncio.sleep(0.1)
            for job in jobs:
                wanted = (Limit(account=account, limit=BaseUnits(1000)),)
                await world.order("coordinator", Grant(job=job, limits=wanted, by=world.by))
            async with asyncio.timeout(patience(60)):
                while len(await limits()) < 3:
                    await asyncio.sleep(0.05)
                processes["one"].send_signal(signal.SIGKILL)
                while len(await limits()) < JOBS:
                    await asyncio.sleep(0.1)
                while await world.rows(DueRow, task="grant", limit=1):
                    await asyncio.sleep(0.1)

        logs = await world.on.contracts.events(0, (await world.on.chain.head()).number)
        async with world.new_reading() as work:
            orders = await work[OrderRow].where()
            sent = await work[TransactionRow].where(failed=False)
        assert [log.event for log in logs].count("LimitSet") == JOBS
        assert all(each.transaction is not None for each in orders) and len(orders) == JOBS
        assert len({(each.account, each.key) for each in sent}) == len(sent)
        assert all(num_done(tmp_path, name, "grant") for name in NAMES)
