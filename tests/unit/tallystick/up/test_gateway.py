"""What the gateway lets through, with a chain that only counts."""

import json
from typing import Any

import pytest

from contracts.terms.errors import ChainUnreachable
from tallystick.up.gateway import ALLOWED, MAX_BATCH, MAX_DEPTH, MAX_PARAMETERS, Gateway, refusal


class CountingChain:
    """Answers with the method's name; keeps what reached it."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.is_down = False

    async def __call__(self, requests: Any) -> Any:
        """See `gateway.Upstream`."""
        if self.is_down:
            raise ChainUnreachable("down")
        self.asked += requests
        answers = [{"jsonrpc": "2.0", "id": r["id"], "result": r["method"]} for r in requests]
        return answers[::-1]  # a batch may be answered in any order


def call(method: str = "eth_chainId", number: object = 1, **fields: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": [], **fields}


async def test_answer__equal_ids_and_one_forbidden__keeps_order_and_ids() -> None:
    chain = CountingChain()
    batch = [call("eth_call", 5), call("anvil_reset", 5), call("eth_gasPrice", "x")]

    answer = await Gateway(chain).answer(json.dumps(batch).encode())

    assert [(a["id"], a.get("result")) for a in answer.body] == [
        (5, "eth_call"),
        (5, None),
        ("x", "eth_gasPrice"),
    ]
    assert [request["method"] for request in chain.asked] == ["eth_call", "eth_gasPrice"]


async def test_answer__chain_is_down__is_503_and_frees_its_place() -> None:
    chain = CountingChain()
    chain.is_down = True
    gateway = Gateway(chain, at_once=1)
    body = json.dumps(call()).encode()

    statuses = [(await gateway.answer(body)).status for _ in range(3)]
    chain.is_down = False

    assert statuses == [503, 503, 503]
    assert (await gateway.answer(body)).status == 200


async def test_answer__no_place_left__is_overloaded() -> None:
    answer = await Gateway(CountingChain(), at_once=0).answer(json.dumps(call()).encode())

    assert answer.status == 503
    assert answer.body["error"]["data"] == {"code": "overloaded"}


@pytest.mark.parametrize(
    ("body", "status", "number"),
    [
        (b"", 400, -32700),
        (b"\xff\xfe", 400, -32700),
        (b"[" * 100_000, 400, -32700),
        (b'{"a":NaN}', 400, -32700),
        (b'{"a":1e999}', 400, -32700),
        (b'"\\ud800"', 400, -32700),
        (b"[]", 400, -32700),
        (b"[" * (MAX_DEPTH + 1) + b"1" + b"]" * (MAX_DEPTH + 1), 400, -32700),
        (json.dumps([call()] * (MAX_BATCH + 1)).encode(), 413, -32005),
        (b"7", 400, -32600),
    ],
)
async def test_answer__malformed_or_too_long__is_a_typed_error_and_goes_nowhere(
    body: bytes, status: int, number: int
) -> None:
    chain = CountingChain()

    answer = await Gateway(chain).answer(body)

    assert answer.status == status
    assert answer.body["error"]["code"] == number
    assert chain.asked == []


async def test_answer__longest_batch__passes() -> None:
    chain = CountingChain()

    answer = await Gateway(chain).answer(json.dumps([call()] * MAX_BATCH).encode())

    assert answer.status == 200 and len(chain.asked) == MAX_BATCH


def test_allowed__holds_no_method_that_rules_the_node() -> None:
    prefixes = {method.partition("_")[0] for method in ALLOWED}

    assert prefixes == {"eth", "net", "web3"}
    assert ALLOWED.isdisjoint({"eth_accounts", "eth_sendTransaction", "eth_sign"})


@pytest.mark.parametrize(
    ("request_", "number"),
    [
        (None, -32600),
        (call(jsonrpc=2), -32600),
        (call(number=None), -32600),
        (call(number=2**63), -32600),
        (call(number="x" * 129), -32600),
        (call("x" * 65), -32600),
        (call("evm_mine"), -32601),
        (call(params=[0] * (MAX_PARAMETERS + 1)), -32602),
    ],
)
def test_refusal__wrong_request__has_its_number(request_: Any, number: int) -> None:
    refused = refusal(request_)

    assert refused is not None and refused["error"]["code"] == number
