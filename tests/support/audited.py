"""A made-up chain with jobs, batches, limits and claims, and audit files of its jobs.

`paid_job()` is the plain case; the methods of `AuditedMarket` are the steps, for tests that want
another one. The contracts exist as shipped code with storage on a `FakeChain`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from contracts.chain.layout import Place
from contracts.governance.anchor_chain import AnchoredBatch, anchored, recorded
from contracts.governance.escrow import EscrowTimes
from contracts.terms import merkle
from contracts.terms.digest import keccak
from contracts.terms.ids import ZERO_DIGEST, Address, Digest
from contracts.terms.merkle import batch_leaf
from tests.support.checked_history import told
from tests.support.fake_chain import SHIPS, FakeChain, contract_code
from tests.support.history import DOMAIN, START, JobMaker, make_members, make_wallet
from verification.audit.audit_file import AuditFile, Pins
from verification.audit.chain_proof import ChainProof, ContractProof, claimants, wanted_places
from verification.draws.anchor_chains import Entry, ShownBatch, show_batch

SEALS = Address(keccak(b"seals")[:20])
TIMES = EscrowTimes(margin=60, announce=10, execute=20, tail=300)

LIMIT, STAKE = 20_000_000, 2_000_000
"""What each account is granted, and bonds, in base units."""

EARLY_BLOCK = 2
"""Block of the batch that `pay` anchors before its job opens."""


@dataclass
class AuditedMarket:
    """A chain with our contracts, jobs with budgets, and an anchor chain of batches."""

    seals: Address = SEALS
    jobs: list[JobMaker] = field(default_factory=list)
    anchor_chain: list[tuple[AnchoredBatch, tuple[Entry, ...]]] = field(default_factory=list)
    num_anchored: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.domain, self.chain = DOMAIN, FakeChain()
        self.addresses = {"escrow": self.domain.escrow, "seals": self.seals}
        self.code = contract_code(self.domain, TIMES)
        for name, code in self.code.items():
            self.chain.deploy(self.addresses[name], code)
        self.anchorer = make_wallet("anchorer").account
        self.chain.mine(START)
        self.chain.mine(START + 1)

    def open(self, maker: JobMaker) -> JobMaker:
        """Put a job's budget into escrow; grant to all of its accounts, which bond."""
        self.jobs.append(maker)
        accounts = claimants(maker.items)
        committed = LIMIT * len(accounts)
        self.write_job(maker, funded=maker.spec.budget, committed=committed, opened=1)
        for account in accounts:
            self.write_account(maker, account, limit=LIMIT, stake=STAKE)
        return maker

    def write_job(self, maker: JobMaker, **values: int) -> None:
        """Set fields of what the escrow stores of a job."""
        self.write("escrow", SHIPS["escrow"].place("jobs", maker.spec.job()), **values)

    def write_account(self, maker: JobMaker, account: Address, **values: int) -> None:
        """Set fields of what the escrow stores of an account in a job."""
        for label in ("granted", "bonds"):
            self.write("escrow", SHIPS["escrow"].place(label, maker.spec.job(), account), **values)

    def anchor(self) -> Digest:
        """Anchor all seals that no batch holds, and record the beacon in the next block."""
        entries = []
        for index, maker in enumerate(self.jobs):
            new = maker.seals[self.num_anchored.get(index, 0) :]
            self.num_anchored[index] = len(maker.seals)
            entries += [(each.seal.job, int(each.seal.step), each.seal.digest()) for each in new]
        return self.anchor_entries(tuple(sorted(entries)))

    def anchor_entries(self, entries: tuple[Entry, ...]) -> Digest:
        """Anchor a batch of `entries`, sorted or not."""
        nodes = [batch_leaf(*entry) for entry in entries]
        root, block = merkle.root(nodes), len(self.chain.headers)
        place = SHIPS["seals"].place("_anchorChains", self.anchorer)
        anchor_chain = anchored(self._anchor_chain_hash(), root, block)
        number = int.from_bytes(anchor_chain, "big")
        self.write(
            "seals", place, hash=number, count=len(self.anchor_chain) + 1, pendingBlock=block
        )
        beacon = self.chain.mine(START + block).hash
        self.anchor_chain.append((AnchoredBatch(root, block, beacon), entries))
        anchor_chain = recorded(anchor_chain, beacon)
        self.write("seals", place, hash=int.from_bytes(anchor_chain, "big"), pendingBlock=0)
        self.chain.mine(START + block + 1)
        return root

    def claim_all(self, maker: JobMaker) -> None:
        """Pay all accounts what the newest seal vests, up to their limits."""
        for leaf in maker.seals[-1].pay:
            claimed, earned = min(leaf.vested, LIMIT), min(leaf.earned, LIMIT)
            self.write_account(maker, leaf.account, claimed=claimed, earned=earned)

    def write(self, contract: str, place: Place, **values: int) -> None:
        """Set fields of a stored value of `contract`; those that it has not are passed over."""
        self.chain.write(self.addresses[contract], place, **values)

    def proof(self, maker: JobMaker) -> ChainProof:
        """Mine a block and prove in it what concerns `maker`'s job."""
        header = self.chain.mine(START + 100)
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
        return ChainProof(header, contracts)

    def file(self, maker: JobMaker, proof: ChainProof | None = None) -> AuditFile:
        """The audit file of `maker`'s job, pinned to a new block unless a proof is given."""
        return AuditFile(
            self.domain,
            self.seals,
            tuple(maker.items),
            tuple(self._shown(batch, entries, maker) for batch, entries in self.anchor_chain),
            self.code,
            proof or self.proof(maker),
        )

    def _anchor_chain_hash(self) -> Digest:
        anchor_chain = ZERO_DIGEST
        for batch, _ in self.anchor_chain:
            assert batch.beacon is not None
            anchor_chain = recorded(anchored(anchor_chain, batch.root, batch.block), batch.beacon)
        return anchor_chain

    def _shown(
        self, batch: AnchoredBatch, entries: tuple[Entry, ...], maker: JobMaker
    ) -> ShownBatch:
        is_old = batch.block <= maker.opening.opening_block
        return ShownBatch(batch, () if is_old else show_batch(entries))


def pins_of(file: AuditFile) -> Pins:
    """What a reader brings who knows the file's block and contracts."""
    return Pins(file.block.header.hash, file.domain.escrow, file.seals)


@dataclass(frozen=True)
class Audited:
    """A file of a job, with what a reader brings."""

    market: AuditedMarket
    job: JobMaker
    file: AuditFile
    pins: Pins
    data: bytes


def audited(market: AuditedMarket, job: JobMaker) -> Audited:
    """The file of a job as it is now."""
    file = market.file(job)
    return Audited(market, job, file, pins_of(file), file.encoded())


def pay(job: JobMaker, other: JobMaker) -> Audited:
    """Six steps of two jobs in several batches, one of which lacks `job`; all is paid."""
    market = AuditedMarket()
    early = tuple(sorted([(JobMaker(name="early").spec.job(), 1, keccak(b"early"))]))
    market.anchor_entries(early)
    for each in (job, other):
        market.open(each)
    for _ in range(2):
        for each in (job, other):
            each.seal_step()
    market.anchor()
    job.seal_step()
    market.anchor()
    market.anchor_entries(early)
    for number in range(3):
        for each in (job, other):
            each.seal_step(last=number == 2)
    market.anchor()
    market.claim_all(job)
    market.write_job(job, closedAt=START + 50)
    return audited(market, job)


@cache
def paid_job(*, stages: int = 1) -> Audited:
    """The plain case, made once: a job that has ended and is paid."""
    names: Mapping[int, str] = {1: "abc", 2: "abcd"}
    members = make_members(names[stages], stages=stages)
    job = JobMaker(name="audited", members=members, opening_block=EARLY_BLOCK)
    other = JobMaker(name="other", members=make_members("bcd", seed="other"))
    return pay(job, other)


def running_job(*, name: str = "running", steps: int = 1) -> tuple[AuditedMarket, JobMaker]:
    """A job of so many steps in one batch, of which nothing is claimed."""
    market, job = AuditedMarket(), JobMaker(name=name, opening_block=1)
    market.open(job)
    for _ in range(steps):
        job.seal_step()
    market.anchor()
    return market, job


@cache
def checked_job() -> Audited:
    """The story of `checked_history` with its batches on a chain, made once."""
    market = AuditedMarket()
    job = told(market=market)
    market.claim_all(job)
    return audited(market, job)
