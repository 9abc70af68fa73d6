"""Money in the escrow of a real chain, sent as people and services send it; events tell all."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contracts.chain.connection import Call
from contracts.chain.wrappers.escrow import JobEscrow
from contracts.governance.claims import PayTree
from contracts.governance.escrow import Budget, EscrowState, differences, held
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import keccak
from contracts.terms.errors import ContractRefused
from contracts.terms.escrow_messages import Grant, Limit
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, JobId
from contracts.terms.messages import JobHeader
from contracts.terms.moments import UnixSeconds
from contracts.terms.typed_data import PERMIT, Domain
from tests.support.anvil import Deployed, deployed_chain
from tests.support.history import make_wallet

POSTER, COORDINATOR = make_wallet("poster"), make_wallet("coordinator")
ANN, BOB, LIAR = sorted((make_wallet(who) for who in "abc"), key=lambda wallet: wallet.account)
OTHERS = [Address(keccak(bytes([n // 256, n % 256]))[12:]) for n in range(300)]
MARGIN, ANNOUNCE, EXECUTE, TAIL = 600, 10, 300, 1000
BUDGET = BaseUnits(10_000_000)
DETAILS = Digest(keccak(b"step, previous seal, root of messages"))
FAR = 2**40 - 1


@dataclass
class Money:
    """The escrow, and what its events told."""

    deployed: Deployed
    escrow: JobEscrow
    domain: Domain
    known: EscrowState = field(default_factory=lambda: EscrowState(ANNOUNCE))
    read_to: int = 0
    sent: int = 0

    async def send(self, *calls: Call, role: str = "relayer") -> int:
        """Send calls as one; returns the gas used."""
        self.sent += 1
        call = calls[0] if len(calls) == 1 else self.escrow.together(calls)
        receipt = await self.deployed.senders[role].send(f"{role}:{self.sent}", call)
        await self.check()
        return receipt.gas_used

    async def check(self) -> None:
        """The events alone tell what is stored, and the tokens are there."""
        head = await self.deployed.chain.head()
        for log in await self.escrow.events(self.read_to, head.number):
            self.known.apply(log.event, log.args, log.at)
        self.read_to = head.number + 1
        stored = await self.escrow.state(self.known, head)
        assert differences(self.known, stored) == []
        tokens = await self.deployed.contracts.token.balance(self.escrow.address, head)
        assert held(self.known) == tokens

    async def by(self) -> UnixSeconds:
        """A time until which a signature counts."""
        return UnixSeconds((await self.deployed.chain.head()).timestamp + MARGIN // 2)

    async def wait(self, seconds: int) -> None:
        """Time passes on the chain."""
        await self.deployed.chain.request("evm_increaseTime", [seconds])
        await self.deployed.chain.request("evm_mine", [])

    async def balance(self, account: Address) -> int:
        """Free money of an account."""
        found = await self.escrow.balances([account], await self.deployed.chain.head())
        return found[account][0]

    def seal(self, job: JobId, tree: PayTree) -> bytes:
        """The coordinator's signature of a seal."""
        typehash = keccak(b"Seal(bytes32 job,bytes32 payRoot,bytes32 details)")
        struct = Digest(keccak(typehash + job + tree.root + DETAILS))
        return COORDINATOR.sign_digest(self.domain.signing_digest(struct))


async def opened(it: Money) -> JobHeader:
    """A job whose poster has no gas: it signs a permit and a header, the relayer sends both."""
    token, head = it.deployed.contracts.token, await it.deployed.chain.head()
    by = await it.by()
    header = JobHeader(
        poster=POSTER.account, coordinator=COORDINATOR.account, spec_hash=DETAILS, budget=BUDGET,
        burst=BUDGET, rate=BUDGET, open_by=by, salt=7,
    )  # fmt: skip
    values = (POSTER.account, it.escrow.address, BUDGET, 0, by)
    permit = POSTER.sign_permit(PERMIT, values, await token.domain_separator(head))
    signature = POSTER.sign(header, it.domain).signature
    await it.send(
        it.escrow.permit(POSTER.account, BUDGET, by, permit), it.escrow.open(header, signature)
    )
    return header


async def granted(it: Money, header: JobHeader, limits: Sequence[tuple[Address, int]]) -> int:
    """Grant limits; returns the gas used."""
    listed = tuple(Limit(account=account, limit=BaseUnits(limit)) for account, limit in limits)
    grant = Grant(job=header.job(), limits=listed, by=await it.by())
    return await it.send(it.escrow.grant(header, COORDINATOR.sign(grant, it.domain)))


async def test_open__header_that_no_market_would_take__is_read_like_any_other(
    tmp_path: Path,
) -> None:
    async with deployed_chain(tmp_path) as deployed:
        it = Money(deployed, deployed.contracts.escrow, deployed.deployment.domain)
        values = (POSTER.account, bytes(20), ZERO_DIGEST, 0, 0, 0, FAR, 2**256 - 1)
        poster = it.deployed.senders["relayer"].account
        await it.send(it.escrow._encode("open", (poster, *values[1:]), b""))

        (job,) = it.known.budgets
        assert it.known.budgets[job] == Budget()
        with pytest.raises(ContractRefused, match="JobExists"):
            await it.send(it.escrow._encode("open", (poster, *values[1:]), b""))
