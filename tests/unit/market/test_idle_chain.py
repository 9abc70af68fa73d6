"""What a market asks of a chain on which nothing happens: its head, and nothing else."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contracts.chain.blocks import Block
from contracts.chain.connection import ChainConnection
from contracts.chain.contracts import Contracts
from contracts.terms.errors import RpcFailed
from contracts.terms.ids import Address, Digest
from contracts.terms.moments import UnixSeconds
from market.adapters.chain import Confirming, RpcChain
from tests.support.fakes.market_memory import NoLocks
from tests.support.history import make_wallet

HEAD = Block(7, Digest(b"\x07" * 32), UnixSeconds(1000))
ANCHORER = make_wallet("anchorer").account
BEFORE = Block(6, Digest(b"\x06" * 32), UnixSeconds(999))


class Node:
    """A node whose newest block is `head`; counts what it is asked."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.head = HEAD

    async def make_request(self, method: str, params: object) -> Mapping[str, object]:
        """As web3's providers."""
        self.asked[method] += 1
        head = self.head
        block = {"number": hex(head.number), "hash": "0x" + head.hash.hex()}
        return {"result": block | {"timestamp": hex(head.timestamp)}}


@dataclass
class FakeSender:
    """Of one role; `waiting` says how many transactions the chain did not run, round by round."""

    waiting: list[int]
    looks: int = 0
    broken: bool = False
    account: Address = ANCHORER
    sent: list[str] = field(default_factory=list)
    meanwhile: Callable[[], Awaitable[object]] | None = None  # happens while it is asked

    async def resend(self) -> int:
        """See `Sender.resend`."""
        self.looks += 1
        if self.meanwhile is not None:
            await self.meanwhile()
        if self.broken:
            raise RpcFailed("the node says no")
        return self.waiting.pop(0) if self.waiting else 0

    async def send(self, key: str, call: object) -> Any:
        """See `Sender.send`."""
        self.sent.append(key)
        return SimpleNamespace(transaction=Digest(bytes(32)))


def chain_of(sender: FakeSender, node: Node) -> RpcChain:
    connection = ChainConnection("http://127.0.0.1:1")
    connection._provider = node  # type: ignore[assignment]
    seals = SimpleNamespace(anchor=lambda root: None)
    return RpcChain(
        cast(Contracts, SimpleNamespace(chain=connection, seals=seals)),
        anchorer=make_wallet("anchorer").account,
        rpc_url="",
        confirming=Confirming(1, 0.0),
        locks=NoLocks(),
        senders=cast(Any, {"anchorer": sender}),
    )


async def test_heads__one_confirmation__asks_once() -> None:
    node = Node()

    assert await chain_of(FakeSender([]), node).heads() == (HEAD, HEAD)
    assert node.asked == {"eth_getBlockByNumber": 1}


async def again(chain: RpcChain) -> None:
    await chain.resend(HEAD)


async def forgets_one(chain: RpcChain) -> None:
    await chain.resend(BEFORE)


async def sends(chain: RpcChain) -> None:
    await chain.anchor(Digest(bytes(32)))
    await chain.resend(HEAD)


@pytest.mark.parametrize(
    ("sender", "then", "looks"),
    [
        (FakeSender([]), again, 1),  # all had run in that head
        (FakeSender([]), forgets_one, 2),
        (FakeSender([]), sends, 2),
        (FakeSender([1, 1]), again, 2),  # something waits
        (FakeSender([], broken=True), again, 2),  # a role was not answered
    ],
)
async def test_resend__what_was_sent_may_not_have_run__looks_again(
    sender: FakeSender, then: Callable[[RpcChain], Awaitable[None]], looks: int
) -> None:
    chain = chain_of(sender, Node())

    await chain.resend(HEAD)
    await then(chain)

    assert sender.looks == looks


async def test_resend__node_loses_its_last_block_meanwhile__looks_again_at_the_older_head() -> None:
    sender, node = FakeSender([]), Node()
    chain = chain_of(sender, node)

    async def loses_a_block() -> None:
        node.head = BEFORE

    sender.meanwhile = loses_a_block
    await chain.resend(HEAD)  # its nonces were read with HEAD, so they say nothing of BEFORE
    await chain.resend(BEFORE)

    assert sender.looks == 2


async def test_resend__something_is_sent_meanwhile__looks_again() -> None:
    sender = FakeSender([])
    chain = chain_of(sender, Node())
    sender.meanwhile = lambda: chain.anchor(Digest(bytes(32)))

    await chain.resend(HEAD)
    await chain.resend(HEAD)

    assert sender.looks == 2
