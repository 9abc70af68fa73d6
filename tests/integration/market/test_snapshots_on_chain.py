"""Snapshots of a real chain outlive its old states, which a restarted node cannot prove."""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contracts.json_rpc import JsonRpc
from contracts.terms.encoding import encode
from contracts.terms.errors import ChainForgot, RpcFailed
from contracts.terms.ids import Address, JobId
from market.service.rows import DebitRow, SnapshotRow
from market.service.settle_epoch import load_settlement
from market.service.store_snapshots import shown_snapshots
from tallystick.audit.export import export
from tests.integration.market.client import sdk
from tests.integration.market.on_chain import ChainWorld, chain_world
from tests.integration.market.test_on_chain import matched_job, rounds, settled
from tests.support.history import JobMaker
from tests.support.offline import verify_offline
from tests.support.patience import patience
from verification.audit.audit_file import AuditFile
from verification.audit.collecting import Rpc
from verification.audit.snapshots import decode_snapshots


@pytest.fixture(autouse=True)
def short_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The market settles as often as the contracts allow."""
    monkeypatch.setattr("tests.support.market_world.EPOCH_SECONDS", 1)


@dataclass
class PrunedNode:
    """A node that proves nothing."""

    node: Rpc

    async def request(self, method: str, params: Sequence[object]) -> Any:
        """See `collecting.Rpc`."""
        if method == "eth_getProof":
            raise RpcFailed("eth_getProof: missing trie node")
        return await self.node.request(method, params)


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


@pytest.mark.nightly
async def test_export__node_restarted_after_two_epochs__stored_snapshots_cover_them(
    tmp_path: Path, database: str
) -> None:
    async with chain_world(tmp_path, database) as world, JsonRpc(world.on.anvil.url) as node:
        maker = await two_epochs(world)
        job, settlement = maker.spec.job(), world.on.deployment.settlement
        rows = await stored(world, job)
        await restarted(world)
        with pytest.raises(ChainForgot):
            await _prove(world, rows[0].block)
        await claim(world, maker.members[0].wallet.account)

        whole = await exported(world, node, job)
        alone = await exported(world, PrunedNode(node), job)

        async with world.new_work() as work:
            epochs = [each.epoch for each in await work[DebitRow].where(job=job)]
        head = await world.on.chain.head()
        assert [row.reason for row in rows] == [f"epoch:{epoch}" for epoch in epochs]
        assert len(rows) >= 2
        async with world.new_work() as work:
            shown = decode_snapshots(encode(await shown_snapshots(rows, work)))
        assert alone.snapshots == whole.snapshots[:-1] == shown
        assert whole.snapshots[-1].header.hash == head.hash
        for file in (whole, alone):
            anchor = file.snapshots[-1].header.hash
            done = verify_offline(file.encoded(), tmp_path, anchor=anchor, settlement=settlement)
            assert (done.returncode, done.stderr) == (0, ""), done.stdout


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


async def _prove(world: ChainWorld, block: int) -> None:
    escrow = f"0x{world.on.deployment.escrow.hex()}"
    await asyncio.wait_for(
        world.on.chain.request("eth_getProof", [escrow, [], hex(block)]), timeout=patience(10)
    )
