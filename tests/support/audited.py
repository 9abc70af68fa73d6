"""A made-up market with two jobs, three members and two settled epochs, and the audit file of it.

`settled()` is the plain case; the methods of `AuditedMarket` are the steps, for tests that want
another one. All contracts exist as shipped code with storage on a `FakeChain`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from contracts.chain.proofs import HISTORY_CONTRACT
from contracts.governance.lane import AnchoredBatch, anchored, recorded
from contracts.governance.settlement import (
    NOTHING_SETTLED,
    EpochSettlement,
    SealStatement,
    Statement,
    due_shares,
    settle,
)
from contracts.terms import merkle
from contracts.terms.digest import keccak
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, EpochNumber, StepNumber
from contracts.terms.merkle import batch_leaf, plain_node
from tests.support.fake_chain import SHIPS, FakeChain, contract_code
from tests.support.history import DOMAIN, START, JobMaker, make_members, make_wallet
from verification.audit.audit_file import AuditFile
from verification.audit.snapshots import (
    SHIPPED_AS,
    BlockProof,
    ContractProof,
    Snapshot,
    claimants,
    history_slot,
    wanted_places,
)
from verification.draws.lanes import Entry, ShownBatch, show_batch

TOKEN = Address(keccak(b"token")[:20])


EARLY_BLOCK = 2
"""Block of the batch that `settle_two_epochs` anchors before its job opens."""


def newest_statements(jobs: Iterable[JobMaker]) -> list[SealStatement]:
    """The newest seal of every job that has one."""
    return [
        SealStatement(
            each.spec.job(),
            each.seals[-1].seal.digest(),
            StepNumber(each.seals[-1].seal.step),
            each.seals[-1].pay,
            each.spec.epoch_cap,
        )
        for each in jobs
        if each.seals
    ]


@dataclass
class AuditedMarket:
    """A chain with our contracts, jobs with budgets, a lane of batches, epochs and snapshots."""

    name: str = "market"
    jobs: list[JobMaker] = field(default_factory=list)
    lane: list[tuple[AnchoredBatch, tuple[Entry, ...]]] = field(default_factory=list)
    settlements: list[EpochSettlement] = field(default_factory=lambda: [NOTHING_SETTLED])
    num_anchored: dict[int, int] = field(default_factory=dict)
    claimed: dict[Address, int] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.domain = DOMAIN
        self.chain = FakeChain()
        self.addresses = {
            name: Address(keccak(f"{self.name} {name}".encode())[:20]) for name in SHIPPED_AS
        }
        self.addresses |= {"settlement": self.domain.settlement, "token": TOKEN}
        self.code = contract_code(self.domain, self.addresses)
        for name, code in self.code.items():
            self.chain.deploy(self.addresses[name], code)
        self.anchorer = make_wallet("anchorer").account
        self.chain.mine(START)
        self.chain.mine(START + 1)

    def open(self, maker: JobMaker) -> JobMaker:
        """Put a job's budget into escrow."""
        self.jobs.append(maker)
        place = SHIPS["escrow"].place("_jobs", maker.spec.job())
        self.write("escrow", place, deposited=maker.spec.budget)
        return maker

    def anchor(self) -> Digest:
        """Anchor all seals that no batch holds, and record the coin in the next block."""
        entries = []
        for index, maker in enumerate(self.jobs):
            new = maker.seals[self.num_anchored.get(index, 0) :]
            self.num_anchored[index] = len(maker.seals)
            entries += [(each.seal.job, int(each.seal.step), each.seal.digest()) for each in new]
        return self.anchor_entries(tuple(sorted(entries)))

    def anchor_entries(self, entries: tuple[Entry, ...]) -> Digest:
        """Anchor a batch of `entries`, sorted or not."""
        nodes = [batch_leaf(*entry) for entry in entries]
        root, block = merkle.root(nodes, plain_node, ZERO_DIGEST), len(self.chain.headers)
        place = SHIPS["seals"].place("_lanes", self.anchorer)
        lane = anchored(self._lane_hash(), root, block)
        number = int.from_bytes(lane, "big")
        self.write("seals", place, hash=number, count=len(self.lane) + 1, pendingBlock=block)
        coin = self.chain.mine(START + block).hash
        self.lane.append((AnchoredBatch(root, block, coin), entries))
        lane = recorded(lane, coin)
        self.write("seals", place, hash=int.from_bytes(lane, "big"), pendingBlock=0)
        self.chain.mine(START + block + 1)
        return root

    def settle(self, statements: Iterable[Statement] | None = None) -> EpochSettlement:
        """Settle the next epoch by the newest seals, and make it final."""
        previous = self.settlements[-1]
        named = self.statements() if statements is None else list(statements)
        settled = settle(EpochNumber(previous.epoch + 1), previous, named)
        self.book(settled)
        return settled

    def statements(self) -> list[SealStatement]:
        """The newest seal of every job."""
        return newest_statements(self.jobs)

    def book(self, settled: EpochSettlement) -> None:
        """Store what the contracts would store for a final epoch."""
        self.settlements.append(settled)
        settlement, root = SHIPS["settlement"], settled.root
        number = int.from_bytes(root.hash, "big")
        is_second = settled.epoch % 2
        self.write(
            "settlement", settlement.place("_roots"), **{"second" if is_second else "first": number}
        )
        self.write(
            "settlement", settlement.place("_totals"), funded=root.sum, secondIsFinal=is_second
        )
        newest = settlement.place("_newest")
        self.write("settlement", newest, rootSum=root.sum, number=settled.epoch, state=3)
        for debit in settled.debits:
            place = SHIPS["escrow"].place("_jobs", debit.job)
            self.write(
                "escrow",
                place,
                debited=debit.total,
                lastDebit=debit.amount,
                lastEpoch=settled.epoch,
            )

    def claim(self, account: Address) -> None:
        """Pay an account all that the final root grants."""
        paid, _ = self.settlements[-1].claim_proof(account)
        self.claimed[account] = paid.cumulative
        place = SHIPS["settlement"].place("claimed", account)
        self.write("settlement", place, value=paid.cumulative)
        totals = SHIPS["settlement"].place("_totals")
        self.write("settlement", totals, paid=sum(self.claimed.values()))

    def close(self, maker: JobMaker, *, shown: int = -1, refunded: bool = True) -> None:
        """Close a job by a seal, the newest unless named, and refund what was not earned."""
        seal, job = maker.seals[shown].seal, maker.spec.job()
        escrow = SHIPS["escrow"]
        due = sum(due_shares(maker.seals[shown].pay, last=seal.last).values())
        self.write("escrow", escrow.place("_jobs", job), closing=1)
        self.write(
            "escrow",
            escrow.place("_closing", job),
            seals=seal.step + 1,
            earned=seal.earned,
            due=due,
            poster=int.from_bytes(maker.spec.poster, "big"),
            endsAt=START + 50,
            refundableAt=START + 60,
        )
        if refunded:
            self.write("escrow", escrow.place("_jobs", job), deposited=seal.earned)

    def write(self, contract: str, place: object, **values: int) -> None:
        """Set fields of a stored value of `contract`."""
        self.chain.write(self.addresses[contract], place, **values)  # type: ignore[arg-type]

    def snapshot(self, maker: JobMaker, *, timestamp: int = START + 100) -> Snapshot:
        """Mine a block and prove in it what concerns `maker`'s job."""
        header = self.chain.mine(timestamp)
        places = wanted_places(SHIPS, maker.spec.job(), maker.anchorer, claimants(maker.items))
        contracts = {}
        for name, wanted in places.items():
            slots = [slot for place in wanted.values() for slot in place.slots]
            account, proofs = self.chain.prove(self.addresses[name], slots)
            proof_of = dict(zip(slots, proofs, strict=True))
            storage = {
                each: tuple(proof_of[slot] for slot in place.slots)
                for each, place in wanted.items()
            }
            contracts[name] = ContractProof(account, storage)
        before = self._before() if self.snapshots else None
        snapshot = Snapshot(header, before, contracts, self.settlements[-1])
        self.snapshots.append(snapshot)
        return snapshot

    def file(self, maker: JobMaker) -> AuditFile:
        """The audit file of `maker`'s job."""
        return AuditFile(
            self.domain,
            tuple(maker.items),
            tuple(self._shown(batch, entries, maker) for batch, entries in self.lane),
            self.code,
            tuple(self.snapshots),
        )

    def _lane_hash(self) -> Digest:
        lane = ZERO_DIGEST
        for batch, _ in self.lane:
            assert batch.coin is not None
            lane = recorded(anchored(lane, batch.root, batch.block), batch.coin)
        return lane

    def _shown(
        self, batch: AnchoredBatch, entries: tuple[Entry, ...], maker: JobMaker
    ) -> ShownBatch:
        is_old = batch.block <= maker.opening.opening_block
        return ShownBatch(batch, () if is_old else show_batch(entries))

    def _before(self) -> BlockProof:
        slot = history_slot(self.snapshots[-1].header.number)
        account, proofs = self.chain.prove(HISTORY_CONTRACT, [slot])
        return BlockProof(account, proofs[0])


@dataclass(frozen=True)
class Settled:
    """A file whose job has ended and is settled, with what a reader brings."""

    market: AuditedMarket
    job: JobMaker
    file: AuditFile
    anchor: Digest
    data: bytes


def settle_two_epochs(job: JobMaker, other: JobMaker, *, steps: int = 3) -> Settled:
    """Two epochs of `steps` steps each, a batch in between that lacks `job`, claims, a refund."""
    market = AuditedMarket()
    early = tuple(sorted([(JobMaker(name="early").spec.job(), 1, keccak(b"early"))]))
    market.anchor_entries(early)
    for each in (job, other):
        market.open(each)
    for _ in range(steps - 1):
        for each in (job, other):
            each.seal_step()
    market.anchor()
    job.seal_step()
    market.anchor()
    market.settle()
    market.snapshot(job)
    market.anchor_entries(early)
    for number in range(steps):
        for each in (job, other):
            each.seal_step(last=number == steps - 1)
    market.anchor()
    market.settle()
    market.claim(job.members[0].wallet.account)
    market.close(job)
    market.snapshot(job)
    file = market.file(job)
    return Settled(market, job, file, market.snapshots[-1].header.hash, file.encoded())


@cache
def settled(*, stages: int = 1, steps: int = 3) -> Settled:
    """The plain case, made once."""
    names: Mapping[int, str] = {1: "abc", 2: "abcd"}
    members = make_members(names[stages], stages=stages)
    job = JobMaker(name="audited", members=members, opening_block=EARLY_BLOCK)
    other = JobMaker(name="other", members=make_members("bcd", seed="other"))
    return settle_two_epochs(job, other, steps=steps)
