"""Everything that was said and paid in a job, checked again by someone who trusts nobody. Pure.

The file holds what was signed, the anchor chain, and what one block proves. `verify` derives the
rest: every signature, the chain of seals, what rounds merge, pay and vesting, the batches and
their beacons, the contracts' code, and of each account what the escrow granted it, paid it and
holds of it. The reader brings three things of his own: a block hash and the addresses of JobEscrow
and SealAnchor. No derived number is read from the file, and no field is left unread: an altered
leaf fails. Where a fitting file and the blockchain disagree on money, each case is one line.

What is found is said as of the newest seal that a batch holds. Later ones are checked, and counted
as what they are: of a job that runs there always are some, but their coordinator alone could add
any, or show two readers two of them. They pay all the same, so payments are compared with them too.

What it cannot say: whether the work was done (`checking: off`, nobody redid it); what accounts got
that have no lease and are on no list: `others` bounds it; what was deposited and reclaimed.

Paths name where a mismatch showed, e.g. ``items/12`` or ``block/contracts/escrow/storage/jobs``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from contracts.governance.anchor_chain import AnchoredBatch, fold_anchor_chain
from contracts.governance.checking import Begin
from contracts.governance.escrow import Channel
from contracts.governance.job import JobHistory, SealedStep, follow
from contracts.governance.pay import PayLeaf
from contracts.governance.record import JobRecord
from contracts.governance.vesting import forfeited_by
from contracts.terms.amounts import NOTHING, BaseUnits
from contracts.terms.digest import keccak
from contracts.terms.encoding import encode
from contracts.terms.history import Kept, decode_kept, kept_value
from contracts.terms.ids import Address, Digest, JobId, PeerId, StepNumber
from contracts.terms.items import count
from contracts.terms.messages import JobOpening, JobSpec, Seal, StepBeacon
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from verification.audit.chain_proof import (
    SHIPPED_AS,
    ChainFacts,
    ChainProof,
    Ships,
    Wiring,
    chain_proof_value,
    check_contracts,
    check_wiring,
    claimants,
    read_chain_proof,
    read_facts,
    wanted_places,
)
from verification.audit.disagreements import disagreements
from verification.docket import Docket, begin_job
from verification.draws.anchor_chains import (
    ShownBatch,
    batch_value,
    check_batch,
    drawn_by,
    read_batch,
)
from verification.draws.odds import Odds
from verification.draws.selection import step_beacon
from verification.reading import Field, at, mismatch, read_domain, read_map, require
from verification.tallies import Tally

VERSION = "audit_file.v3"
MAX_FILE_BYTES = 2**31


@dataclass(frozen=True)
class AuditFile:
    """What a file holds, read and not yet checked."""

    domain: Domain
    seals: Address  # of SealAnchor
    items: tuple[Kept, ...]
    anchor_chain: tuple[ShownBatch, ...]
    code: Mapping[str, bytes]
    block: ChainProof

    def encoded(self) -> bytes:
        """The file's bytes."""
        domain = self.domain
        value = {
            "version": VERSION,
            "chain": {"chain_id": domain.chain_id, "escrow": domain.escrow, "seals": self.seals},
            "items": [kept_value(item) for item in self.items],
            "anchor_chain": [batch_value(shown) for shown in self.anchor_chain],
            "code": dict(self.code),
            "block": chain_proof_value(self.block),
        }
        return encode(value)  # type: ignore[arg-type]  # nested dicts of Value, invariant to mypy


@dataclass(frozen=True)
class Pins:
    """What a reader knows from sources of his own."""

    block: Digest  # hash of the block that the file is about
    escrow: Address
    seals: Address


@dataclass(frozen=True)
class AccountVerdict:
    """What an account earned in the job, in base units, and what the chain holds for it there."""

    earned: BaseUnits
    vested: BaseUnits
    forfeited: BaseUnits
    channel: Channel | None  # None: no storage is proved


@dataclass(frozen=True)
class EscrowVerdict:
    """Where the job's budget is: funded = limits of the accounts + others + free. Base units."""

    funded: BaseUnits  # brought less what was reclaimed
    limits: BaseUnits
    others: BaseUnits  # granted to accounts that this history does not know
    claimed: BaseUnits  # of the limits, by the accounts
    closed_at: UnixSeconds  # 0: it is not closed

    @property
    def free(self) -> BaseUnits:
        """What the poster can take back now."""
        return BaseUnits(self.funded - self.limits - self.others)


@dataclass(frozen=True)
class Verdict:
    """What was found as of the newest anchored seal. There is none where anything does not fit."""

    anchored: bool
    job: JobId
    spec: JobSpec
    chain_id: int
    wiring: Wiring
    block_number: int
    block_hash: Digest
    block_time: int
    steps: int
    ended: bool
    num_items: int  # that seals cover
    accounts: Mapping[Address, AccountVerdict]
    escrow: EscrowVerdict | None  # None: no storage is proved
    checked: Mapping[str, int]
    disagreements: tuple[str, ...] = ()  # of the chain with the seals, a line each
    odds: Mapping[PeerId, tuple[Odds, ...]] = field(default_factory=dict)
    work: str = "unchecked"


@dataclass
class _History:
    """What the items establish, step by step; all but `seals` as of the last anchored one."""

    record: JobRecord
    end: int  # number of items up to that seal
    seals: dict[StepNumber, SealedStep] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    num_signatures: int = 0

    def pay_in(self, step: StepNumber | None) -> tuple[PayLeaf, ...]:
        """What the seal of a step pays; of none, nothing."""
        return () if step is None or step not in self.seals else self.seals[step].pay


def read_file(data: bytes) -> AuditFile:
    """The file that `data` spells. Only its form is checked.

    Raises:
        Unreadable: it is damaged, or of another version.
        AuditMismatch: it has a field too few or too many; data: `path`.
    """
    value = read_map(data, VERSION, max_bytes=MAX_FILE_BYTES)
    fields = Field(value).record("version", "chain", "items", "anchor_chain", "code", "block")
    chain = fields["chain"].record("chain_id", "escrow", "seals")
    return AuditFile(
        read_domain(chain),
        Address(chain["seals"].bytes(20)),
        tuple(_read_item(each) for each in fields["items"].list()),
        tuple(read_batch(each) for each in fields["anchor_chain"].list()),
        {name: each.bytes() for name, each in fields["code"].record(*SHIPPED_AS).items()},
        read_chain_proof(fields["block"]),
    )


def verify(
    data: bytes, ships: Ships, *, pins: Pins | None = None, begin: Begin = begin_job
) -> Verdict:
    """Check a whole file.

    Args:
        data: The file.
        ships: Shipped artifacts by the names of `SHIPPED_AS`.
        pins: From the reader's own sources. Only with them is the verdict `anchored`; else it says
            no more than that the file fits itself.
        begin: By which the draws of a checked job are folded: with the shipped calibration table.

    Raises:
        Unreadable: see `read_file`. AuditMismatch: anything does not fit; data: `path`.
    """
    file = read_file(data)
    if pins is not None:
        require(file.domain.escrow == pins.escrow, "chain/escrow", "another contract")
        require(file.seals == pins.seals, "chain/seals", "another contract")
        own = file.block.header.hash == pins.block
        require(own, "block/header", "its hash is not the reader's block hash")
    wiring = check_wiring(ships, file.code, file.domain, file.seals)
    history = _check_items(file, begin)
    first_batch, drawn_with = _check_anchor_chain(file, history)
    facts = _check_block(file, history, ships, wiring)
    _check_beacons(file, history.end, drawn_with)  # now that the anchor chain is that of the block
    record, header = history.record, file.block.header
    beacons = {step: batch.beacon for step, batch in drawn_with.items() if batch.beacon is not None}
    draws = [
        step_beacon(record.job, step, beacons[step]) for step in beacons.keys() & history.seals
    ]
    is_shown = all(shown.is_served for shown in file.anchor_chain)
    return Verdict(
        anchored=pins is not None and facts is not None and is_shown,
        job=record.job,
        spec=record.spec,
        chain_id=file.domain.chain_id,
        wiring=wiring,
        block_number=header.number,
        block_hash=header.hash,
        block_time=header.timestamp,
        steps=record.step,
        ended=record.ended,
        num_items=record.cursor.next - count(record.cursor.unsealed),
        accounts=_accounts(history, facts),
        escrow=None if facts is None else _escrow(facts),
        checked={
            "signatures": history.num_signatures,
            "seals": len(history.seals),
            "seals in no batch": sum(step > record.step for step in history.seals),
            "batches": len(file.anchor_chain),
            "batches not shown": sum(not shown.is_served for shown in file.anchor_chain),
            "anchored steps": len(first_batch),
            "draws derived": len(draws),
            "drawn": history.tally.rulings["drawn"],
            "settled by an audit": history.tally.rulings["settled"],
            "settled as unrepeated": history.tally.rulings["unrepeated"],
            "reports missed": history.tally.rulings["missed"],
            "convicted": history.tally.rulings["convicted"],
            "contracts": 0 if facts is None else len(SHIPPED_AS),
            "accounts proved": 0 if facts is None else len(facts.channels),
        },
        disagreements=()
        if facts is None
        else tuple(disagreements(record, history.pay_in(max(history.seals, default=None)), facts)),
        odds=_odds(history),
        work="unchecked" if record.spec.rules.audit is None else "audited where it was drawn",
    )


def _check_block(
    file: AuditFile, history: _History, ships: Ships, wiring: Wiring
) -> ChainFacts | None:
    """What the block proves of the job: our code, the whole anchor chain, a job that was opened."""
    header, contracts, record = file.block.header, file.block.contracts, history.record
    late = any(shown.batch.block > header.number for shown in file.anchor_chain)
    require(not late, "anchor_chain", "a batch after the block")
    if contracts is None:
        return None
    states = check_contracts(header, contracts, wiring.addresses, "block/contracts")
    for name, state in states.items():
        same = state.code_hash == keccak(file.code[name])
        require(same, f"code/{name}", "not the code on chain")
    accounts = claimants(file.items)
    places = wanted_places(ships, record.job, record.opening.anchorer, accounts)
    facts = read_facts(contracts, states, places, "block/contracts")
    _check_whole_anchor_chain([shown.batch for shown in file.anchor_chain], facts.anchor_chain)
    is_open = bool(facts.job["opened"])
    require(is_open, "block/contracts/escrow/storage/jobs", "the job was never opened on chain")
    return facts


def _accounts(history: _History, facts: ChainFacts | None) -> dict[Address, AccountVerdict]:
    """Everybody with a lease, and who earned something or was granted it by auditing."""
    record = history.record
    pay = {leaf.account: leaf for leaf in history.pay_in(record.step)}
    forfeited = forfeited_by(record.pay, record.pay_leases())
    channels: Mapping[Address, Channel] = {} if facts is None else facts.channels
    granted = {account for account, each in channels.items() if each.limit}
    found = {}
    for account in sorted({lease.account for lease in record.leases.values()} | {*pay} | granted):
        leaf = pay.get(account, PayLeaf(account, NOTHING, NOTHING))
        lost = BaseUnits(forfeited.get(account, 0))
        found[account] = AccountVerdict(leaf.earned, leaf.vested, lost, channels.get(account))
    return found


def _escrow(facts: ChainFacts) -> EscrowVerdict:
    limits = sum(each.limit for each in facts.channels.values())
    return EscrowVerdict(
        funded=BaseUnits(facts.job["funded"]),
        limits=BaseUnits(limits),
        others=BaseUnits(facts.job["committed"] - limits),
        claimed=BaseUnits(sum(each.claimed for each in facts.channels.values())),
        closed_at=UnixSeconds(facts.job["closedAt"]),
    )


def _read_item(field: Field) -> Kept:
    with at(field.path):
        return decode_kept(encode(field.value))


def _check_items(file: AuditFile, begin: Begin) -> _History:
    """Signatures, order, the chain of seals, pay and vesting: see `contracts.governance`."""
    following, seals = JobHistory(file.domain, begin), dict[StepNumber, SealedStep]()
    end, record = _anchored_items(file), None
    num_signatures, tally = 0, Tally()
    for index, item in enumerate(file.items):
        with at(f"items/{index}"):
            following = follow(following, item)
        is_seal = isinstance(item, Signed) and isinstance(item.message, Seal)
        if index < end or not (seals or is_seal):
            record = following.record
        if not isinstance(item, Signed):
            continue
        num_signatures += 1
        message = item.message
        if isinstance(message, Seal) and following.newest:
            seals[message.step] = following.newest
            if following.record is not None and index < end:
                tally.note(following.record.checking, message.step)
    if record is None:
        mismatch("items", f"no {JobSpec.__name__} and {JobOpening.__name__}")
    return _History(record, end, seals, tally, num_signatures)


def _anchored_items(file: AuditFile) -> int:
    """Number of items up to the newest seal that a batch holds; each seal fixes those before it."""
    held = {
        (leaf.job, leaf.step, leaf.seal) for shown in file.anchor_chain for leaf in shown.leaves
    }
    ends = [0]
    for index, item in enumerate(file.items):
        if isinstance(item, Signed) and isinstance(item.message, Seal):
            seal = item.message
            if (seal.job, seal.step, seal.digest()) in held:
                ends.append(index + 1)
    return ends[-1]


def _odds(history: _History) -> dict[PeerId, tuple[Odds, ...]]:
    """P(undetected) of one falsified peer-step, of five, and of all that a peer did."""
    docket = history.record.checking
    return history.tally.odds(docket.rules.terms) if isinstance(docket, Docket) else {}


def _check_anchor_chain(
    file: AuditFile, history: _History
) -> tuple[dict[StepNumber, AnchoredBatch], dict[StepNumber, AnchoredBatch]]:
    """The first batch of each anchored step; and what each step is drawn with (`drawn_by`)."""
    first: dict[StepNumber, AnchoredBatch] = {}
    drawn_with: dict[StepNumber, AnchoredBatch] = {}
    told, record = set[StepNumber](), history.record
    for index, shown in enumerate(file.anchor_chain):
        path = f"anchor_chain/{index}"
        if shown.batch.block <= record.opening.opening_block:
            bare = shown.is_served and not shown.leaves
            require(bare, f"{path}/leaves", "a batch before the opening shows none")
            continue
        if shown.is_served:
            check_batch(shown, path)
        leaves = shown.of(record.job)
        steps = [leaf.step for leaf in leaves] if shown.is_served else None
        drawn_with.update(drawn_by(shown.batch, steps, told))
        for leaf in leaves:
            sealed = history.seals.get(leaf.step)
            known = sealed is not None and sealed.seal.message.digest() == leaf.seal
            require(known, f"{path}/leaves", f"another seal of step {leaf.step} was anchored")
            first.setdefault(leaf.step, shown.batch)
    with at("anchor_chain"):
        fold_anchor_chain(shown.batch for shown in file.anchor_chain)
    return first, drawn_with


def _check_beacons(
    file: AuditFile, end: int, drawn_with: Mapping[StepNumber, AnchoredBatch]
) -> None:
    """The beacons that seals hold are those of the first batch that holds, or may hold, the step.

    After the first `end` items, a seal may hold one that was recorded after the block.
    """
    for index, item in enumerate(file.items):
        if isinstance(item, Signed) and isinstance(item.message, StepBeacon):
            said, batch = item.message, drawn_with.get(item.message.of)
            if index >= end and (batch is None or batch.beacon is None):
                continue
            same = batch is not None and (batch.root, batch.block, batch.beacon) == (
                said.batch,
                said.block,
                said.beacon,
            )
            require(same, f"items/{index}", f"the chain has another beacon for step {said.of}")


def _check_whole_anchor_chain(
    batches: Sequence[AnchoredBatch], anchor_chain: Mapping[str, int]
) -> None:
    """The batches fold to the anchorer's anchor chain, as the block has it."""
    count, where = anchor_chain["count"], "anchor_chain"
    require(count == len(batches), where, "not all batches of the anchor chain, or too many")
    if pending := anchor_chain["pendingBlock"]:
        newest = batches[-1] if batches else None
        require(newest is not None and newest.block == pending, where, "not the newest batch")
        waits = newest is not None and newest.beacon is None
        require(waits, where, "a beacon that is not recorded yet")
    with at(where):
        same = fold_anchor_chain(batches) == anchor_chain["hash"].to_bytes(32, "big")
    require(same, where, "not the anchor chain of the block")
