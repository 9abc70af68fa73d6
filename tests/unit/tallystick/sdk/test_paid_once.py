"""What was signed for a top-up may still be run, so its name is kept until it was."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from contracts.chain.connection import Call, ChainConnection
from contracts.chain.sender import Sender
from contracts.chain.transactions import SqliteTransactions
from contracts.terms.errors import WrongConfiguration
from contracts.terms.ids import Address, Digest, JobId
from tallystick.sdk import on_chain
from tests.support.history import make_wallet

ANN = make_wallet("ann")


class Balancer:
    """A node that takes a transaction, and then answers as one of another chain, for once."""

    def __init__(self) -> None:
        self.taken: list[object] = []
        self.is_wrong = False

    async def genesis(self) -> Digest:
        """Hash of the first block."""
        return Digest(bytes([self.is_wrong]) * 32)

    async def nonce(self, _account: Address) -> int:
        """What the chain ran."""
        return 0

    async def base_fee(self) -> tuple[int, int]:
        """Block and fee."""
        return 1, 10**9

    async def balance(self, _account: Address) -> int:
        """Wei."""
        return 10**20

    async def receipt(self, _transaction: Digest) -> None:
        """Nothing was run."""

    async def request(self, method: str, parameters: list[Any]) -> str:
        """Estimate, or take a transaction."""
        if method == "eth_estimateGas":
            return "0x5208"
        self.taken.append(parameters[0])
        self.is_wrong = True
        return "0x"


async def test_top_up__node_is_of_another_chain_after_it_was_sent__is_not_signed_again(
    tmp_path: Path,
) -> None:
    call = Call(Address(b"e" * 20), b"pay")
    node, store = Balancer(), SqliteTransactions(":memory:")
    own = SimpleNamespace(
        sender=Sender(cast(ChainConnection, node), ANN, store, 1, patience_seconds=5),
        store=store,
        fund=AsyncMock(return_value=5),
        permitted=AsyncMock(return_value=call),
        contracts=SimpleNamespace(
            escrow=SimpleNamespace(top_up=lambda *_: call),
            chain=SimpleNamespace(head=AsyncMock()),
        ),
    )
    path, pending = tmp_path / "topup-job.json", on_chain.Pending(name="first", amount=5)
    path.write_text(pending.model_dump_json())

    with pytest.raises(WrongConfiguration):
        await on_chain._pay(cast(Any, None), cast(Any, own), JobId(b"j" * 32), pending, path)

    assert len(node.taken) == 1
    assert on_chain.Pending.model_validate_json(path.read_bytes()) == pending
    store.close()
