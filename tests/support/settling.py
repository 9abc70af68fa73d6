"""Made-up jobs on a real chain: opened, anchored, settled, claimed and refunded by the contracts.

`ChainMarket` does with transactions what `audited.AuditedMarket` writes into dictionaries, and
gathers an audit file from the node as `tallystick audit export` does.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from contracts.chain.connection import Call
from contracts.chain.sender import Sender
from contracts.chain.transactions import SqliteTransactions
from contracts.chain.wrappers.settlement import Statement as ChainStatement
from contracts.governance.settlement import NOTHING_SETTLED, EpochSettlement, settle
from contracts.keys.wallet import Wallet
from contracts.terms.errors import ContractRefused
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, EpochNumber
from contracts.terms.merkle import batch_root
from contracts.terms.signatures import Signed
from tests.support.anvil import DeployedChain
from tests.support.audited import newest_statements
from tests.support.fake_chain import SHIPS
from tests.support.history import JobMaker
from tests.support.patience import patience
from verification.audit.audit_file import AuditFile
from verification.audit.collecting import read_code, read_header, read_lane, take_snapshot
from verification.audit.snapshots import SHIPPED_AS, Snapshot, claimants, wanted_places
from verification.draws.lanes import Entry, ShownBatch, show_batch

WEI = 10**20


@dataclass
class ChainMarket:
    """A deployment with jobs, batches and epochs."""

    deployed: DeployedChain
    jobs: list[JobMaker] = field(default_factory=list)
    batches: dict[Digest, tuple[Entry, ...]] = field(default_factory=dict)
    settlements: list[EpochSettlement] = field(default_factory=lambda: [NOTHING_SETTLED])
    num_anchored: dict[int, int] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    num_sent: int = 0

    @property
    def addresses(self) -> dict[str, Address]:
        """Of the contracts that audits read."""
        return {name: getattr(self.deployed.deployment, name) for name in SHIPPED_AS}

    async def send(self, role: str, call: Call) -> int:
        """Run `call` as a role; answers with its block."""
        self.num_sent += 1
        return (await self.deployed.senders[role].send(f"test {self.num_sent}", call)).block

    async def open(self, maker: JobMaker) -> JobMaker:
        """Give the poster tokens; he puts the budget into escrow."""
        contracts, spec = self.deployed.contracts, maker.spec
        await self.send("faucet", contracts.token.faucet(spec.poster, spec.budget))
        await self.deployed.anvil.fund(self.deployed.chain, spec.poster)
        poster = self._sender(maker.poster)
        escrow = self.deployed.deployment.escrow
        name = f"{maker.name} {len(self.jobs)}"
        await poster.send(f"approve {name}", contracts.token.approve(escrow, spec.budget))
        await poster.send(f"open {name}", contracts.escrow.open(spec, spec.budget))
        self.jobs.append(maker)
        return maker

    async def anchor(self) -> None:
        """Anchor all seals that no batch holds."""
        entries: list[Entry] = []
        for index, maker in enumerate(self.jobs):
            new = maker.seals[self.num_anchored.get(index, 0) :]
            self.num_anchored[index] = len(maker.seals)
            entries += [(each.seal.job, int(each.seal.step), each.seal.digest()) for each in new]
        await self.anchor_entries(tuple(sorted(entries)))

    async def anchor_entries(self, entries: tuple[Entry, ...]) -> None:
        """Anchor a batch of `entries`."""
        root = batch_root(entries)
        self.batches[root] = entries
        await self.send("anchorer", self.deployed.contracts.seals.anchor(root))

    async def record(self) -> None:
        """Record the newest batch's coin."""
        anchorer = self.deployed.senders["anchorer"].account
        await self.send("relayer", self.deployed.contracts.seals.record(anchorer))

    async def settle(
        self, *, change: Callable[[EpochSettlement], EpochSettlement] = lambda settled: settled
    ) -> EpochSettlement:
        """Propose the next epoch from the newest seals, wait for its window, make it final.

        `change` is what a dishonest proposer does to the payouts.
        """
        previous, contracts = self.settlements[-1], self.deployed.contracts
        statements = newest_statements(self.jobs)
        settled = change(settle(EpochNumber(previous.epoch + 1), previous, statements))
        named = [self._statement(debit.job) for debit in settled.debits]
        await self.send(
            "proposer", contracts.settlement.propose(settled.epoch, settled.root, named)
        )
        await self.when_due("relayer", contracts.settlement.finalize())
        self.settlements.append(settled)
        return settled

    async def claim(self, account: Address) -> None:
        """Pay an account what the final root grants."""
        paid, proof = self.settlements[-1].claim_proof(account)
        call = self.deployed.contracts.settlement.claim(
            account, paid.cumulative, paid.jobs_root.hash, proof
        )
        await self.send("relayer", call)

    async def close(self, maker: JobMaker) -> None:
        """Close a job by its newest seal and refund the rest."""
        escrow, seal = self.deployed.contracts.escrow, maker.seals[-1].seal
        signed = maker.coordinator.sign(seal, maker.domain)
        pay = () if seal.last else maker.seals[-1].pay
        await self.send("relayer", escrow.request_close(maker.spec, signed, pay))
        await self.when_due("relayer", escrow.refund(maker.spec.job()))

    async def when_due(self, role: str, call: Call) -> None:
        """Run `call` once the chain's clock allows it; blocks are mined as wall-clock passes."""
        async with asyncio.timeout(patience(30)):
            while True:
                try:
                    await self.send(role, call)
                    return
                except ContractRefused as refusal:
                    too_early = ("EpochPending", "RefundNotDue", "NotClosed", "NotYet")
                    if not any(name in str(refusal) for name in too_early):
                        raise
                await asyncio.sleep(0.2)
                await self.deployed.chain.request("anvil_mine", [])

    async def snapshot(self, maker: JobMaker) -> Snapshot:
        """What the head proves about `maker`'s job."""
        head = await self.deployed.chain.head()
        last = self.snapshots[-1].header.number if self.snapshots else None
        before = None if last is None else await read_header(self.deployed.chain, last)
        snapshot = await take_snapshot(
            self.deployed.chain,
            self._find,
            block=head.number,
            addresses=self.addresses,
            places=wanted_places(SHIPS, maker.spec.job(), maker.anchorer, claimants(maker.items)),
            before=before,
        )
        self.snapshots.append(snapshot)
        return snapshot

    async def file(self, maker: JobMaker) -> AuditFile:
        """The audit file of `maker`'s job, up to the newest snapshot."""
        chain, block = self.deployed.chain, self.snapshots[-1].header.number
        lane = await read_lane(
            chain, self.addresses["seals"], maker.anchorer, first_block=0, last_block=block
        )
        return AuditFile(
            maker.domain,
            tuple(maker.items),
            tuple(
                ShownBatch(
                    batch,
                    ()
                    if batch.block <= maker.opening.opening_block
                    else show_batch(self.batches[batch.root]),
                )
                for batch in lane
            ),
            await read_code(chain, self.addresses, block),
            tuple(self.snapshots),
        )

    async def _find(self, root: Digest) -> EpochSettlement:
        found: Sequence[EpochSettlement] = [
            each for each in self.settlements if each.root.hash == root or root == ZERO_DIGEST
        ]
        return found[0]

    def _statement(self, job: bytes) -> ChainStatement:
        maker = next(each for each in self.jobs if each.spec.job() == job)
        seal = maker.coordinator.sign(maker.seals[-1].seal, maker.domain)
        return ChainStatement(maker.spec, Signed(seal.message, seal.signature))

    def _sender(self, wallet: Wallet) -> Sender:
        store = SqliteTransactions(":memory:")
        return Sender(self.deployed.chain, wallet, store, self.deployed.deployment.chain_id)
