"""What one block proves about a job: code, wiring, storage of the contracts, and final pay. Pure.

A snapshot is a header, a proof of each contract's account and of the storage that concerns the job,
and the leaves of the final settlement, whose root is among that storage. The last snapshot's block
hash is what the reader got himself; each earlier one is proved by the next through the history
contract of EIP-2935. Which slots are proved follows from the job, so the file cannot choose.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from contracts.chain.layout import Place, Shipped, as_address
from contracts.chain.proofs import (
    HISTORY_BLOCKS,
    HISTORY_CONTRACT,
    AccountState,
    Header,
    prove_account,
    prove_slot,
)
from contracts.governance.settlement import AccountPay, EpochSettlement
from contracts.terms.amounts import UINT96_MAX, BaseUnits
from contracts.terms.auditors import AuditorList
from contracts.terms.digest import keccak
from contracts.terms.encoding import decode, encode
from contracts.terms.history import Kept
from contracts.terms.ids import Address, Digest, EpochNumber, JobId
from contracts.terms.messages import LeaseAccept
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from verification.reading import Field, at, require

SHIPPED_AS = {
    "settlement": "Settlement",
    "escrow": "JobEscrow",
    "seals": "SealAnchor",
    "vault": "PayoutVault",
    "stakes": "StakeRegistry",
    "parameters": "Parameters",
}
"""Contracts whose code is proved, and the artifact that it must equal."""

MAX_SNAPSHOTS_BYTES = 2**30

_CLAIMED = "claimed "  # and the account, as hex

Nodes = tuple[bytes, ...]
Ships = Mapping[str, Shipped]


@dataclass(frozen=True)
class ContractProof:
    """Trie nodes that prove a contract's account, and each slot of each value in it."""

    account: Nodes
    storage: Mapping[str, tuple[Nodes, ...]]


@dataclass(frozen=True)
class BlockProof:
    """Trie nodes that prove an earlier block's hash in the history contract."""

    account: Nodes
    slot: Nodes


@dataclass(frozen=True)
class Snapshot:
    """One block, as the file shows it."""

    header: Header
    before: BlockProof | None  # of the snapshot before; None in the first
    contracts: Mapping[str, ContractProof]
    settlement: EpochSettlement  # epoch and debits are not known: 0 and none


@dataclass(frozen=True)
class Wiring:
    """What Settlement's code says: the other contracts, and who may do what."""

    addresses: Mapping[str, Address]
    token: Address
    proposer: Address
    disputes: Address


@dataclass(frozen=True)
class ChainFacts:
    """Values that a snapshot proves, in the contracts' own names."""

    final_root: Digest
    totals: Mapping[str, int]
    newest: Mapping[str, int]  # epoch
    claimed: Mapping[Address, int]
    job: Mapping[str, int]
    closing: Mapping[str, int]
    lane: Mapping[str, int]


def claimants(items: Iterable[Kept]) -> tuple[Address, ...]:
    """Whom a job may pay, by its history: every lease, and all that may audit it from outside.

    The whole list of auditors, although few of them may ever be drawn: it is fixed by the opening,
    so that a snapshot of an early block proves the same places as a late one.
    """
    found: set[Address] = set()
    for item in items:
        if isinstance(item, AuditorList):
            found |= {each.account for each in item.auditors}
        elif isinstance(item, Signed) and isinstance(item.message, LeaseAccept):
            found.add(item.message.account)
    return tuple(sorted(found))


WantedPlaces: TypeAlias = dict[str, dict[str, Place]]
"""By contract and name, places in its storage."""


def wanted_places(
    ships: Ships, job: JobId, anchorer: Address, accounts: Iterable[Address]
) -> WantedPlaces:
    """What a snapshot of `job` proves: per contract, named places in its storage."""
    settlement, escrow, seals = ships["settlement"], ships["escrow"], ships["seals"]
    claims = {_claim(each): settlement.place("claimed", each) for each in sorted(set(accounts))}
    names = ("_totals", "_newest", "_roots")
    return {
        "settlement": {name: settlement.place(name) for name in names} | claims,
        "escrow": {name: escrow.place(name, job) for name in ("_jobs", "_closing")},
        "seals": {"_lanes": seals.place("_lanes", anchorer)},
        "vault": {},
        "stakes": {},
        "parameters": {},
    }


def history_slot(block: int) -> int:
    """Where the history contract keeps the hash of `block`."""
    return block % HISTORY_BLOCKS


def read_snapshot(field: Field) -> Snapshot:
    """A snapshot as the file shows it. Nothing is checked but its form."""
    fields = field.record("header", "before", "contracts", "settlement")
    header = Header(tuple(each.bytes() for each in fields["header"].list()))
    require(15 <= len(header.fields) <= 21, fields["header"].path, "no block header")
    before = None
    if fields["before"].value is not None:
        proof = fields["before"].record("account", "slot")
        before = BlockProof(_nodes(proof["account"]), _nodes(proof["slot"]))
    contracts = fields["contracts"].record(*SHIPPED_AS)
    accounts = tuple(_read_account(each) for each in fields["settlement"].list())
    return Snapshot(
        header,
        before,
        {name: _read_contract(contract) for name, contract in contracts.items()},
        EpochSettlement(EpochNumber(0), accounts, ()),
    )


def snapshot_value(snapshot: Snapshot) -> dict[str, object]:
    """`snapshot` as the file holds it."""
    before = snapshot.before
    return {
        "header": list(snapshot.header.fields),
        "before": before and {"account": list(before.account), "slot": list(before.slot)},
        "contracts": {
            name: {
                "account": list(proof.account),
                "storage": {
                    place: [list(nodes) for nodes in slots]
                    for place, slots in proof.storage.items()
                },
            }
            for name, proof in snapshot.contracts.items()
        },
        "settlement": settlement_value(snapshot.settlement),
    }


def settlement_value(settlement: EpochSettlement) -> list[object]:
    """The leaves of a settlement as the file holds them."""
    return [
        {
            "account": each.account,
            "jobs": [{"job": job, "amount": amount} for job, amount in each.jobs],
        }
        for each in settlement.accounts
    ]


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """`snapshot` as a market stores it."""
    return encode(snapshot_value(snapshot))  # type: ignore[arg-type]  # nested dicts of Value


def decode_snapshot(data: bytes) -> Snapshot:
    """The snapshot that `encode_snapshot` made bytes of.

    Raises:
        AuditMismatch: it is none; data: `path`.
    """
    with at("snapshot"):
        value = decode(data, max_bytes=MAX_SNAPSHOTS_BYTES)
    return read_snapshot(Field(value, "snapshot"))


def decode_snapshots(data: bytes) -> tuple[Snapshot, ...]:
    """Snapshots from an array of them.

    Raises:
        AuditMismatch: it is none; data: `path`.
    """
    with at("snapshots"):
        value = decode(data, max_bytes=MAX_SNAPSHOTS_BYTES)
    return tuple(read_snapshot(each) for each in Field(value, "snapshots").list())


def is_near(earlier: Header, block: int) -> bool:
    """Whether `block` can prove the hash of the block `earlier`."""
    return 0 < block - earlier.number <= HISTORY_BLOCKS


def check_wiring(
    ships: Ships, code: Mapping[str, bytes], domain: Domain, path: str = "code"
) -> Wiring:
    """Check that all code is ours and that its immutables name one deployment on one chain.

    Raises:
        AuditMismatch: it is not; data: `path`.
    """
    values: dict[str, Mapping[str, bytes]] = {}
    for name in SHIPPED_AS:
        with at(f"{path}/{name}"):
            values[name] = ships[name].read_immutables(code[name])
    root = values["settlement"]
    separators = {
        "_cachedChainId": domain.chain_id.to_bytes(32, "big"),
        "_verifyingContract": domain.settlement.rjust(32, b"\0"),
        "_cachedSeparator": domain.separator,
    }
    require(root["_cachedChainId"] == separators["_cachedChainId"], "chain/chain_id", "other chain")
    with at(f"{path}/settlement"):
        addresses = {name: as_address(root[name]) for name in SHIPPED_AS if name in root}
        roles = [as_address(root[name]) for name in ("token", "proposer", "disputes")]
    addresses["settlement"] = domain.settlement
    expected = separators | {name: each.rjust(32, b"\0") for name, each in addresses.items()}
    expected["token"] = root["token"]
    for name, own in values.items():
        for immutable, value in own.items():
            wired = expected.get(immutable, value) == value
            require(wired, f"{path}/{name}", f"{immutable} is of another deployment")
    return Wiring(addresses, *roles)


def check_contracts(
    snapshot: Snapshot, wiring: Wiring, code: Mapping[str, bytes], path: str
) -> dict[str, AccountState]:
    """Check that the block holds exactly this code at these addresses.

    Raises:
        AuditMismatch: it does not; data: `path`.
    """
    states: dict[str, AccountState] = {}
    for name, proof in snapshot.contracts.items():
        where = f"{path}/contracts/{name}/account"
        with at(where):
            state = prove_account(snapshot.header.state_root, wiring.addresses[name], proof.account)
        if state is None:
            require(False, where, "there is no such contract")
            raise AssertionError
        require(state.code_hash == keccak(code[name]), f"code/{name}", "not the code on chain")
        states[name] = state
    return states


def read_facts(
    snapshot: Snapshot,
    states: Mapping[str, AccountState],
    places: Mapping[str, Mapping[str, Place]],
    path: str,
) -> ChainFacts:
    """Prove every wanted value, and no other, and read it.

    Raises:
        AuditMismatch: a proof is missing, left over or wrong; data: `path`.
    """
    read: dict[str, dict[str, dict[str, int]]] = {}
    for contract, wanted in places.items():
        where, proofs = f"{path}/contracts/{contract}/storage", snapshot.contracts[contract].storage
        require(
            set(proofs) == set(wanted), where, f"expected exactly {', '.join(wanted) or 'none'}"
        )
        read[contract] = {
            name: _prove(place, states[contract].storage_root, proofs[name], f"{where}/{name}")
            for name, place in wanted.items()
        }
    settlement, escrow = read["settlement"], read["escrow"]
    return ChainFacts(
        final_root(settlement),
        settlement["_totals"],
        settlement["_newest"],
        {
            Address(bytes.fromhex(name.removeprefix(_CLAIMED))): value[""]
            for name, value in settlement.items()
            if name.startswith(_CLAIMED)
        },
        escrow["_jobs"],
        escrow["_closing"],
        read["seals"]["_lanes"],
    )


def final_root(settlement: Mapping[str, Mapping[str, int]]) -> Digest:
    """The root that grants claims, in values read from Settlement; zero before the first."""
    final = "second" if settlement["_totals"]["secondIsFinal"] else "first"
    return Digest(settlement["_roots"][final].to_bytes(32, "big"))


def check_before(earlier: Header, later: Snapshot, earlier_path: str, path: str) -> None:
    """Check that `later` proves the hash of the block `earlier`.

    Raises:
        AuditMismatch: it does not; data: `path`.
    """
    proof, number = later.before, earlier.number
    if proof is None:
        require(False, f"{path}/before", "the snapshot before is not proved")
        raise AssertionError
    near = is_near(earlier, later.header.number)
    require(near, f"{earlier_path}/header", "not before the next snapshot, or too far before")
    with at(f"{path}/before/account"):
        state = prove_account(later.header.state_root, HISTORY_CONTRACT, proof.account)
    if state is None:
        require(False, f"{path}/before/account", "the chain has no history contract")
        raise AssertionError
    with at(f"{path}/before/slot"):
        word = prove_slot(state.storage_root, history_slot(number), proof.slot)
    known = word.to_bytes(32, "big") == earlier.hash
    require(known, f"{earlier_path}/header", "the next snapshot's block knows another hash")


def check_settlement(snapshot: Snapshot, facts: ChainFacts, path: str) -> None:
    """Check that the settlement's leaves are those of the root that is final on chain.

    Raises:
        AuditMismatch: they are not; data: `path`.
    """
    settlement, path = snapshot.settlement, f"{path}/settlement"
    accounts = [each.account for each in settlement.accounts]
    require(accounts == sorted(set(accounts)), path, "accounts must be sorted, each once")
    for index, each in enumerate(settlement.accounts):
        jobs = [job for job, _ in each.jobs]
        require(jobs == sorted(set(jobs)), f"{path}/{index}", "jobs must be sorted, each once")
        paid = bool(jobs) and all(amount > 0 for _, amount in each.jobs)
        require(paid, f"{path}/{index}", "an account or job without pay has no leaf")
    with at(path):
        root = settlement.root
    require(root.hash == facts.final_root, path, "its root is not the final root on chain")
    require(root.sum == facts.totals["funded"], path, "its sum is not what final epochs debited")
    require(facts.totals["paid"] <= facts.totals["funded"], path, "more was paid than debited")
    granted = {each.account: each.cumulative for each in settlement.accounts}
    for account, claimed in facts.claimed.items():
        require(claimed <= granted.get(account, 0), path, f"0x{account.hex()} claimed too much")


def paid_by(settlement: EpochSettlement, job: JobId) -> dict[Address, BaseUnits]:
    """What `job` paid each account, by the settlement's leaves."""
    found = {each.account: dict(each.jobs).get(job) for each in settlement.accounts}
    return {account: amount for account, amount in found.items() if amount is not None}


def _claim(account: Address) -> str:
    return _CLAIMED + account.hex()


def _prove(place: Place, storage_root: Digest, slots: Sequence[Nodes], path: str) -> dict[str, int]:
    require(len(slots) == len(place.slots), path, f"expected {len(place.slots)} slots")
    words = []
    for index, (slot, nodes) in enumerate(zip(place.slots, slots, strict=True)):
        with at(f"{path}/{index}"):
            words.append(prove_slot(storage_root, slot, nodes))
    return place.read(words)


def _nodes(field: Field) -> Nodes:
    return tuple(each.bytes() for each in field.list())


def _read_contract(field: Field) -> ContractProof:
    fields = field.record("account", "storage")
    storage = fields["storage"]
    require(isinstance(storage.value, dict), storage.path, "expected named values")
    assert isinstance(storage.value, dict)
    return ContractProof(
        _nodes(fields["account"]),
        {
            name: tuple(_nodes(slot) for slot in storage.child(name, value).list())
            for name, value in storage.value.items()
        },
    )


def _read_account(field: Field) -> AccountPay:
    fields = field.record("account", "jobs")
    jobs = []
    for each in fields["jobs"].list():
        paid = each.record("job", "amount")
        amount = paid["amount"].integer()
        require(amount <= UINT96_MAX, paid["amount"].path, "no amount")
        jobs.append((JobId(paid["job"].bytes(32)), BaseUnits(amount)))
    return AccountPay(Address(fields["account"].bytes(20)), tuple(jobs))
