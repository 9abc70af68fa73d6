"""Events of a contract, of a node that bounds how many it answers with."""

from collections.abc import Sequence
from typing import Any

import pytest

from contracts.chain.connection import ChainConnection
from contracts.chain.wrappers.seals import Seals
from contracts.terms.errors import RpcFailed
from contracts.terms.ids import Address

TOPIC = "0x" + "77" * 32


@pytest.mark.parametrize("most", [3, 0])
async def test_events__strangers_make_more_than_a_node_answers_with__are_read_in_parts(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[int, int]]()

    async def request(method: str, params: Sequence[Any]) -> Any:
        first, last = (int(params[0][name], 16) for name in ("fromBlock", "toBlock"))
        asked.append((first, last))
        if last - first >= most:
            raise RpcFailed("eth_getLogs: query returned more than 10000 results")
        return [{"topics": [TOPIC]}] * (last - first + 1)

    async with ChainConnection("http://127.0.0.1:1") as chain:
        monkeypatch.setattr(chain, "request", request)
        seals = Seals(chain, Address(bytes(20)))
        if not most:  # those of one block are too many
            with pytest.raises(RpcFailed):
                await seals.events(1, 10)
            return
        assert await seals.events(1, 10) == []  # of none of its kinds

    assert [each for each in asked if each[1] - each[0] < 3] == [(1, 3), (4, 5), (6, 8), (9, 10)]
