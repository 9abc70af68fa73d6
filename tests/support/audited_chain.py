"""Made-up jobs on a real chain: opened, granted, bonded, anchored and paid by the contracts.

`ChainMarket` does with transactions what `audited.AuditedMarket` writes into dictionaries, and
answers `tallystick audit export` as a market's API would.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from contracts.chain.connection import Call
from contracts.chain.sender import Sender
from contracts.chain.transactions import SqliteTransactions
from contracts.governance.claims import PayTree
from contracts.keys.wallet import Wallet
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import NotFound
from contracts.terms.escrow_messages import Bond, Grant, Limit
from contracts.terms.history import Kept
from contracts.terms.ids import Digest, JobId
from contracts.terms.merkle import batch_root
from contracts.terms.moments import UnixSeconds
from market.bodies.anchors import BatchEntryView, BatchView
from market.bodies.market import NetworkView
from tests.support.answering import AnsweringMarket
from tests.support.anvil import DeployedChain, network_of
from tests.support.history import JobMaker, make_members, make_wallet
from verification.draws.anchor_chains import Entry

LIMIT, STAKE = BaseUnits(10_000_000), BaseUnits(2_000_000)
"""What each account is granted, and bonds, in base units."""


@dataclass
class ChainMarket(AnsweringMarket):
    """A deployment with jobs and batches."""

    deployed: DeployedChain
    jobs: list[JobMaker] = field(default_factory=list)
    batches: dict[Digest, tuple[Entry, ...]] = field(default_factory=dict)
    num_anchored: dict[int, int] = field(default_factory=dict)
    num_sent: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    # ------------------------------------------------------------------------- on the chain

    async def send(self, role: str, call: Call) -> int:
        """Run `call` as a role; answers with its block."""
        self.num_sent += 1
        return (await self.deployed.senders[role].send(f"test {self.num_sent}", call)).block

    async def open(self, maker: JobMaker) -> JobMaker:
        """Give tokens to the parties; the poster opens its job, members bond and are granted."""
        contracts, spec = self.deployed.contracts, maker.spec
        await self.send("faucet", contracts.token.faucet(spec.poster, spec.budget))
        await self.deployed.anvil.fund(self.deployed.chain, spec.poster)
        poster = self._sender(maker.poster)
        approve = contracts.token.approve(contracts.escrow.address, spec.budget)
        await poster.send(f"approve {spec.name}", approve)
        await poster.send(f"open {spec.name}", contracts.escrow.open(spec.header()))
        self.jobs.append(maker)
        for member in maker.members:
            await self._bond(maker, member.wallet)
        limits = tuple(Limit(account=each.wallet.account, limit=LIMIT) for each in maker.members)
        grant = Grant(job=spec.job(), limits=limits, by=await self._soon())
        signed = maker.coordinator.sign(grant, maker.domain)
        await self.send("relayer", contracts.escrow.grant(spec.header(), signed))
        return maker

    async def _bond(self, maker: JobMaker, wallet: Wallet) -> None:
        contracts = self.deployed.contracts
        await self.send(
            "faucet", contracts.token.faucet(self.deployed.senders["relayer"].account, STAKE)
        )
        await self.send("relayer", contracts.token.approve(contracts.escrow.address, STAKE))
        await self.send("relayer", contracts.escrow.deposit(wallet.account, STAKE))
        bond = Bond(
            job=maker.spec.job(), account=wallet.account, stake=STAKE, by=await self._soon()
        )
        await self.send("relayer", contracts.escrow.bond(wallet.sign(bond, maker.domain)))

    async def anchor(self) -> None:
        """Anchor all seals that no batch holds."""
        entries: list[Entry] = []
        for index, maker in enumerate(self.jobs):
            new = maker.seals[self.num_anchored.get(index, 0) :]
            self.num_anchored[index] = len(maker.seals)
            entries += [(each.seal.job, int(each.seal.step), each.seal.digest()) for each in new]
        root = batch_root(batch := tuple(sorted(entries)))
        self.batches[root] = batch
        await self.send("anchorer", self.deployed.contracts.seals.anchor(root))

    async def claim_all(self, maker: JobMaker) -> int:
        """Pay all accounts by the newest seal; answers with the block."""
        seal, pay = maker.seals[-1].seal, maker.seals[-1].pay
        signature, block = maker.coordinator.sign(seal, maker.domain).signature, 0
        for subtree in PayTree(pay).subtrees():
            call = self.deployed.contracts.escrow.claim_all(
                maker.spec.header(), seal.details(), signature, subtree
            )
            block = await self.send("relayer", call)
        return block

    async def _soon(self) -> UnixSeconds:
        return UnixSeconds((await self.deployed.chain.head()).timestamp + 30)

    def _sender(self, wallet: Wallet) -> Sender:
        store = SqliteTransactions(":memory:")
        return Sender(self.deployed.chain, wallet, store, self.deployed.deployment.chain_id)

    # --------------------------------------------------------------------------- as the API

    async def get_network(self) -> NetworkView:
        """See `export.Market`."""
        return await network_of(self.deployed)

    async def messages(self, job: JobId, *, after: int = 0) -> AsyncIterator[tuple[int, Kept]]:
        """See `export.Market`."""
        maker = next((each for each in self.jobs if each.spec.job() == job), None)
        if maker is None:
            raise NotFound("no such job")
        for number, item in enumerate(maker.items):
            yield number, item

    async def get_batch(self, root: Digest) -> BatchView:
        """See `export.Market`."""
        entries = tuple(
            BatchEntryView(job=job, step=step, seal=seal) for job, step, seal in self.batches[root]
        )
        return BatchView(root=root, entries=entries, transaction=None, block=None, beacon=None)


def job_on(deployed: DeployedChain, name: str, block: int) -> JobMaker:
    """A job of a deployment, opened after a block."""
    return JobMaker(
        name=name,
        domain=deployed.deployment.domain,
        anchorer=deployed.senders["anchorer"].account,
        opening_block=block,
        poster=make_wallet(f"poster of {name}"),
        members=list(make_members()),
    )
