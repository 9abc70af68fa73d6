"""What was signed for a top-up may still be run, so its name is kept until it was."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> None:
        """There are tokens and an approval."""

    monkeypatch.setattr(on_chain._Payer, "_fund", nothing)
    monkeypatch.setattr(on_chain._Payer, "_approve", nothing)
    node, store = Balancer(), SqliteTransactions(":memory:")
    sender = Sender(cast(ChainConnection, node), ANN, store, 1, patience_seconds=5)
    escrow = SimpleNamespace(top_up=lambda _job, _amount: Call(Address(b"e" * 20), b"pay"))
    contracts = cast(Any, SimpleNamespace(escrow=escrow))
    payer = on_chain._Payer(cast(Any, None), cast(Any, None), contracts, sender, store)
    path = tmp_path / "topup-job.json"
    on_chain._save(path, on_chain.Pending(name="first", amount=5))

    with pytest.raises(WrongConfiguration):
        await payer.pay(JobId(b"j" * 32), on_chain.Pending(name="first", amount=5), path)

    assert len(node.taken) == 1
    pending = on_chain._load(path)
    assert pending is not None and pending.name == "first"
    store.close()
