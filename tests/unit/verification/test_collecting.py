"""Gathering the chain's part of a file from a node."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from contracts.governance.lane import AnchoredBatch
from contracts.terms.errors import ChainForgot, Malformed
from contracts.terms.ids import Address, Digest, JobId
from tests.support.fake_chain import SHIPS, FakeChain, rpc_block
from verification.collecting import (
    ANCHORED,
    LOG_PAGE,
    RECORDED,
    read_header,
    read_lane,
    take_snapshot,
)
from verification.snapshots import SHIPPED_AS

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
            SHIPS,
            None,  # type: ignore[arg-type]  # never asked
            block=0,
            addresses=dict.fromkeys(SHIPPED_AS, SEALS),
            job=JobId(bytes(32)),
            anchorer=ANCHORER,
            accounts=[],
        )
