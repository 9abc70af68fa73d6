"""Which answers of a node are a contract's refusal, and which are the node's own trouble.

Answers with reverts are anvil's (1.7.1) and geth's, to calls of contracts that end in each way.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from contracts.chain.blocks import Block
from contracts.chain.connection import Call, ChainConnection, checksummed
from contracts.chain.contracts import bind
from contracts.chain.deployment import NAMES, Deployment
from contracts.chain.sender import Sender
from contracts.chain.transactions import SqliteTransactions
from contracts.terms.errors import ContractRefused, RpcFailed, Unavailable, WrongConfiguration
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.moments import UnixSeconds
from tests.support.history import make_wallet

ALICE = make_wallet("alice")
SOMEBODY = Address(b"\x51" * 20)
NOWHERE = Deployment(chain_id=1, block=0, **dict.fromkeys(NAMES, Address(bytes(20))))


NODE: dict[str, Any] = {
    "eth_getTransactionCount": "0x0",
    "eth_estimateGas": "0x5208",
    "eth_getBalance": hex(10**20),
}
"""Of an account that can pay."""


class Node:
    """Answers each method with one thing."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers

    async def make_request(self, method: str, params: object) -> Mapping[str, object]:
        """As web3's providers."""
        answer = self.answers[method]
        return (
            {"error": answer}
            if isinstance(answer, dict) and "code" in answer
            else {"result": answer}
        )


def error(code: int, message: str, **data: str) -> dict[str, Any]:
    return {"code": code, "message": message, **data}


def block(number: int, *, genesis: bytes = b"g") -> dict[str, str]:
    """Of whatever number it is asked for, the first one's hash included."""
    said = {"hash": "0x" + (genesis * 32).hex(), "timestamp": "0x1"}
    return {"number": hex(number), "baseFeePerGas": "0x7", **said}


def connected(**answers: object) -> ChainConnection:
    chain = ChainConnection("http://127.0.0.1:1")
    chain._provider = Node(**answers)  # type: ignore[assignment]
    return chain


@pytest.fixture
def store() -> Iterator[SqliteTransactions]:
    made = SqliteTransactions(":memory:")
    yield made
    made.close()


@pytest.mark.parametrize(
    "answer",
    [
        error(3, "execution reverted", data="0x"),  # a bare revert()
        error(-32000, "execution reverted"),  # the same, of an older geth
        error(3, "execution reverted: custom error", data="0x" + "ab" * 36),
        error(-32603, "EVM error InvalidFEOpcode"),
        error(-32603, "EVM error OutOfGas"),
        error(-32003, "Out of gas: gas required exceeds allowance: 30000000"),
        error(-32000, "gas required exceeds allowance (50000000)"),
        error(-32000, "invalid opcode: INVALID"),
        error(-32000, "out of gas"),
    ],
)
async def test_request__contract_did_not_come_to_its_end__is_its_refusal(
    answer: dict[str, Any],
) -> None:
    with pytest.raises(ContractRefused):
        await connected(eth_estimateGas=answer).request("eth_estimateGas", [{}])


@pytest.mark.parametrize(
    "answer",
    [
        error(429, "Too Many Requests"),
        error(-32005, "daily request count exceeded, request rate limited"),
        error(-32000, "insufficient funds for transfer"),
        error(-32000, "missing trie node 51 (path )", data="0x51"),
        error(-32603, "internal error"),
        error(-32601, "Method not found"),
    ],
)
async def test_request__error_of_the_node__refuses_nobody(answer: dict[str, Any]) -> None:
    with pytest.raises(RpcFailed):
        await connected(eth_estimateGas=answer).request("eth_estimateGas", [{}])


async def test_send__account_without_gas__is_no_refusal_and_stores_nothing(
    store: SqliteTransactions,
) -> None:
    chain = connected(
        eth_getTransactionCount="0x0",
        eth_getBlockByNumber=block(0),
        eth_estimateGas="0x5208",
        eth_getBalance="0x0",
    )

    with pytest.raises(Unavailable, match=rf"{checksummed(ALICE.account)} holds 0; send"):
        await Sender(chain, ALICE, store, 1).send("gift", Call(SOMEBODY, b""))

    assert await store.next_nonce(ALICE.account) == 0


@pytest.mark.parametrize(
    "message",
    [
        "already known",
        "nonce too low",
        "transaction already imported",
        "underpriced",
        "max fee per gas less than block base fee",
    ],
)
async def test_resend__node_knows_the_transaction_or_finds_it_cheap__waits_and_raises_nothing(
    message: str, store: SqliteTransactions
) -> None:
    chain = connected(
        **NODE, eth_getBlockByNumber=block(1), eth_sendRawTransaction=error(-32000, message)
    )
    sender = await stored(chain, store)

    assert await sender.resend() == 1
    assert len(await store.attempts(ALICE.account, 0)) == 1


async def stored(chain: ChainConnection, store: SqliteTransactions) -> Sender:
    """A process that was killed before it sent what it had stored, started again."""

    def die(phase: str, key: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await Sender(chain, ALICE, store, 1, die).send("gift", Call(SOMEBODY, b""))
    return Sender(chain, ALICE, store, 1)


async def test_resend__first_in_line_waits_ten_blocks__is_priced_again(
    store: SqliteTransactions,
) -> None:
    chain = connected(**NODE, eth_sendRawTransaction="0x")
    node = chain._provider
    assert isinstance(node, Node)
    node.answers["eth_getBlockByNumber"] = block(1)
    sender, attempts = await stored(chain, store), []

    for number in (1, 10, 11, 12, 21):
        node.answers["eth_getBlockByNumber"] = block(number)
        await sender.resend()
        attempts.append(len(await store.attempts(ALICE.account, 0)))

    assert attempts == [1, 1, 2, 2, 2]


@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "of before chains were noted"])
async def test_send__node_of_another_chain_of_the_same_id__gets_nothing(
    is_noted: bool, store: SqliteTransactions
) -> None:
    chain = connected(**NODE, eth_getBlockByNumber=block(1), eth_sendRawTransaction="0x")
    sender = await stored(chain, store)
    if not is_noted:
        store._db.execute("DELETE FROM chain")
    node = chain._provider
    assert isinstance(node, Node)
    node.answers["eth_getBlockByNumber"] = block(1, genesis=b"h")
    del node.answers["eth_sendRawTransaction"]  # asked for, it is an error

    for send in (sender.resend(), sender.send("more", Call(SOMEBODY, b""))):
        with pytest.raises(WrongConfiguration, match="on another chain of the same id: nothing"):
            await send

    assert await store.next_nonce(ALICE.account) == 1


@pytest.mark.parametrize("answer", [None, 7, {}, "zz", "0xzz", "0x", "0x12", "0x" + "ff" * 640])
@pytest.mark.parametrize("version", [{"jsonrpc": "2.0", "id": 0}, {}])
async def test_call__node_answers_what_no_contract_does__is_told_apart_from_a_fault_of_ours(
    answer: object, version: dict[str, object]
) -> None:
    class Rpc:
        url = "http://127.0.0.1:1"

        async def post(self, _request: bytes) -> Mapping[str, object]:
            return {"result": answer, **version}

        async def close(self) -> None:
            """Nothing is open."""

    async with ChainConnection(Rpc.url) as chain:
        chain._provider._rpc = Rpc()  # type: ignore[assignment]
        escrow = bind(chain, NOWHERE).escrow
        at = Block(1, Digest(bytes(32)), UnixSeconds(1))
        with pytest.raises(Unavailable):
            await escrow.channels([(JobId(bytes(32)), SOMEBODY)], at)
        if answer is not None:
            with pytest.raises(Unavailable):
                await chain.receipt(Digest(bytes(32)))
