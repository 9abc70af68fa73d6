"""Everything that was said and paid in a job, checked again by someone who trusts nobody. Pure.

The file holds what was signed, the lane of anchored batches, and snapshots of the chain. `verify`
derives the rest: every signature, the chain of seals, links between stages, pay and vesting, the
batches and their coins, the contracts' code, the final settlement, and what escrow paid, returned
and still holds. The reader brings two things of his own: a block hash and Settlement's address.
No derived number is read from the file, and no field is left unread: an altered leaf fails.

What is found is said as of the newest seal that a batch holds. Later ones are checked, and counted
as what they are: of a job that runs there always are some, but their coordinator alone could add
any, or show two readers two of them.

What it cannot say: whether the work was done (`checking: off`, nobody redid it); what other jobs'
seals said, whose part in the final root is only bound by it; deposits by `topUp` once a refund is
made. A closed job that is paid in several pieces needs a snapshot after each.

Paths name where a mismatch showed, e.g. ``items/12`` or ``snapshots/0/settlement/3``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from contracts.governance.checking import Begin
from contracts.governance.job import JobHistory, SealedStep, follow
from contracts.governance.lane import AnchoredBatch, fold_lane
from contracts.governance.pay import PayLeaf
from contracts.governance.record import JobRecord
from contracts.governance.settlement import due_shares, share
from contracts.terms.amounts import BaseUnits
from contracts.terms.auditors import AuditorList
from contracts.terms.encoding import encode
from contracts.terms.history import Kept, Leaves, decode_kept
from contracts.terms.ids import Address, Digest, JobId, PeerId, StepNumber
from contracts.terms.merkle import FORFEITED, FROZEN
from contracts.terms.messages import JobOpening, JobSpec, Seal, StepClose, StepCoin
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from verification.audit.snapshots import (
    SHIPPED_AS,
    ChainFacts,
    Ships,
    Snapshot,
    Wiring,
    check_before,
    check_contracts,
    check_settlement,
    check_wiring,
    claimants,
    paid_by,
    read_facts,
    read_snapshot,
    snapshot_value,
    wanted_places,
)
from verification.damage import read_map
from verification.docket import Docket, begin_job
from verification.draws.lanes import ShownBatch, batch_value, check_batch, drawn_by, read_batch
from verification.draws.odds import Odds
from verification.draws.selection import step_coin
from verification.reading import Field, at, mismatch, require
from verification.tallies import Tally

VERSION = "audit_file.v1"
MAX_FILE_BYTES = 2**31

NOTHING = BaseUnits(0)
NOT_FINAL = (1, 2, 4)  # Settlement.EpochState: Posted, Disputed, Rejected


@dataclass(frozen=True)
class AuditFile:
    """What a file holds, read and not yet checked."""

    domain: Domain
    items: tuple[Kept, ...]
    lane: tuple[ShownBatch, ...]
    code: Mapping[str, bytes]
    snapshots: tuple[Snapshot, ...]

    def encoded(self) -> bytes:
        """The file's bytes."""
        chain = {"chain_id": self.domain.chain_id, "settlement": self.domain.settlement}
        value = {
            "version": VERSION,
            "chain": chain,
            "items": [_item_value(item) for item in self.items],
            "lane": [batch_value(shown) for shown in self.lane],
            "code": dict(self.code),
            "snapshots": [snapshot_value(snapshot) for snapshot in self.snapshots],
        }
        return encode(value)  # type: ignore[arg-type]  # nested dicts of Value, invariant to mypy


@dataclass(frozen=True)
class AccountVerdict:
    """What an account earned in the job, and what it got. Base units."""

    earned: BaseUnits
    vested: BaseUnits
    paid: BaseUnits  # by this job, in final epochs
    claimed: BaseUnits  # from all jobs


@dataclass(frozen=True)
class EscrowVerdict:
    """Where the job's budget is at the newest snapshot: deposited = paid + refunded + remaining."""

    deposited: BaseUnits
    paid: BaseUnits
    refunded: BaseUnits
    remaining: BaseUnits


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
    num_units: int
    accounts: Mapping[Address, AccountVerdict]
    escrow: EscrowVerdict
    checked: Mapping[str, int]
    forfeited: BaseUnits = NOTHING
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
    num_units: int = 0


def read_file(data: bytes) -> AuditFile:
    """The file that `data` spells. Only its form is checked.

    Raises:
        Unreadable: it is damaged, or of another version.
        AuditMismatch: it has a field too few or too many; data: `path`.
    """
    value = read_map(data, VERSION, max_bytes=MAX_FILE_BYTES)
    fields = Field(value).record("version", "chain", "items", "lane", "code", "snapshots")
    chain = fields["chain"].record("chain_id", "settlement")
    chain_id = chain["chain_id"].integer()
    require(chain_id < 2**64, chain["chain_id"].path, "no chain id")
    snapshots = tuple(read_snapshot(each) for each in fields["snapshots"].list())
    require(bool(snapshots), "snapshots", "there is none")
    return AuditFile(
        Domain(chain_id, Address(chain["settlement"].bytes(20))),
        tuple(_read_item(each) for each in fields["items"].list()),
        tuple(read_batch(each) for each in fields["lane"].list()),
        {name: each.bytes() for name, each in fields["code"].record(*SHIPPED_AS).items()},
        snapshots,
    )


def verify(
    data: bytes,
    ships: Ships,
    *,
    anchor: Digest | None = None,
    settlement: Address | None = None,
    begin: Begin = begin_job,
) -> Verdict:
    """Check a whole file.

    Args:
        data: The file.
        ships: Shipped artifacts by the names of `SHIPPED_AS`.
        anchor: Hash of the newest snapshot's block, from the reader's own source.
        settlement: Address of Settlement, from the reader's own source. Only with both is the
            verdict `anchored`; else it says no more than that the file fits itself.
        begin: By which the draws of a checked job are folded: with the shipped calibration table.

    Raises:
        Unreadable: see `read_file`. AuditMismatch: anything does not fit; data: `path`.
    """
    file = read_file(data)
    if settlement is not None:
        require(file.domain.settlement == settlement, "chain/settlement", "another contract")
    _check_headers(file, anchor)
    wiring = check_wiring(ships, file.code, file.domain)
    states = [
        check_contracts(snapshot, wiring, file.code, f"snapshots/{index}")
        for index, snapshot in enumerate(file.snapshots)
    ]
    history = _check_items(file, begin)
    record = history.record
    first_batch, drawn_with = _check_lane(file, history)
    places = wanted_places(ships, record.job, record.opening.anchorer, claimants(file.items))
    paid: dict[Address, BaseUnits] = {}
    for index, snapshot in enumerate(file.snapshots):
        path = f"snapshots/{index}"
        facts = read_facts(snapshot, states[index], places, path)
        check_settlement(snapshot, facts, path)
        _check_lane_at(file, snapshot, facts, path)
        paid = _check_pay(history, first_batch, snapshot, facts, paid, path)
        escrow = _check_escrow(history, snapshot, facts, paid, path)
    _check_coins(file, history.end, drawn_with)  # now that the lane is the chain's
    is_shown = all(shown.is_served for shown in file.lane)
    anchored = anchor is not None and settlement is not None and is_shown
    coins = {step: batch.coin for step, batch in drawn_with.items() if batch.coin is not None}
    verdict = _verdict(file, history, wiring, facts, escrow, paid, coins, first_batch)
    return replace(verdict, anchored=anchored)


def _verdict(
    file: AuditFile,
    history: _History,
    wiring: Wiring,
    facts: ChainFacts,
    escrow: EscrowVerdict,
    paid: Mapping[Address, BaseUnits],
    coins: Mapping[StepNumber, Digest],
    first_batch: Mapping[StepNumber, AnchoredBatch],
) -> Verdict:
    record, newest = history.record, history.seals.get(history.record.step)
    draws = [step_coin(record.job, step, coins[step]) for step in coins.keys() & history.seals]
    pay = {leaf.account: leaf for leaf in newest.pay} if newest else {}
    header = file.snapshots[-1].header
    return Verdict(
        anchored=False,
        job=record.job,
        spec=record.spec,
        chain_id=file.domain.chain_id,
        wiring=wiring,
        block_number=header.number,
        block_hash=header.hash,
        block_time=header.timestamp,
        steps=record.step,
        ended=record.ended,
        num_units=history.num_units,
        accounts=_accounts(record, pay, paid, facts.claimed),
        escrow=escrow,
        checked={
            "signatures": history.num_signatures,
            "seals": len(history.seals),
            "seals in no batch": sum(step > record.step for step in history.seals),
            "batches": len(file.lane),
            "batches not shown": sum(not shown.is_served for shown in file.lane),
            "anchored steps": len(first_batch),
            "draws derived": len(draws),
            "drawn": history.tally.rulings["drawn"],
            "settled by an audit": history.tally.rulings["settled"],
            "settled as unrepeated": history.tally.rulings["unrepeated"],
            "reports missed": history.tally.rulings["missed"],
            "convicted": history.tally.rulings["convicted"],
            "snapshots": len(file.snapshots),
            "contracts": len(SHIPPED_AS),
            "accounts in the final root": len(file.snapshots[-1].settlement.accounts),
        },
        forfeited=pay[FORFEITED].vested if FORFEITED in pay else NOTHING,
        odds=_odds(history),
        work="unchecked" if record.spec.rules.audit is None else "audited where it was drawn",
    )


def _accounts(
    record: JobRecord,
    pay: Mapping[Address, PayLeaf],
    paid: Mapping[Address, BaseUnits],
    claimed: Mapping[Address, int],
) -> dict[Address, AccountVerdict]:
    """Everybody with a lease, and who earned something by auditing from outside."""
    leased = {lease.account for lease in record.leases.values()}
    found = {}
    for account in sorted({*leased, *pay, *paid} - {FROZEN, FORFEITED}):
        leaf = pay.get(account, PayLeaf(account, NOTHING, NOTHING))
        own = paid.get(account, NOTHING)
        found[account] = AccountVerdict(leaf.earned, leaf.vested, own, BaseUnits(claimed[account]))
    return found


def _read_item(field: Field) -> Kept:
    value = field.value
    with at(field.path):
        if isinstance(value, dict) and value.get("type") == "signed":
            fields = field.record("type", "message", "signature")
            signed = {"message": fields["message"].value, "signature": fields["signature"].value}
            return decode_kept(encode({"type": "signed", "data": encode(signed)}))
        if isinstance(value, dict) and value.get("type") == "auditors":
            listed = field.record("type", "data")["data"].value
            return decode_kept(encode({"type": "auditors", "data": encode(listed)}))
        return decode_kept(encode(value))


def _item_value(item: Kept) -> dict[str, object]:
    if isinstance(item, Leaves):
        leaves = [leaf.value() for leaf in item.leaves]
        return {"type": "leaves", "grad_commit": item.grad_commit, "leaves": leaves}
    if isinstance(item, AuditorList):
        return {"type": "auditors", "data": item.value()}
    return {"type": "signed", "message": item.message.value(), "signature": item.signature}


def _check_headers(file: AuditFile, anchor: Digest | None) -> None:
    """The newest block is the reader's; each knows the one before."""
    last = len(file.snapshots) - 1
    if anchor is not None:
        own = file.snapshots[last].header.hash == anchor
        require(own, f"snapshots/{last}/header", "its hash is not the reader's block hash")
    require(file.snapshots[0].before is None, "snapshots/0/before", "nothing comes before")
    for index in range(last, 0, -1):
        earlier, later = file.snapshots[index - 1], file.snapshots[index]
        check_before(earlier.header, later, f"snapshots/{index - 1}", f"snapshots/{index}")


def _check_items(file: AuditFile, begin: Begin) -> _History:
    """Signatures, order, the chain of seals, pay and vesting: see `contracts.governance`."""
    following, seals = JobHistory(file.domain, begin), dict[StepNumber, SealedStep]()
    end, record = _anchored_items(file), None
    num_signatures, num_units, tally = 0, 0, Tally()
    for index, item in enumerate(file.items):
        with at(f"items/{index}"):
            following = follow(following, item)
        if index < end or not seals:
            record = following.record
        if not isinstance(item, Signed):
            continue
        num_signatures += 1
        message = item.message
        if isinstance(message, Seal) and following.newest:
            seals[message.step] = following.newest
            if following.record is not None and index < end:
                tally.note(following.record.checking, message.step)
        if isinstance(message, StepClose) and message.revision == 0 and index < end:
            num_units += len({unit for each in message.assignments for unit in each.units})
    if record is None:
        mismatch("items", f"no {JobSpec.__name__} and {JobOpening.__name__}")
    return _History(record, end, seals, tally, num_signatures, num_units)


def _anchored_items(file: AuditFile) -> int:
    """Number of items up to the newest seal that a batch holds; each seal fixes those before it."""
    held = {(leaf.job, leaf.step, leaf.seal) for shown in file.lane for leaf in shown.leaves}
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


def _check_lane(
    file: AuditFile, history: _History
) -> tuple[dict[StepNumber, AnchoredBatch], dict[StepNumber, AnchoredBatch]]:
    """The first batch of each anchored step; and what each step is drawn with (`drawn_by`)."""
    first: dict[StepNumber, AnchoredBatch] = {}
    drawn_with: dict[StepNumber, AnchoredBatch] = {}
    told, record = set[StepNumber](), history.record
    for index, shown in enumerate(file.lane):
        path = f"lane/{index}"
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
    with at("lane"):
        fold_lane(shown.batch for shown in file.lane)
    return first, drawn_with


def _check_coins(file: AuditFile, end: int, drawn_with: Mapping[StepNumber, AnchoredBatch]) -> None:
    """The coins that seals hold are those of the first batch that holds, or may hold, the step.

    After the first `end` items, a seal may hold one that was recorded after the newest snapshot.
    """
    for index, item in enumerate(file.items):
        if isinstance(item, Signed) and isinstance(item.message, StepCoin):
            said, batch = item.message, drawn_with.get(item.message.of)
            if index >= end and (batch is None or batch.coin is None):
                continue
            same = batch is not None and (batch.root, batch.block, batch.coin) == (
                said.batch,
                said.block,
                said.coin,
            )
            require(same, f"items/{index}", f"the chain has another coin for step {said.of}")


def _check_lane_at(file: AuditFile, snapshot: Snapshot, facts: ChainFacts, path: str) -> None:
    """The batches up to this block fold to the anchorer's lane in it."""
    batches = [each.batch for each in file.lane if each.batch.block <= snapshot.header.number]
    if snapshot is file.snapshots[-1]:
        require(len(batches) == len(file.lane), "lane", "a batch after the newest snapshot")
    lane = facts.lane
    require(lane["count"] == len(batches), "lane", "not all batches of the lane, or too many")
    pending = lane["pendingBlock"]
    if pending:
        require(bool(batches) and batches[-1].block == pending, "lane", "not the newest batch")
        later = snapshot is not file.snapshots[-1]
        require(later or batches[-1].coin is None, "lane", "a coin that is not recorded yet")
        batches[-1] = AnchoredBatch(batches[-1].root, batches[-1].block, None)
    with at("lane"):
        folded = fold_lane(batches)
    require(folded == lane["hash"].to_bytes(32, "big"), "lane", f"not the lane of {path}")


def _check_pay(
    history: _History,
    first_batch: Mapping[StepNumber, AnchoredBatch],
    snapshot: Snapshot,
    facts: ChainFacts,
    before: Mapping[Address, BaseUnits],
    path: str,
) -> dict[Address, BaseUnits]:
    """What the job paid in final epochs is what an anchored seal, or its closing, says."""
    found = paid_by(snapshot.settlement, history.record.job)
    total = sum(found.values())
    where = f"{path}/settlement"
    booked = facts.job
    allowed = {booked["debited"], booked["debited"] - booked["lastDebit"]}
    if booked["lastEpoch"] == facts.newest["number"]:
        is_final = facts.newest["state"] not in NOT_FINAL
        allowed = {booked["debited"] - (0 if is_final else booked["lastDebit"])}
    require(total in allowed, where, "the job's part is not what escrow debited for it")
    payable = _payable(history, first_batch, snapshot, facts, before, total)
    require(found in payable, where, "an account's part is not what the job's seal says")
    return found


def _payable(
    history: _History,
    first_batch: Mapping[StepNumber, AnchoredBatch],
    snapshot: Snapshot,
    facts: ChainFacts,
    before: Mapping[Address, BaseUnits],
    total: int,
) -> Iterator[Mapping[Address, BaseUnits]]:
    """How `total` may be divided: by an anchored seal that vests it, or by the closing.

    A closing may show a seal before one that vests as much, and divide it in another way.
    """
    if total == 0:
        yield {}
    anchored = {
        step
        for step, batch in first_batch.items()
        if batch.block <= snapshot.header.number and step in history.seals
    }
    for sealed in (history.seals[step] for step in sorted(anchored)):
        if sealed.seal.message.vested == total:
            yield {leaf.account: leaf.vested for leaf in sealed.pay if leaf.vested}
    shown = _shown_seal(history, facts)
    if shown is None or shown.seal.message.step not in anchored:
        return
    due = due_shares(shown.pay, last=shown.seal.message.last)
    owed = {account: max(0, amount - before.get(account, 0)) for account, amount in due.items()}
    piece = share(max(0, total - sum(before.values())), owed)
    yield {
        account: BaseUnits(before.get(account, 0) + piece.get(account, 0))
        for account in sorted({*before, *piece})
    }


def _shown_seal(history: _History, facts: ChainFacts) -> SealedStep | None:
    """The seal by which the job is closing or was closed."""
    if not facts.job["closing"] or not facts.closing["seals"]:
        return None
    return history.seals.get(StepNumber(facts.closing["seals"] - 1))


def _check_escrow(
    history: _History,
    snapshot: Snapshot,
    facts: ChainFacts,
    paid: Mapping[Address, BaseUnits],
    path: str,
) -> EscrowVerdict:
    """The budget is what was signed, and every base unit of it is accounted for."""
    where, spec = f"{path}/contracts/escrow/storage", history.record.spec
    held, total = facts.job["deposited"], BaseUnits(sum(paid.values()))
    is_known = held > 0 or facts.job["closing"]
    require(bool(is_known), where, "the job was never opened on chain")
    require(total <= held, where, "more was paid than deposited")
    closing, shown = facts.closing, _shown_seal(history, facts)
    if facts.job["closing"] and closing["seals"]:
        if shown is None:
            mismatch("items", f"the job was closed by a seal of step {closing['seals'] - 1}")
        seal = shown.seal.message
        due = sum(due_shares(shown.pay, last=seal.last).values())
        poster = closing["poster"].to_bytes(20, "big")
        fits = (closing["earned"], closing["due"], poster) == (seal.earned, due, spec.poster)
        require(fits, where, "the job was closed by another seal of that step")
    if held >= spec.budget:
        return EscrowVerdict(BaseUnits(held), total, BaseUnits(0), BaseUnits(held - total))
    refundable = facts.job["closing"] and snapshot.header.timestamp >= closing["refundableAt"]
    require(bool(refundable), where, "less than the budget, and no refund was due")
    kept = max(closing["earned"], facts.job["debited"])
    require(held <= kept, where, "the refund left more than what was earned")
    require(held == kept, where, "the refund took more than what was not earned")
    refunded = BaseUnits(spec.budget - held)
    return EscrowVerdict(spec.budget, total, refunded, BaseUnits(held - total))
