"""Gathering the chain's part of a file from a node."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from contracts.governance.anchor_chain import AnchoredBatch
from contracts.terms.errors import ChainForgot, Malformed
from contracts.terms.ids import Address, Digest, JobId
from tests.support.audited import AuditedMarket
from tests.support.fake_chain import SHIPS, rpc_block
from verification.audit.chain_proof import ChainProof, wanted_places
from verification.audit.collecting import (
    ANCHORED,
    LOG_PAGE,
    RECORDED,
    read_anchor_chain,
    take_proof,
)

SEALS, ANCHORER = Address(b"s" * 20), Address(b"a" * 20)
ROOT, BEACON = Digest(b"r" * 32), Digest(b"c" * 32)


@dataclass
class FakeNode:
    """Answers questions for logs, and notes them; knows nothing else."""

    logs: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)

    async def request(self, method: str, params: Sequence[object]) -> Any:
        """See `collecting.Rpc`."""
        if method != "eth_getLogs":
            return None
        wanted = params[0]
        assert isinstance(wanted, dict)
        first, last = int(wanted["fromBlock"], 16), int(wanted["toBlock"], 16)
        self.asked.append((first, last))
        return [log for log in self.logs if first <= int(log["blockNumber"], 16) <= last]


def log(topic: bytes, data: bytes, block: int, index: int = 0) -> dict[str, Any]:
    return {
        "topics": [f"0x{topic.hex()}"],
        "data": f"0x{data.hex()}",
        "blockNumber": hex(block),
        "logIndex": hex(index),
    }


async def test_read_anchor_chain__beacon_in_a_later_page__belongs_to_the_batch_before() -> None:
    node = FakeNode(
        [
            log(ANCHORED, ROOT + bytes(32), LOG_PAGE, 1),
            log(RECORDED, bytes(31) + b"\5" + BEACON, LOG_PAGE),
            log(ANCHORED, ROOT + bytes(32), 5),
        ]
    )

    anchor_chain = await read_anchor_chain(
        node, SEALS, ANCHORER, first_block=0, last_block=LOG_PAGE
    )

    assert anchor_chain == [AnchoredBatch(ROOT, 5, BEACON), AnchoredBatch(ROOT, LOG_PAGE, None)]
    assert node.asked == [(0, LOG_PAGE - 1), (LOG_PAGE, LOG_PAGE)]


@dataclass
class ProvingNode:
    """Knows all headers of a market's chain, and proves its present state under each of them."""

    market: AuditedMarket = field(default_factory=AuditedMarket)
    other_slots: bool = False

    async def request(self, method: str, params: Sequence[Any]) -> Any:
        """See `collecting.Rpc`."""
        if method == "eth_getBlockByNumber":
            return rpc_block(self.market.chain.headers[int(params[0], 16)])
        address, slots = bytes.fromhex(params[0][2:]), [int(each, 16) for each in params[1]]
        account, proofs = self.market.chain.prove(Address(address), slots)
        return {
            "accountProof": [f"0x{node.hex()}" for node in account],
            "storageProof": [
                {
                    "key": hex(slot + self.other_slots),
                    "value": "0x0",
                    "proof": [f"0x{node.hex()}" for node in nodes],
                }
                for slot, nodes in zip(slots, proofs, strict=True)
            ],
        }


async def take(node: ProvingNode, block: int) -> ChainProof:
    places = wanted_places(SHIPS, JobId(bytes(32)), node.market.anchorer, [ANCHORER])
    return await take_proof(node, block=block, addresses=node.market.addresses, places=places)


async def test_take_proof__node_proves_other_slots__is_malformed() -> None:
    with pytest.raises(Malformed):
        await take(ProvingNode(other_slots=True), 1)


async def test_take_proof__node_proves_another_state__is_forgotten() -> None:
    node = ProvingNode()
    node.market.chain.deploy(ANCHORER, b"since then")

    with pytest.raises(ChainForgot, match="does not prove block 0"):
        await take(node, 0)
