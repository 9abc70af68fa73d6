"""A chain on which one account has what a test says, behind the names of `OnChain`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from contracts.chain.blocks import Block
from contracts.chain.deployment import NAMES, Deployment
from contracts.governance.escrow import Budget, Channel, EscrowTimes
from contracts.keys.wallet import Wallet
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import DeadlineExceeded
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.moments import UnixSeconds
from tallystick.sdk.on_chain import OnChain
from tests.support.history import make_wallet

NOWHERE = Deployment(chain_id=1, block=0, **dict.fromkeys(NAMES, Address(bytes(20))))
TIMES = EscrowTimes(60, 10, 20, 300)
PLENTY = 10**24


@dataclass
class OwnChain:
    """What it holds; a transaction is a key, and an amount if it deposits."""

    wallet: Wallet = field(default_factory=lambda: make_wallet("ann"))
    now: int = 1000
    free: int = 0
    budget: Budget = field(default_factory=Budget)
    channel: Channel = field(default_factory=Channel)
    others: dict[Address, Channel] = field(default_factory=dict)
    asked_for: list[int] = field(default_factory=list)  # confirmations of the heads that were read
    sent: list[str] = field(default_factory=list)
    mined: int = 0  # transactions
    pool: list[tuple[str, Any]] = field(default_factory=list)
    mines_at_once: bool = True
    mines_after_a_read: bool = False
    error: Exception | None = None  # of reads

    def on_chain(self) -> OnChain:
        """Its contracts and sender."""
        escrow = SimpleNamespace(
            address=Address(bytes(20)), channels=self.channels, budgets=self.budgets,
            balances=self.balances, deposit=lambda account, amount: amount,
            claim=lambda *said: said, claim_all=lambda *said: said, quit=lambda signed: signed,
            release=lambda *said: said,
        )  # fmt: skip
        chain = SimpleNamespace(head=self.head, next_time=self.next_time, nonce=self.nonce)
        contracts = SimpleNamespace(chain=chain, escrow=escrow, deployment=NOWHERE)
        sender = SimpleNamespace(account=self.wallet.account, send=self.send, resend=self.resend)
        own = SimpleNamespace(
            contracts=contracts, sender=sender, wallet=self.wallet, fund=self.fund,
            permitted=self.permitted,
        )  # fmt: skip
        return cast(OnChain, own)

    async def head(self, *, confirmations: int = 0) -> Block:
        """The newest block."""
        if self.error is not None:
            raise self.error
        self.asked_for.append(confirmations)
        return Block(1, Digest(bytes(32)), UnixSeconds(self.now))

    async def next_time(self) -> UnixSeconds:
        """Now."""
        return UnixSeconds(self.now)

    async def nonce(self, account: Address) -> int:
        """Of the next transaction."""
        return self.mined

    async def fund(self, client: object, tokens: int, key: str) -> int:
        """As much as anybody wants."""
        return PLENTY

    async def permitted(self, amount: int, call: object, at: Block) -> object:
        """The call."""
        return call

    async def balances(
        self, accounts: Sequence[Address], at: Block
    ) -> dict[Address, tuple[BaseUnits, int]]:
        """What is free."""
        found = {account: (BaseUnits(self.free), 0) for account in accounts}
        if self.mines_after_a_read:
            self.mine()
        return found

    async def budgets(self, jobs: Sequence[JobId], at: Block) -> dict[JobId, Budget]:
        """The same for all."""
        return dict.fromkeys(jobs, self.budget)

    async def channels(
        self, places: Sequence[tuple[JobId, Address]], at: Block
    ) -> dict[tuple[JobId, Address], Channel]:
        """Ours, and of `others`."""
        return {place: self.others.get(place[1], self.channel) for place in places}

    def mine(self) -> None:
        """Run all that waits."""
        for key, call in self.pool:
            self.mined += 1
            self.free += call if key.startswith("deposit") else 0
        self.pool.clear()

    async def send(self, key: str, call: Any) -> Any:
        """As `Sender.send`: the same key is the same transaction."""
        if key not in self.sent:
            self.sent.append(key)
            self.pool.append((key, call))
        if self.mines_at_once:
            self.mine()
        if self.pool:
            raise DeadlineExceeded(f"{key}: is not mined")
        return SimpleNamespace(transaction=Digest(b"t" * 32))

    async def resend(self) -> int:
        """As `Sender.resend`."""
        return len(self.pool)
