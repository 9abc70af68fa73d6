"""What one block proves about a job: code, wiring, limits, claims, stakes, anchor chain. Pure.

A proof is a header, and below its state root the accounts of our contracts with the storage that
concerns the job. Its block hash is what the reader got himself. Which slots are proved follows from
the job, so the file cannot choose. A node without `eth_getProof` proves nothing: then there is a
header alone, and the file says so.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from contracts.chain.layout import Place, Shipped, as_address
from contracts.chain.proofs import AccountState, Header, prove_account, prove_slot
from contracts.governance.escrow import Channel, EscrowTimes
from contracts.terms.auditors import AuditorList
from contracts.terms.digest import keccak
from contracts.terms.history import Kept
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.messages import LeaseAccept
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from verification.reading import Field, at, mismatch, require

SHIPPED_AS = {"escrow": "JobEscrow", "seals": "SealAnchor"}
"""Contracts whose code is proved, and the artifact that it must equal."""

TIMES = ("MARGIN", "ANNOUNCE", "EXECUTE", "TAIL")

Nodes = tuple[bytes, ...]
Ships = Mapping[str, Shipped]


@dataclass(frozen=True)
class ContractProof:
    """Trie nodes that prove a contract's account, and each slot of each value in it."""

    account: Nodes
    storage: Mapping[str, tuple[Nodes, ...]]


@dataclass(frozen=True)
class ChainProof:
    """One block, as the file shows it; without contracts where the node proves no storage."""

    header: Header
    contracts: Mapping[str, ContractProof] | None


@dataclass(frozen=True)
class Wiring:
    """Where the contracts are, and what the escrow's code says: its token, roles and times."""

    addresses: Mapping[str, Address]
    token: Address
    slasher: Address
    canceller: Address
    times: EscrowTimes


@dataclass(frozen=True)
class ChainFacts:
    """Values that a block proves; jobs and anchor chain in the contracts' own names."""

    job: Mapping[str, int]
    channels: Mapping[Address, Channel]
    anchor_chain: Mapping[str, int]


def claimants(items: Iterable[Kept]) -> tuple[Address, ...]:
    """Whom a job may pay, by its history: every lease, and all that may audit it from outside."""
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
    """What a proof of `job` shows: per contract, named places in its storage."""
    escrow = ships["escrow"]
    places = {"jobs": escrow.place("jobs", job)}
    for account in sorted(set(accounts)):
        for label in ("granted", "bonds"):
            places[_of(label, account)] = escrow.place(label, job, account)
    return {
        "escrow": places,
        "seals": {"anchor_chain": ships["seals"].place("_anchorChains", anchorer)},
    }


def read_chain_proof(field: Field) -> ChainProof:
    """A proof as the file shows it. Nothing is checked but its form."""
    fields = field.record("header", "contracts")
    header = Header(tuple(each.bytes() for each in fields["header"].list()))
    require(15 <= len(header.fields) <= 21, fields["header"].path, "no block header")
    if fields["contracts"].value is None:
        return ChainProof(header, None)
    contracts = fields["contracts"].record(*SHIPPED_AS)
    return ChainProof(header, {name: _read_contract(each) for name, each in contracts.items()})


def chain_proof_value(proof: ChainProof) -> dict[str, object]:
    """`proof` as the file holds it."""
    return {
        "header": list(proof.header.fields),
        "contracts": None
        if proof.contracts is None
        else {
            name: {
                "account": list(each.account),
                "storage": {
                    place: [list(nodes) for nodes in slots] for place, slots in each.storage.items()
                },
            }
            for name, each in proof.contracts.items()
        },
    }


def check_wiring(
    ships: Ships, code: Mapping[str, bytes], domain: Domain, seals: Address, path: str = "code"
) -> Wiring:
    """Check that all code is ours, and that the escrow's is that of `domain`.

    Raises:
        AuditMismatch: it is not; data: `path`.
    """
    values: dict[str, Mapping[str, bytes]] = {}
    for name in SHIPPED_AS:
        with at(f"{path}/{name}"):
            values[name] = ships[name].read_immutables(code[name])
    own, where = values["escrow"], f"{path}/escrow"
    chain_id = domain.chain_id.to_bytes(32, "big")
    require(own["_cachedChainId"] == chain_id, "chain/chain_id", "other chain")
    expected = {
        "_cachedThis": domain.escrow.rjust(32, b"\0"),
        "_cachedDomainSeparator": domain.separator,
        "_hashedName": keccak(domain.name.encode()),
        "_hashedVersion": keccak(domain.version.encode()),
        "_name": _short_string(domain.name),
        "_version": _short_string(domain.version),
    }
    for immutable, value in expected.items():
        require(own[immutable] == value, where, f"{immutable} is of another deployment")
    with at(where):
        token, slasher, canceller = (
            as_address(own[name]) for name in ("token", "slasher", "canceller")
        )
    times = EscrowTimes(*(int.from_bytes(own[name], "big") for name in TIMES))
    addresses = {"escrow": domain.escrow, "seals": seals}
    return Wiring(addresses, token, slasher, canceller, times)


def check_contracts(
    header: Header,
    contracts: Mapping[str, ContractProof],
    addresses: Mapping[str, Address],
    path: str,
) -> dict[str, AccountState]:
    """The state of each contract that the block proves.

    Raises:
        AuditMismatch: it proves none; data: `path`.
    """
    states: dict[str, AccountState] = {}
    for name, proof in contracts.items():
        where = f"{path}/{name}/account"
        with at(where):
            state = prove_account(header.state_root, addresses[name], proof.account)
        if state is None:
            mismatch(where, "there is no such contract")
        states[name] = state
    return states


def read_facts(
    contracts: Mapping[str, ContractProof],
    states: Mapping[str, AccountState],
    places: WantedPlaces,
    path: str,
) -> ChainFacts:
    """Prove every wanted value, and no other, and read it.

    Raises:
        AuditMismatch: a proof is missing, left over or wrong; data: `path`.
    """
    read: dict[str, dict[str, dict[str, int]]] = {}
    for contract, wanted in places.items():
        where, proofs = f"{path}/{contract}/storage", contracts[contract].storage
        require(set(proofs) == set(wanted), where, f"expected exactly {', '.join(wanted)}")
        read[contract] = {
            name: _prove(place, states[contract].storage_root, proofs[name], f"{where}/{name}")
            for name, place in wanted.items()
        }
    escrow = read["escrow"]
    accounts = [
        Address(bytes.fromhex(name.removeprefix("bonds ")))
        for name in escrow
        if name.startswith("bonds ")
    ]
    channels = {each: _channel(escrow, each) for each in accounts}
    return ChainFacts(escrow["jobs"], channels, read["seals"]["anchor_chain"])


def _channel(escrow: Mapping[str, Mapping[str, int]], account: Address) -> Channel:
    granted, bond = escrow[_of("granted", account)], escrow[_of("bonds", account)]
    return Channel(
        limit=granted["limit"],
        claimed=granted["claimed"],
        earned=granted["earned"],
        stake=bond["stake"],
        end=bond["end"],
        slash_amount=bond["slashAmount"],
        slash_from=bond["slashFrom"],
    )


def _of(label: str, account: Address) -> str:
    return f"{label} {account.hex()}"


def _short_string(text: str) -> bytes:
    """As OpenZeppelin's ShortStrings keeps it: the text, and its length in the last byte."""
    return text.encode().ljust(31, b"\0") + bytes([len(text)])


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
    if not isinstance(storage.value, dict):
        mismatch(storage.path, "expected named values")
    return ContractProof(
        _nodes(fields["account"]),
        {
            name: tuple(_nodes(slot) for slot in storage.child(name, value).list())
            for name, value in storage.value.items()
        },
    )
