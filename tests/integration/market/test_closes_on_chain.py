"""A job without a last seal on a real chain: closed, paid and audited offline by one seal."""

import asyncio
import time
from pathlib import Path

import pytest

from contracts.json_rpc import JsonRpc
from contracts.terms.moments import UnixSeconds
from market.domain.jobs import JobState
from market.service.close_jobs import close_jobs
from market.service.ports import CloseProof
from tallystick.audit.export import export
from tests.integration.market.client import sdk
from tests.integration.market.on_chain import ChainWorld, chain_world
from tests.integration.market.test_on_chain import in_state, rounds, until
from tests.support.history import JobMaker
from tests.support.market_world import market_spec
from tests.support.offline import verify_offline
from verification.audit.audit_file import AuditFile

pytestmark = pytest.mark.nightly  # mostly waits: for a deadline, a response window and a refund


async def running_job(world: ChainWorld, deadline: UnixSeconds) -> JobMaker:
    """A job that its one provider works for."""
    await world.register()
    await world.offer("ann", 10**11)
    spec = market_spec(deadline=deadline)
    await world.post(spec)

    async def offered() -> bool:
        return bool(await world.beat("ann"))

    await until(world, offered)
    (lease,) = await world.beat("ann")
    member = await world.accept("ann", lease)
    await in_state(world, spec.job(), JobState.MATCHED)
    return world.maker(spec, member, lease)


async def exported(world: ChainWorld, maker: JobMaker) -> AuditFile:
    async with JsonRpc(world.on.anvil.url) as node, sdk(world) as client:
        return await export(client, node, maker.spec.job())


async def test_close__coordinator_gone_and_an_older_seal_shown__all_that_was_earned_is_paid(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.market_world.EPOCH_SECONDS", 1)
    monkeypatch.setattr("market.domain.admission.SHORTEST_JOB_SECONDS", 1)
    async with chain_world(tmp_path, database) as world:
        deadline = UnixSeconds(int(time.time()) + 40)
        maker = await running_job(world, deadline)
        for _ in range(3):
            maker.seal_step()
        await world.send(maker)
        job, seal, contracts = maker.spec.job(), maker.seals[-1].seal, world.on.contracts
        await rounds(world, 2)  # anchored
        while time.time() < deadline + 1.5:
            await asyncio.sleep(0.1)
        older = maker.seals[0]
        signed = maker.coordinator.sign(older.seal, maker.domain)
        await world.ports.close(maker.spec, CloseProof(signed, older.pay), kept_open=0)
        await world.sync()
        answered = await close_jobs(world.now, world.new_work(), world.ports)
        await in_state(world, job, JobState.REFUNDED)

        async def is_settled() -> bool:
            funds = await contracts.escrow.funds(job, await world.on.chain.head())
            return funds.debited == funds.deposited == seal.earned

        await until(world, is_settled)
        file = await exported(world, maker)
        closing = await contracts.escrow.closing(job, await world.on.chain.head())

        assert answered == [job]
        assert (closing.seals, closing.earned, closing.due) == (4, seal.earned, seal.earned)
        own = {
            "anchor": file.snapshots[-1].header.hash,
            "settlement": world.on.deployment.settlement,
        }
        done = verify_offline(file.encoded(), tmp_path, **own)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
