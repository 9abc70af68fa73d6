"""A provider that only audits: stakes, registers, is listed, and follows the jobs it may audit."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import httpx

from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.coins import Coin
from contracts.terms.ids import Digest, JobId, StepNumber
from market.api.app import make_app
from market.domain.jobs import JobState
from market.service.auditors import list_of_job
from market.service.rows import BatchRow, SealRow
from tallystick.provider.agent import Agent, Ask
from tallystick.provider.coins import CoinFile
from tallystick.provider.folder import ProviderFolder
from tallystick.sdk.client import MarketClient
from tests.integration.market.on_chain import ChainWorld, chain_world
from tests.integration.market.test_auditors import AUDIT, post_opening
from tests.integration.market.test_on_chain import in_state, until
from tests.support.history import JobMaker
from tests.support.market_world import DEVICE, market_spec

STAKED = BaseUnits(5_000_000)


@contextlib.asynccontextmanager
async def auditing(world: ChainWorld, home: Path, said: list[str]) -> AsyncIterator[ProviderFolder]:
    """A provider's agent without an offer, in this process."""
    transport = httpx.ASGITransport(make_app(world.api()))
    folder = ProviderFolder(home)
    ask = Ask(PricePerPflop(1), STAKED, DEVICE, 2**30, 10**9, 10**8, 1, timedelta(days=1))
    async with MarketClient("http://market", transport=transport) as client:
        agent = Agent(
            client, folder, folder.wallet(), folder.agent_session(), ask, (), {}, said.append,
            offers=False, audits=True,
        )  # fmt: skip
        running = asyncio.create_task(agent.run())
        try:
            yield folder
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            folder.close()


async def matched(world: ChainWorld) -> JobMaker:
    """A checked job that has its lease."""
    await world.register()
    await world.offer("ann", 10**11)
    spec = market_spec(audit=AUDIT)
    await world.post(spec)

    async def offered() -> bool:
        return bool(await world.beat("ann"))

    await until(world, offered)
    (lease,) = await world.beat("ann")
    member = await world.accept("ann", lease)
    await in_state(world, spec.job(), JobState.MATCHED)
    return world.maker(spec, member, lease)


SEALED = Digest(b"s" * 32)


async def sealed(world: ChainWorld, job: JobId) -> None:
    """A first seal of the job, as far as batches look at it."""
    row = SealRow(job, 1, SEALED, b"", b"", BaseUnits(0), BaseUnits(0), False, world.now)
    async with world.new_work() as work:
        await work[SealRow].add(row)


async def test_agent__audits_only__is_listed_with_its_stake_and_reads_the_jobs_coins(
    tmp_path: Path, database: str
) -> None:
    said: list[str] = []
    async with chain_world(tmp_path, database) as world, auditing(world, tmp_path / "a", said) as a:

        async def heard() -> bool:
            return any("auditing from outside" in line for line in said)

        await until(world, heard)
        maker = await matched(world)
        job = maker.spec.job()

        async def followed() -> bool:
            return f"may be drawn in job {job.hex()[:12]}" in said

        await until(world, followed)
        async with world.new_work() as work:
            block, listed = await list_of_job(job, work)
        await post_opening(world, maker, listed.digest(), block)
        await sealed(world, job)
        coins = CoinFile(a.home / "audits" / job.hex())

        async def has_coin() -> bool:
            return await coins.coin_of(StepNumber(1)) is not None

        await until(world, has_coin)
        async with world.new_work() as work:
            (batch,) = await work[BatchRow].where()

        (entry,) = listed.auditors
        assert entry.account == a.wallet().account and entry.stake == STAKED
        assert entry.session_key == a.audit_session().key and entry.device_class == DEVICE
        assert batch.block is not None and batch.coin is not None
        known = Coin(StepNumber(1), batch.root, batch.block, batch.coin, SEALED)
        assert await coins.coin_of(StepNumber(1)) == known
        assert not any("offering" in line for line in said)
