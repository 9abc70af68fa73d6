"""Fees rise while transactions wait: each is priced again, once per intention, on a real anvil."""

import asyncio
from pathlib import Path

import pytest

from contracts.chain.fees import GWEI
from contracts.chain.sender import Sender
from contracts.chain.transactions import SqliteTransactions
from contracts.terms.errors import DeadlineExceeded, Unavailable
from contracts.terms.ids import Digest
from market.adapters.chain import Confirming, RpcChain
from tests.support.anvil import DeployedChain, deployed_chain
from tests.support.fakes.market_memory import NoLocks
from tests.support.history import make_wallet

LOW, HIGH = 100 * GWEI, 1000 * GWEI


class Killed(Exception):
    """As if the process had ended there."""


class Account:
    """One account's transactions over restarts of the process that sends them."""

    def __init__(self, on: DeployedChain, name: str) -> None:
        self.on, self.wallet = on, make_wallet(name)
        self.store = SqliteTransactions(":memory:")
        self.dies_at: str | None = None

    def sender(self, max_fee: int = HIGH, *, patience: float = 30.0) -> Sender:
        """Of a process that has just started."""
        return Sender(
            self.on.chain, self.wallet, self.store, self.on.deployment.chain_id, self._watch,
            max_fee=max_fee, patience_seconds=patience,
        )  # fmt: skip

    async def anchor(self, sender: Sender, number: int) -> None:
        """Anchor the root of this number, once."""
        root = Digest(bytes([number]) * 32)
        await sender.send(f"anchor:{number}", self.on.contracts.seals.anchor(root))

    async def attempts(self, nonce: int) -> int:
        """How many transactions of a nonce were signed."""
        return len(await self.store.attempts(self.wallet.account, nonce))

    async def anchored(self) -> list[int]:
        """Numbers of this account's roots on chain."""
        head = await self.on.chain.head()
        logs = await self.on.contracts.seals.events(0, head.number)
        mine = self.wallet.account
        return [
            each.args["root"][0]
            for each in logs
            if each.event == "Anchored" and each.args["caller"] == mine
        ]

    def _watch(self, phase: str, key: str) -> None:
        if phase == self.dies_at:
            raise Killed(key)


async def fees_are(on: DeployedChain, gwei: int) -> None:
    """The next block has this base fee; empty blocks after it lower it by an eighth."""
    await on.chain.request("anvil_setNextBlockBaseFeePerGas", [hex(gwei * GWEI)])
    await on.chain.request("evm_mine", [])


async def test_fees_rise__in_the_pool_in_the_store_and_above_the_cap__each_happens_once(
    tmp_path: Path,
) -> None:
    async with deployed_chain(tmp_path) as on:
        ann, bob, cap = (Account(on, name) for name in ("ann", "bob", "cap"))
        for each in (ann, bob, cap):
            await on.anvil.fund(on.chain, each.wallet.account)

        # Ann's waits in the pool, bob's was stored by a process that was killed.
        await on.chain.request("evm_setAutomine", [False])
        sending = asyncio.create_task(ann.anchor(ann.sender(), 1))
        while (await on.chain.request("txpool_status", []))["pending"] == "0x0":
            await asyncio.sleep(0.01)
        for each, phase in ((bob, "stored"), (cap, "stored")):
            each.dies_at = phase
            with pytest.raises(Killed):
                await each.anchor(each.sender(), 1)
        await fees_are(on, 500)
        await on.chain.request("evm_setAutomine", [True])

        # The process that prices bob's again is killed before it sends that.
        with pytest.raises(Killed):
            await bob.anchor(bob.sender(), 1)
        bob.dies_at = cap.dies_at = None
        await bob.anchor(bob.sender(), 1)
        await bob.anchor(bob.sender(), 1)
        await sending
        assert (await ann.anchored(), await bob.anchored()) == ([1], [1])
        assert await ann.attempts(0) == 2 and await bob.attempts(0) == 2

        await check_waits_for_nobody(on, cap)


async def check_waits_for_nobody(on: DeployedChain, cap: Account) -> None:
    """What is above its cap waits, holds up no other role, and happens when fees fall."""
    dora = Account(on, "dora")
    await on.anvil.fund(on.chain, dora.wallet.account)
    stuck = cap.sender(LOW, patience=0.2)
    with pytest.raises(DeadlineExceeded):
        await cap.anchor(stuck, 1)
    with pytest.raises(Unavailable, match=r"at most 100000000000 is offered"):
        await cap.anchor(stuck, 2)
    rpc = RpcChain(
        on.contracts, anchorer=cap.wallet.account, rpc_url=on.anvil.url,
        confirming=Confirming(1, 0.0), locks=NoLocks(),
        senders={"anchorer": stuck, "relayer": dora.sender()},
    )  # fmt: skip
    assert await rpc.resend(await rpc.head()) == 1  # and `sync_chain` goes on
    await dora.anchor(dora.sender(), 1)
    assert (await cap.anchored(), await dora.anchored()) == ([], [1])
    assert await cap.attempts(0) == 1 and await cap.attempts(1) == 0

    await fees_are(on, 10)
    await cap.anchor(stuck, 2)
    await cap.anchor(stuck, 1)
    assert await cap.anchored() == [1, 2]
