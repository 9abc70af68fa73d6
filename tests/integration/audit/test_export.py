"""Exporting from a market and a node: the file is what a reader can verify."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from contracts.chain.proofs import Header
from contracts.governance.settlement import EpochSettlement
from contracts.json_rpc import JsonRpc
from contracts.terms.errors import ChainForgot, ChainUnreachable, Malformed, NotFound, RpcFailed
from contracts.terms.history import Kept
from contracts.terms.ids import Digest, JobId
from contracts.terms.messages import JobOpening
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from market.bodies.market import ContractsView, NetworkView, TokenView
from market.bodies.settlement import (
    BatchEntryView,
    BatchView,
    EpochLeafView,
    EpochsView,
    EpochView,
    JobPay,
)
from tallystick.audit.export import export
from tests.support.answering import AnsweringMarket
from tests.support.anvil import DeployedChain, deployed_chain
from tests.support.fake_chain import SHIPS
from tests.support.history import JobMaker
from tests.support.settling import ChainMarket
from verification.audit.audit_file import verify
from verification.audit.snapshots import Snapshot

NOTHING = Digest(bytes(32))


@dataclass
class FakeMarket(AnsweringMarket):
    """Answers from a `ChainMarket` as the API would."""

    market: ChainMarket

    async def get_network(self) -> NetworkView:
        """See `export.Market`."""
        deployment = self.market.deployed.deployment
        names = ContractsView.model_fields
        return NetworkView(
            version="test",
            chain_id=deployment.chain_id,
            genesis=NOTHING,
            rpc_url="",
            embedded=True,
            contracts=ContractsView(**{n: getattr(deployment, n) for n in names}),
            deployed_block=0,
            token=TokenView(name="", version="", symbol="", decimals=6, domain_separator=NOTHING),
            parameters={},
            anchorer=self.market.deployed.senders["anchorer"].account,
            epoch_seconds=2,
            confirmations=0,
            clock=UnixMillis(0),
        )

    async def messages(self, job: JobId, *, after: int = 0) -> AsyncIterator[tuple[int, Kept]]:
        """See `export.Market`."""
        maker = next((each for each in self.market.jobs if each.spec.job() == job), None)
        if maker is None:
            raise NotFound("no such job")
        for number, item in enumerate(maker.items):
            yield number, item

    async def snapshots(self, job: JobId) -> list[Snapshot]:
        """See `export.Market`."""
        return self.market.snapshots

    async def get_epochs(self) -> EpochsView:
        """See `export.Market`."""
        return EpochsView(epochs=tuple(self._view(each) for each in self.market.settlements[:0:-1]))

    async def get_epoch(self, number: int) -> EpochView:
        """See `export.Market`."""
        return self._view(self.market.settlements[number])

    async def get_batch(self, root: Digest) -> BatchView:
        """See `export.Market`."""
        entries = tuple(
            BatchEntryView(job=job, step=step, seal=seal)
            for job, step, seal in self.market.batches[root]
        )
        return BatchView(root=root, entries=entries, transaction=None, block=None, coin=None)

    def _view(self, settled: EpochSettlement) -> EpochView:
        return EpochView(
            epoch=settled.epoch,
            state="final",
            root=settled.root.hash,
            sum=settled.root.sum,
            window_ends=None,
            transaction=None,
            debits=(),
            leaves=tuple(
                EpochLeafView(
                    account=each.account,
                    jobs_root=each.jobs_root.hash,
                    cumulative=each.cumulative,
                    jobs=tuple(JobPay(job=job, cumulative=amount) for job, amount in each.jobs),
                )
                for each in settled.accounts
            ),
        )


async def test_export__running_job__is_a_file_that_verifies_and_others_are_refused(
    tmp_path: Path,
) -> None:
    async with deployed_chain(tmp_path) as deployed, JsonRpc(deployed.anvil.url) as node:
        market = ChainMarket(deployed)
        head = await deployed.chain.head()
        job = JobMaker(
            domain=deployed.deployment.domain,
            anchorer=deployed.senders["anchorer"].account,
            opening_block=head.number,
        )
        await market.open(job)
        before = await export(FakeMarket(market), node, job.spec.job())
        for _ in range(3):
            job.seal_step()
        await market.anchor()
        await market.settle()
        job.keep(*job.step_items())  # said, and not sealed yet

        after = await export(FakeMarket(market), node, job.spec.job())

        head = await deployed.chain.head()
        settlement = deployed.deployment.settlement
        verdict = verify(after.encoded(), SHIPS, anchor=head.hash, settlement=settlement)
        assert (verdict.steps, verdict.ended) == (3, False)
        assert verdict.escrow.paid == job.seals[-1].seal.vested > 0
        assert verify(before.encoded(), SHIPS).steps == 0

        unknown = JobMaker(name="never opened")
        with pytest.raises(NotFound):
            await export(FakeMarket(market), node, unknown.spec.job())
        unknown.items[:] = [each for each in unknown.items if not is_opening(each)]
        market.jobs.append(unknown)
        with pytest.raises(Malformed, match="not opened"):
            await export(FakeMarket(market), node, unknown.spec.job())


def is_opening(item: Kept) -> bool:
    return isinstance(item, Signed) and isinstance(item.message, JobOpening)


@dataclass
class PrunedNode:
    """A node that proves nothing."""

    node: JsonRpc

    async def request(self, method: str, params: Sequence[object]) -> Any:
        """See `collecting.Rpc`."""
        if method == "eth_getProof":
            raise RpcFailed("eth_getProof: missing trie node")
        return await self.node.request(method, params)


async def settled_twice(deployed: DeployedChain) -> tuple[ChainMarket, JobMaker]:
    """A running job that two epochs debited, with a snapshot after each."""
    market = ChainMarket(deployed)
    head = await deployed.chain.head()
    job = JobMaker(
        domain=deployed.deployment.domain,
        anchorer=deployed.senders["anchorer"].account,
        opening_block=head.number,
    )
    await market.open(job)
    for _ in range(2):
        for _ in range(3):
            job.seal_step()
        await market.anchor()
        await market.settle()
        await market.snapshot(job)
    return market, job


async def test_export__stored_snapshots__are_kept_if_of_use_and_followed_by_a_fresh_one(
    tmp_path: Path,
) -> None:
    async with deployed_chain(tmp_path) as deployed, JsonRpc(deployed.anvil.url) as node:
        market, job = await settled_twice(deployed)
        first, second = stored = tuple(market.snapshots)
        settlement = deployed.deployment.settlement
        head = await deployed.chain.head()

        async def exported(*stored: Snapshot) -> list[int]:
            market.snapshots = list(stored)
            file = await export(FakeMarket(market), node, job.spec.job())
            verify(file.encoded(), SHIPS, anchor=head.hash, settlement=settlement)
            return [each.header.number for each in file.snapshots]

        escrow = first.contracts["escrow"]
        other = replace(first, contracts={**first.contracts, "settlement": escrow})
        assert await exported(first, second) == [first.header.number, head.number]
        assert await exported(other, second) == [head.number]  # before a member joined
        assert await exported(first, replace(second, before=None)) == [head.number]
        assert await exported(replace(second, header=_elsewhere(second))) == [head.number]
        market.snapshots = []
        with pytest.raises(ChainForgot):
            await export(FakeMarket(market), PrunedNode(node), job.spec.job())

        market.snapshots = list(stored)
        await deployed.chain.request("evm_mine", [])
        unchanged = await export(FakeMarket(market), node, job.spec.job())
        await market.claim(job.members[0].wallet.account)
        claimed = await export(FakeMarket(market), node, job.spec.job())
        pruned = await export(FakeMarket(market), PrunedNode(node), job.spec.job())

        head = await deployed.chain.head()
        assert unchanged.snapshots == pruned.snapshots == stored
        assert claimed.snapshots[:2] == stored and len(claimed.snapshots) == 3
        verdict = verify(claimed.encoded(), SHIPS, anchor=head.hash, settlement=settlement)
        assert verdict.accounts[job.members[0].wallet.account].claimed
        last = stored[-1].header.hash
        verdict = verify(pruned.encoded(), SHIPS, anchor=last, settlement=settlement)
        assert verdict.escrow.paid == job.seals[-1].seal.vested


def _elsewhere(snapshot: Snapshot) -> Header:
    """The header of another block with this number."""
    return Header((bytes(32), *snapshot.header.fields[1:]))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense"])
async def test_json_rpc__no_node__is_unreachable(url: str) -> None:
    async with JsonRpc(url) as node:
        with pytest.raises(ChainUnreachable):
            await node.request("eth_blockNumber", [])
