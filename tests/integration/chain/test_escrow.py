"""A job's money over its whole life on a real chain, sent as people and services send it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contracts.chain.connection import Call
from contracts.chain.deploy import creation_code
from contracts.chain.wrappers.escrow import JobEscrow
from contracts.governance.claims import SUBTREE, PayTree
from contracts.governance.escrow import BURN, Budget, EscrowState, differences, held
from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import keccak
from contracts.terms.errors import ContractRefused
from contracts.terms.escrow_messages import Bond, Close, End, Grant, Limit, Quit, Withdraw
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, JobId
from contracts.terms.messages import JobHeader
from contracts.terms.moments import UnixSeconds
from contracts.terms.typed_data import PERMIT, Domain
from tests.support.anvil import Deployed, deployed_chain
from tests.support.history import make_wallet

POSTER, COORDINATOR, CANCELLER = (make_wallet(who) for who in ("poster", "coordinator", "c"))
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


@asynccontextmanager
async def money(folder: Path) -> AsyncIterator[Money]:
    """An escrow on a new chain; the poster has its budget in tokens."""
    async with deployed_chain(folder) as deployed:
        token, senders = deployed.contracts.token, deployed.senders
        roles = (token.address, senders["slasher"].account, CANCELLER.account)
        creation = creation_code("JobEscrow", (*roles, (MARGIN, ANNOUNCE, EXECUTE, TAIL)))
        receipt = await senders["relayer"].deploy("escrow", creation)
        found = await deployed.chain.receipt(receipt.transaction)
        assert found is not None and found["contractAddress"]
        escrow = JobEscrow(deployed.chain, Address(bytes.fromhex(found["contractAddress"][2:])))
        domain = Domain(deployed.deployment.chain_id, escrow.address)
        for name, account in (("a", POSTER.account), ("b", senders["relayer"].account)):
            await senders["faucet"].send(name, token.faucet(account, BUDGET))
        await senders["relayer"].send("approve", token.approve(escrow.address, BUDGET))
        yield Money(deployed, escrow, domain)


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


@pytest.mark.timeout(300)
async def test_job__from_opening_to_the_last_token__events_tell_all_and_everybody_has_their_due(
    tmp_path: Path,
) -> None:
    async with money(tmp_path) as it:
        header = await opened(it)
        job, escrow = header.job(), it.escrow
        deposits = [escrow.deposit(each.account, BaseUnits(1000)) for each in (ANN, BOB, LIAR)]
        await it.send(*deposits)
        by = await it.by()
        bonds = [
            wallet.sign(
                Bond(job=job, account=wallet.account, stake=BaseUnits(stake), by=by), it.domain
            )
            for wallet, stake in ((ANN, 500), (BOB, 1000), (LIAR, 700), (ANN, 1001))
        ]
        await it.send(escrow.bond_many(job, bonds))  # the last one is more than she has: skipped
        everybody = [(each.account, 9000) for each in (ANN, BOB, LIAR)]
        everybody += [(account, 1000) for account in OTHERS]
        await granted(it, header, everybody[:256])
        await granted(it, header, everybody[256:])

        pay = [(ANN.account, 500, 300), (BOB.account, 9999, 9500), (LIAR.account, 800, 0)]
        pay += [(account, 900, 600) for account in OTHERS]
        leaves = [PayLeaf(who, BaseUnits(earned), BaseUnits(vested)) for who, earned, vested in pay]
        tree = PayTree(tuple(sorted(leaves, key=lambda leaf: leaf.account)))
        seal = it.seal(job, tree)
        await it.send(escrow.claim(header, DETAILS, seal, *tree.prove(ANN.account)))
        assert await it.balance(ANN.account) == 500 + 300
        subtrees = tree.subtrees()
        assert [len(each.leaves) for each in subtrees] == [SUBTREE, 303 - SUBTREE]
        await it.send(*(escrow.claim_all(header, DETAILS, seal, each) for each in subtrees))
        assert await it.balance(BOB.account) == 9000  # its limit, of the 9500 that vested
        assert {await it.balance(account) for account in OTHERS[::30]} == {600}

        await it.send(escrow.announce(job, LIAR.account, BaseUnits(700), DETAILS), role="slasher")
        await it.wait(ANNOUNCE)
        await it.send(escrow.burn(job, LIAR.account), role="slasher")
        assert await it.balance(BURN) == 700
        quits = Quit(job=job, account=ANN.account, keep=BaseUnits(0), by=await it.by())
        await it.send(escrow.quit(ANN.sign(quits, it.domain)))
        end = End(job=job, accounts=(BOB.account,), by=await it.by())
        await it.send(escrow.end(header, COORDINATOR.sign(end, it.domain)))
        close = Close(job=job, by=await it.by())
        await it.send(escrow.close(header, POSTER.sign(close, it.domain)))

        await it.wait(TAIL)
        accounts = [account for account, _ in everybody]
        await it.send(escrow.release(job, accounts), escrow.reclaim(header, BUDGET))
        claimed = 300 + 9000 + 300 * 600
        kept = 500 + 9000 + 800 + 300 * 900  # what was shown as earned never goes back
        budget = it.known.budgets[job]
        assert (budget.committed, budget.free) == (kept, 0)
        assert await it.balance(POSTER.account) == BUDGET - kept
        assert await it.balance(ANN.account) == 1000 + 300
        assert held(it.known) == BUDGET + 3000 and kept > claimed

        takes = Withdraw(
            account=ANN.account,
            amount=BaseUnits(1300),
            fee=BaseUnits(50),
            nonce=0,
            by=await it.by(),
        )
        await it.send(escrow.withdraw_for(ANN.sign(takes, it.domain)))
        tokens = it.deployed.contracts.token
        assert await tokens.balance(ANN.account, await it.deployed.chain.head()) == 1250


async def test_open__header_that_no_market_would_take__is_read_like_any_other(
    tmp_path: Path,
) -> None:
    async with money(tmp_path) as it:
        values = (POSTER.account, bytes(20), ZERO_DIGEST, 0, 0, 0, FAR, 2**256 - 1)
        poster = it.deployed.senders["relayer"].account
        await it.send(it.escrow._encode("open", (poster, *values[1:]), b""))

        (job,) = it.known.budgets
        assert it.known.budgets[job] == Budget()
        with pytest.raises(ContractRefused, match="JobExists"):
            await it.send(it.escrow._encode("open", (poster, *values[1:]), b""))


async def test_grant__limits_that_do_not_rise__are_skipped(tmp_path: Path) -> None:
    async with money(tmp_path) as it:
        header = await opened(it)
        await granted(it, header, [(ANN.account, 100), (BOB.account, 100)])
        await granted(it, header, [(BOB.account, 100), (ANN.account, 150)])

        assert it.known.budgets[header.job()].committed == 250
