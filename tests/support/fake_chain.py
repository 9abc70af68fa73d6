"""A chain of dictionaries whose blocks prove their state like a real one: tries and headers.

It runs no code. A test writes what contracts would have stored, by the names of the shipped storage
layout, and takes proofs that verify. The oracle for tries is py-trie.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

import rlp
from trie.hexary import HexaryTrie

from contracts.chain.layout import Place, Shipped, shipped
from contracts.chain.proofs import EMPTY_NODE, HEADER_FIELDS, Header
from contracts.governance.escrow import EscrowTimes
from contracts.terms.digest import keccak
from contracts.terms.ids import Address, Digest
from contracts.terms.typed_data import Domain
from verification.audit.chain_proof import SHIPPED_AS, Nodes

SHIPS: dict[str, Shipped] = {name: shipped(kind) for name, kind in SHIPPED_AS.items()}


def _trie(values: Mapping[bytes, bytes]) -> HexaryTrie:
    trie = HexaryTrie({})
    for key, value in values.items():
        trie[keccak(key)] = value
    return trie


def _proof(trie: HexaryTrie, key: bytes) -> Nodes:
    path = trie.get_proof(keccak(key))  # type: ignore[no-untyped-call]  # py-trie has no types
    return tuple(rlp.encode(node) for node in path) or (EMPTY_NODE,)


@dataclass
class FakeChain:
    """Accounts with code and storage, and the blocks so far."""

    code: dict[Address, bytes] = field(default_factory=dict)
    storage: dict[Address, dict[int, int]] = field(default_factory=dict)
    headers: list[Header] = field(default_factory=list)

    def deploy(self, account: Address, code: bytes) -> None:
        """Put a contract there."""
        self.code[account] = code
        self.storage.setdefault(account, {})

    def write(self, account: Address, place: Place, **values: int) -> None:
        """Set fields of a stored value; a value that is no struct has the name `value`."""
        words = [self.storage[account].get(slot, 0) for slot in place.slots]
        for member in place.members:
            name = member.name or "value"
            if name in values:
                mask = (1 << 8 * member.size) - 1
                words[member.word] &= ~(mask << 8 * member.offset)
                words[member.word] |= (values[name] & mask) << 8 * member.offset
        for slot, word in zip(place.slots, words, strict=True):
            self.storage[account].pop(slot, None)
            if word:
                self.storage[account][slot] = word

    def mine(self, timestamp: int) -> Header:
        """Seal the present state into the next block."""
        number = len(self.headers)
        parent = self.headers[-1].hash if self.headers else Digest(bytes(32))
        values: dict[str, bytes] = {name: keccak(name.encode()) for name in HEADER_FIELDS}
        values |= {
            "parentHash": parent,
            "stateRoot": self._state().root_hash,
            "logsBloom": bytes(256),
            "difficulty": b"",
            "number": _big_endian(number),
            "timestamp": _big_endian(timestamp),
            "gasLimit": _big_endian(30_000_000),
            "gasUsed": b"",
            "baseFeePerGas": b"\x07",
            "blobGasUsed": b"",
            "excessBlobGas": b"",
            "extraData": b"",
            "nonce": bytes(8),
            "miner": bytes(20),
        }
        self.headers.append(Header(tuple(values[name] for name in HEADER_FIELDS)))
        return self.headers[-1]

    def prove(self, account: Address, slots: Iterable[int]) -> tuple[Nodes, list[Nodes]]:
        """Proofs of an account and of slots of it, in the present state."""
        storage = self._storage(account)
        proofs = [_proof(storage, slot.to_bytes(32, "big")) for slot in slots]
        return _proof(self._state(), account), proofs

    def _storage(self, account: Address) -> HexaryTrie:
        return _trie(
            {
                slot.to_bytes(32, "big"): rlp.encode(_big_endian(word))
                for slot, word in self.storage.get(account, {}).items()
            }
        )

    def _state(self) -> HexaryTrie:
        return _trie(
            {
                account: rlp.encode(
                    [b"\x01", b"", self._storage(account).root_hash, keccak(self.code[account])]
                )
                for account in self.code
            }
        )


def _big_endian(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


def contract_code(domain: Domain, times: EscrowTimes) -> dict[str, bytes]:
    """Code of one deployment: the shipped code with the immutables of its escrow."""
    texts = {"name": domain.name.encode(), "version": domain.version.encode()}
    words = {
        "_cachedChainId": domain.chain_id.to_bytes(32, "big"),
        "_cachedThis": domain.escrow.rjust(32, b"\0"),
        "_cachedDomainSeparator": domain.separator,
        "_hashedName": keccak(texts["name"]),
        "_hashedVersion": keccak(texts["version"]),
    }
    for name, text in texts.items():
        words[f"_{name}"] = text.ljust(31, b"\0") + bytes([len(text)])
    for name, seconds in asdict(times).items():
        words[name.upper()] = seconds.to_bytes(32, "big")
    for role in ("token", "slasher", "canceller"):
        words[role] = keccak(role.encode())[:20].rjust(32, b"\0")
    return {
        name: with_immutables(ship, {each: words[each] for each in ship.immutables})
        for name, ship in SHIPS.items()
    }


def with_immutables(contract: Shipped, values: Mapping[str, bytes]) -> bytes:
    """The code that a chain holds after deployment with these immutables, 32 bytes each."""
    code = bytearray(contract.runtime)
    for name, starts in contract.immutables.items():
        for start in starts:
            code[start : start + 32] = values[name]
    return bytes(code)


def rpc_block(header: Header) -> dict[str, object]:
    """The header as a node answers."""
    numbers = {"difficulty", "number", "gasLimit", "gasUsed", "timestamp", "baseFeePerGas",
               "blobGasUsed", "excessBlobGas"}  # fmt: skip
    shown: dict[str, object] = {"hash": f"0x{header.hash.hex()}"}
    for name, value in zip(HEADER_FIELDS, header.fields, strict=True):
        shown[name] = hex(int.from_bytes(value, "big")) if name in numbers else f"0x{value.hex()}"
    return shown
