"""Exporting from a market and a node: the file is what a reader can verify."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from contracts.governance.settlement import EpochSettlement
from contracts.terms.errors import ChainUnreachable, Malformed, NotFound
from contracts.terms.history import Kept
from contracts.terms.ids import Digest, JobId
from contracts.terms.messages import JobOpening
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from market.api import schemas
from tallystick.audit.export import export
from tallystick.audit.rpc import JsonRpc
from tests.support.anvil import deployed_chain
from tests.support.fake_chain import SHIPS
from tests.support.history import JobMaker
from tests.support.settling import ChainMarket
from verification.audit_file import verify

NOTHING = Digest(bytes(32))


@dataclass
class FakeMarket:
    """Answers from a `ChainMarket` as the API would."""

    market: ChainMarket

    async def network(self) -> schemas.NetworkView:
        """See `export.Market`."""
        deployment = self.market.deployed.deployment
        names = schemas.ContractsView.model_fields
        return schemas.NetworkView(
            version="test",
            chain_id=deployment.chain_id,
            rpc_url="",
            embedded=True,
            contracts=schemas.ContractsView(**{n: getattr(deployment, n) for n in names}),
            deployed_block=0,
            token=schemas.TokenView(
                name="", version="", symbol="", decimals=6, domain_separator=NOTHING
            ),
            parameters={},
            anchorer=self.market.deployed.senders["anchorer"].account,
            epoch_seconds=2,
            confirmations=0,
            clock=UnixMillis(0),
        )

    async def messages(self, job: JobId) -> AsyncIterator[tuple[int, Kept]]:
        """See `export.Market`."""
        maker = next((each for each in self.market.jobs if each.spec.job() == job), None)
        if maker is None:
            raise NotFound("no such job")
        for number, item in enumerate(maker.items):
            yield number, item

    async def epochs(self) -> schemas.EpochsView:
        """See `export.Market`."""
        return schemas.EpochsView(
            epochs=tuple(self._view(each) for each in self.market.settlements[:0:-1])
        )

    async def epoch(self, number: int) -> schemas.EpochView:
        """See `export.Market`."""
        return self._view(self.market.settlements[number])

    async def batch(self, root: Digest) -> schemas.BatchView:
        """See `export.Market`."""
        entries = tuple(
            schemas.BatchEntryView(job=job, step=step, seal=seal)
            for job, step, seal in self.market.batches[root]
        )
        return schemas.BatchView(
            root=root, entries=entries, transaction=None, block=None, coin=None
        )

    def _view(self, settled: EpochSettlement) -> schemas.EpochView:
        return schemas.EpochView(
            epoch=settled.epoch,
            state="final",
            root=settled.root.hash,
            sum=settled.root.sum,
            window_ends=None,
            transaction=None,
            debits=(),
            leaves=tuple(
                schemas.EpochLeafView(
                    account=each.account,
                    jobs_root=each.jobs_root.hash,
                    cumulative=each.cumulative,
                    jobs=tuple(
                        schemas.JobPay(job=job, cumulative=amount) for job, amount in each.jobs
                    ),
                )
                for each in settled.accounts
            ),
        )


async def test_export__running_job__is_a_file_that_verifies_at_the_head(tmp_path: Path) -> None:
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


async def test_export__job_that_cannot_be_audited__is_a_typed_refusal(tmp_path: Path) -> None:
    async with deployed_chain(tmp_path) as deployed, JsonRpc(deployed.anvil.url) as node:
        market, job = ChainMarket(deployed), JobMaker()
        with pytest.raises(NotFound):
            await export(FakeMarket(market), node, job.spec.job())
        market.jobs.append(job)
        job.items[:] = [
            item
            for item in job.items
            if not (isinstance(item, Signed) and isinstance(item.message, JobOpening))
        ]

        with pytest.raises(Malformed, match="not opened"):
            await export(FakeMarket(market), node, job.spec.job())


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense"])
async def test_json_rpc__no_node__is_unreachable(url: str) -> None:
    async with JsonRpc(url) as node:
        with pytest.raises(ChainUnreachable):
            await node.request("eth_blockNumber", [])
