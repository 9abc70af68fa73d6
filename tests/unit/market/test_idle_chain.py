"""What a market asks of a chain on which nothing happens: its head, and nothing else."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from contracts.chain.connection import ChainConnection
from contracts.chain.contracts import Contracts
from contracts.terms.errors import RpcFailed
from contracts.terms.ids import Address, Digest
from contracts.terms.moments import UnixSeconds
from market.adapters.chain import Confirming, RpcChain
from market.service.ports import ChainBlock
from tests.support.history import make_wallet

HEAD = ChainBlock(7, Digest(b"\x07" * 32), UnixSeconds(1000))
ANCHORER = make_wallet("anchorer").account
BEFORE = ChainBlock(6, Digest(b"\x06" * 32), UnixSeconds(999))


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
        senders=cast(Any, {"anchorer": sender}),
    )


async def test_heads__one_confirmation__asks_once() -> None:
    node = Node()

    assert await chain_of(FakeSender([]), node).heads() == (HEAD, HEAD)
    assert node.asked == {"eth_getBlockByNumber": 1}


async def test_resend__head_in_which_all_had_run__asks_for_no_nonce() -> None:
    sender, node = FakeSender([]), Node()
    chain = chain_of(sender, node)

    await chain.resend(HEAD)
    await chain.resend(HEAD)

    assert sender.looks == 1


async def test_resend__another_head_or_something_was_sent_since__looks_again() -> None:
    sender = FakeSender([])
    chain = chain_of(sender, Node())

    await chain.resend(HEAD)
    await chain.resend(BEFORE)  # the chain forgot one
    await chain.anchor(Digest(bytes(32)))
    await chain.resend(BEFORE)

    assert sender.looks == 3


async def test_resend__something_waits_or_a_role_was_not_answered__looks_again() -> None:
    sender = FakeSender([1, 1])
    chain = chain_of(sender, Node())

    assert [await chain.resend(HEAD) for _ in range(2)] == [1, 1]
    sender.broken = True
    await chain.resend(HEAD)
    await chain.resend(HEAD)

    assert sender.looks == 4


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
