"""Snapshots of a real chain outlive its old states, which a restarted node cannot prove."""

import signal
from pathlib import Path

import pytest

from contracts.json_rpc import JsonRpc
from contracts.terms.ids import Address, JobId
from market.service.rows import SnapshotRow
from market.service.settle_epoch import load_settlement
from tallystick.audit.export import export
from tests.integration.market.client import sdk
from tests.integration.market.on_chain import ChainWorld, chain_world
from tests.integration.market.test_on_chain import matched_job, rounds, settled
from tests.support.history import JobMaker
from tests.support.offline import verify_offline
from verification.audit.audit_file import AuditFile
from verification.audit.collecting import Rpc


@pytest.fixture(autouse=True)
def short_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The market settles as often as the contracts allow."""
    monkeypatch.setattr("tests.support.market_world.EPOCH_SECONDS", 1)


async def exported(world: ChainWorld, node: Rpc, job: JobId) -> AuditFile:
    async with sdk(world) as client:
        return await export(client, node, job)


async def claim(world: ChainWorld, account: Address) -> None:
    async with world.new_work() as work:
        leaf, proof = (await load_settlement(work)).claim_proof(account)
    settlement = world.on.contracts.settlement
    call = settlement.claim(account, leaf.cumulative, leaf.jobs_root.hash, proof)
    await world.sender("ann").send("claim", call)


async def stored(world: ChainWorld, job: JobId) -> list[SnapshotRow]:
    async with world.new_work() as work:
        return await work[SnapshotRow].where(job=job, order="number")


async def restarted(world: ChainWorld) -> None:
    """End the node, and start it again on its state file."""
    await world.on.anvil.stop(signal.SIGTERM)
    await world.on.anvil.start()


async def two_epochs(world: ChainWorld) -> JobMaker:
    """A job that two epochs debited, both final."""
    maker = await matched_job(world)
    for _ in range(2):
        for _ in range(3):
            maker.seal_step()
        await world.send(maker)
        await settled(world, maker)
    return maker


async def test_store_snapshots__node_restarted_in_between__takes_them_at_its_head(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chain_world(tmp_path, database) as world, JsonRpc(world.on.anvil.url) as node:
        with monkeypatch.context() as patched:
            patched.setattr("tests.support.market_world.store_snapshots", _nothing)
            maker = await two_epochs(world)
        job = maker.spec.job()
        await world.on.chain.request("evm_mine", [])  # not read yet: the state before is lost
        await restarted(world)

        await rounds(world, 2)

        (row,) = await stored(world, job)
        await claim(world, maker.members[0].wallet.account)
        file = await exported(world, node, job)
        assert len(file.snapshots) == 2 and file.snapshots[0].header.number == row.block
        done = verify_offline(
            file.encoded(),
            tmp_path,
            anchor=file.snapshots[-1].header.hash,
            settlement=world.on.deployment.settlement,
        )
        assert (done.returncode, done.stderr) == (0, "")


async def _nothing(*_: object) -> None:
    """A task that does not come."""
