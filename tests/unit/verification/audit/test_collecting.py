"""Gathering the chain's part of a file from a node."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from contracts.governance.lane import AnchoredBatch
from contracts.governance.settlement import NOTHING_SETTLED, EpochSettlement
from contracts.terms.errors import ChainForgot, Malformed, RpcFailed
from contracts.terms.ids import Address, Digest, JobId
from tests.support.audited import AuditedMarket
from tests.support.fake_chain import SHIPS, FakeChain, rpc_block
from verification.audit.collecting import (
    ANCHORED,
    LOG_PAGE,
    RECORDED,
    read_header,
    read_lane,
    take_snapshot,
)
from verification.audit.snapshots import (
    SHIPPED_AS,
    Snapshot,
    decode_snapshot,
    decode_snapshots,
    encode_snapshot,
    wanted_places,
)

SEALS, ANCHORER = Address(b"s" * 20), Address(b"a" * 20)
ROOT, COIN = Digest(b"r" * 32), Digest(b"c" * 32)


@dataclass
class FakeNode:
    """Answers from dictionaries, and notes what it was asked."""

    logs: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[int, int]] = field(default_factory=list)

    async def request(self, method: str, params: Sequence[object]) -> Any:
        """See `collecting.Rpc`."""
        if method != "eth_getLogs":
            return self.answers.get(method)
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


async def test_read_lane__coin_in_a_later_page__belongs_to_the_batch_before() -> None:
    node = FakeNode(
        [
            log(ANCHORED, ROOT + bytes(32), LOG_PAGE, 1),
            log(RECORDED, bytes(31) + b"\5" + COIN, LOG_PAGE),
            log(ANCHORED, ROOT + bytes(32), 5),
        ]
    )

    lane = await read_lane(node, SEALS, ANCHORER, first_block=0, last_block=LOG_PAGE)

    assert lane == [AnchoredBatch(ROOT, 5, COIN), AnchoredBatch(ROOT, LOG_PAGE, None)]
    assert node.asked == [(0, LOG_PAGE - 1), (LOG_PAGE, LOG_PAGE)]


async def test_read_header__block_unknown__is_forgotten() -> None:
    with pytest.raises(ChainForgot):
        await read_header(FakeNode(), 5)


async def test_take_snapshot__node_proves_other_slots__is_malformed() -> None:
    proof: dict[str, list[str]] = {"accountProof": [], "storageProof": []}
    block = rpc_block(FakeChain().mine(1000))
    node = FakeNode(answers={"eth_getProof": proof, "eth_getBlockByNumber": block})

    with pytest.raises(Malformed):
        await take_snapshot(
            node,
            None,  # type: ignore[arg-type]  # never asked
            block=0,
            addresses=dict.fromkeys(SHIPPED_AS, SEALS),
            places=wanted_places(SHIPS, JobId(bytes(32)), ANCHORER, []),
        )


@dataclass
class ProvingNode:
    """Knows all headers of a market's chain, and proves its present state under each of them."""

    market: AuditedMarket
    refuses: bool = False

    async def request(self, method: str, params: Sequence[Any]) -> Any:
        """See `collecting.Rpc`."""
        if method == "eth_getBlockByNumber":
            return rpc_block(self.market.chain.headers[int(params[0], 16)])
        if self.refuses:
            raise RpcFailed("missing trie node")
        address, slots = bytes.fromhex(params[0][2:]), [int(each, 16) for each in params[1]]
        account, proofs = self.market.chain.prove(Address(address), slots)
        return {
            "accountProof": [f"0x{node.hex()}" for node in account],
            "storageProof": [
                {"key": hex(slot), "value": "0x0", "proof": [f"0x{node.hex()}" for node in nodes]}
                for slot, nodes in zip(slots, proofs, strict=True)
            ],
        }


async def take(node: ProvingNode, block: int, before: int | None = None) -> Snapshot:
    async def nothing(root: Digest) -> EpochSettlement:
        return NOTHING_SETTLED

    headers = node.market.chain.headers
    return await take_snapshot(
        node,
        nothing,
        block=block,
        addresses=node.market.addresses,
        places=wanted_places(SHIPS, JobId(bytes(32)), node.market.anchorer, [ANCHORER]),
        before=None if before is None else headers[before],
    )


async def test_take_snapshot__present_state__is_proved_and_survives_encoding() -> None:
    snapshot = await take(ProvingNode(AuditedMarket()), 1, before=0)

    data = encode_snapshot(snapshot)
    assert decode_snapshot(data) == snapshot
    assert decode_snapshots(b"\x92" + data + data) == (snapshot, snapshot)
    assert snapshot.header.number == 1 and snapshot.before is not None


@pytest.mark.parametrize("refuses", [True, False])
async def test_take_snapshot__state_that_is_gone__is_forgotten(refuses: bool) -> None:
    with pytest.raises(ChainForgot):
        await take(ProvingNode(AuditedMarket(), refuses=refuses), 0)


async def test_take_snapshot__block_before_of_another_chain__is_forgotten() -> None:
    node = ProvingNode(AuditedMarket())
    node.market.chain.headers[0] = FakeChain().mine(1000)

    with pytest.raises(ChainForgot, match="another hash"):
        await take(node, 1, before=0)
