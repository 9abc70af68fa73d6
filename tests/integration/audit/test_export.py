"""Exporting from a market and a node: the file is what a reader can verify."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contracts.json_rpc import JsonRpc
from contracts.terms.errors import ChainForgot, ChainUnreachable, Malformed, NotFound, RpcFailed
from contracts.terms.messages import JobOpening
from tallystick.audit.export import SHIPS, export
from tests.support.anvil import deployed_chain
from tests.support.audited import pins_of
from tests.support.audited_chain import ChainMarket, job_on
from tests.support.history import JobMaker, messages_of
from verification.audit.audit_file import verify


@dataclass
class FailingNode:
    """A node that answers questions for proofs with an error."""

    node: JsonRpc
    code: int

    async def request(self, method: str, params: Sequence[object]) -> Any:
        """See `collecting.Rpc`."""
        if method == "eth_getProof":
            raise RpcFailed("eth_getProof: no", rpc_code=self.code)
        return await self.node.request(method, params)


async def test_export__running_job__is_a_file_that_verifies_at_the_head_or_a_block_before(
    tmp_path: Path,
) -> None:
    async with deployed_chain(tmp_path) as deployed, JsonRpc(deployed.anvil.url) as node:
        market = ChainMarket(deployed)
        job = job_on(deployed, "exported", (await deployed.chain.head()).number)
        await market.open(job)
        name, before = job.spec.job(), await deployed.chain.head()
        for _ in range(3):
            job.seal_step()
        await market.anchor()
        paid = await market.claim_all(job)
        job.keep(*job.step_items())  # said, and not sealed yet

        now = await export(market, node, name)
        then = await export(market, node, name, block=before.number)

        verdict = verify(now.encoded(), SHIPS, pins=pins_of(now))
        assert verdict.anchored and (verdict.steps, verdict.ended) == (3, False)
        assert verdict.block_number == paid
        assert verdict.escrow is not None
        assert verdict.escrow.claimed == job.seals[-1].seal.vested > 0
        verdict = verify(then.encoded(), SHIPS, pins=pins_of(then))
        assert verdict.anchored and (verdict.steps, verdict.block_hash) == (0, before.hash)
        assert verdict.escrow is not None and verdict.escrow.claimed == 0

        with pytest.raises(ChainForgot, match="there is no block"):
            await export(market, node, name, block=paid + 5)
        with pytest.raises(ChainForgot, match="name a newer block"):
            await export(market, FailingNode(node, -32000), name)
        bare = await export(market, FailingNode(node, -32601), name)
        verdict = verify(bare.encoded(), SHIPS, pins=pins_of(bare))
        assert (verdict.anchored, verdict.escrow, verdict.steps) == (False, None, 3)

        unknown = JobMaker(name="never opened")
        with pytest.raises(NotFound):
            await export(market, node, unknown.spec.job())
        unknown.items[:] = [each for each in unknown.items if not messages_of([each], JobOpening)]
        market.jobs.append(unknown)
        with pytest.raises(Malformed, match="not opened"):
            await export(market, node, unknown.spec.job())


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense"])
async def test_json_rpc__no_node__is_unreachable(url: str) -> None:
    async with JsonRpc(url) as node:
        with pytest.raises(ChainUnreachable):
            await node.request("eth_blockNumber", [])
