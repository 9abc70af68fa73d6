"""What a block hash proves about accounts and storage, with nobody to ask. No web3, no network.

A block hash fixes the header's fields, the header fixes the state root, the state root fixes each
account by a path of trie nodes, and an account fixes its storage the same way. Proofs come from
`eth_getProof`; every node given must be needed, so that no byte of a proof can be altered.

Source: Ethereum yellow paper, appendix D; EIP-1186. Two traps: slots are padded to 32 bytes, and an
empty trie's proof is one node 0x80.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import rlp
from rlp.exceptions import RLPException

from contracts.terms.digest import keccak
from contracts.terms.errors import Malformed, WrongBytes
from contracts.terms.ids import Address, Digest

EMPTY_NODE = b"\x80"
EMPTY_TRIE = keccak(EMPTY_NODE)
EMPTY_CODE = keccak(b"")

HEADER_FIELDS = (
    "parentHash", "sha3Uncles", "miner", "stateRoot", "transactionsRoot", "receiptsRoot",
    "logsBloom", "difficulty", "number", "gasLimit", "gasUsed", "timestamp", "extraData",
    "mixHash", "nonce", "baseFeePerGas", "withdrawalsRoot", "blobGasUsed", "excessBlobGas",
    "parentBeaconBlockRoot", "requestsHash",
)  # fmt: skip
"""Names of a header's fields in their order; a chain of an older fork has fewer."""
_INTEGERS = {
    "difficulty", "number", "gasLimit", "gasUsed", "timestamp", "baseFeePerGas", "blobGasUsed",
    "excessBlobGas",
}  # fmt: skip
_NUM_OLDEST_FIELDS = 15

Node: TypeAlias = "bytes | list[Node]"


@dataclass(frozen=True)
class Header:
    """A block header as the byte strings that its hash is over."""

    fields: tuple[bytes, ...]

    @property
    def hash(self) -> Digest:
        """The block hash."""
        return keccak(rlp.encode(list(self.fields)))

    @property
    def number(self) -> int:
        """The block number."""
        return int.from_bytes(self.fields[HEADER_FIELDS.index("number")], "big")

    @property
    def timestamp(self) -> int:
        """The block's moment, Unix seconds."""
        return int.from_bytes(self.fields[HEADER_FIELDS.index("timestamp")], "big")

    @property
    def state_root(self) -> Digest:
        """Root of the state after the block."""
        return Digest(self.fields[HEADER_FIELDS.index("stateRoot")])

    @classmethod
    def from_rpc(cls, block: Mapping[str, Any]) -> "Header":
        """The header in an answer of `eth_getBlockByNumber`.

        Raises:
            Malformed: a field is missing or no hex string.
            WrongBytes: the fields do not hash to the answer's own hash.
        """
        try:
            present = [name for name in HEADER_FIELDS if block.get(name) is not None]
            header = cls(tuple(_header_field(name, str(block[name])) for name in present))
            claimed = bytes.fromhex(str(block["hash"])[2:])
        except (KeyError, ValueError) as error:
            raise Malformed(f"no block header: {error}") from error
        if len(present) < _NUM_OLDEST_FIELDS or header.hash != claimed:
            raise WrongBytes(
                "the header's fields do not hash to its hash",
                expected=claimed.hex(),
                actual=header.hash.hex(),
            )
        return header


def _header_field(name: str, text: str) -> bytes:
    if name in _INTEGERS:
        value = int(text, 16)
        return value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes.fromhex(text[2:])


@dataclass(frozen=True)
class AccountState:
    """What the state holds of an account."""

    nonce: int
    balance: int  # wei
    storage_root: Digest
    code_hash: Digest


def prove_account(
    state_root: Digest, account: Address, nodes: Sequence[bytes]
) -> AccountState | None:
    """The account under `state_root`, or None where the nodes prove that there is none.

    Raises:
        WrongBytes: the nodes do not lead from the root to the account or to its absence.
    """
    value = prove_value(state_root, account, nodes)
    if value is None:
        return None
    fields = _decode(value)
    if not isinstance(fields, list) or len(fields) != 4:
        raise WrongBytes("the trie holds no account there")
    nonce, balance, storage_root, code_hash = (_text(field) for field in fields)
    return AccountState(
        int.from_bytes(nonce, "big"),
        int.from_bytes(balance, "big"),
        Digest(storage_root),
        Digest(code_hash),
    )


def prove_slot(storage_root: Digest, slot: int, nodes: Sequence[bytes]) -> int:
    """The 32-byte word in `slot`, as an integer; 0 where the nodes prove that nothing is stored.

    Raises:
        WrongBytes: the nodes do not lead from the root to the slot or to its absence.
    """
    value = prove_value(storage_root, slot.to_bytes(32, "big"), nodes)
    return 0 if value is None else int.from_bytes(_text(_decode(value)), "big")


def prove_value(root: Digest, key: bytes, nodes: Sequence[bytes]) -> bytes | None:
    """The value under keccak(key) in the trie of `root`; None where its absence is proved.

    Args:
        root: keccak of the first node.
        key: 20 bytes of an account, or 32 bytes of a slot; hashed here.
        nodes: RLP of the nodes on the path, from the root down, none else.

    Raises:
        WrongBytes: a node is missing, unneeded, or not the one that its parent names.
    """
    path = keccak(key).hex()  # one character a nibble
    remaining = list(nodes)
    node = _resolve(root, remaining)
    while True:
        step = _descend(node, path)
        if step is None or isinstance(step, bytes):
            if remaining:
                raise WrongBytes("the proof has more nodes than its path needs")
            return step
        path, child = step
        node = _resolve(child, remaining)


_Step: TypeAlias = "tuple[str, Node] | bytes | None"


def _descend(node: Node, path: str) -> _Step:
    """What `node` says of `path`: the rest and the child to go on with, a value, or absence."""
    if node == b"":
        return None
    if not isinstance(node, list) or len(node) not in (2, 17):
        raise WrongBytes("no trie node")
    if len(node) == 17:
        child = node[int(path[0], 16)] if path else node[16]
        if child == b"":
            return None
        return (path[1:], child) if path else _text(child)
    prefix, is_leaf = _prefix(_text(node[0]))
    if is_leaf:
        return _text(node[1]) if prefix == path else None
    return (path[len(prefix) :], node[1]) if path.startswith(prefix) else None


def _prefix(compact: bytes) -> tuple[str, bool]:
    """Nibbles of a short node's key, and whether it is a leaf (hex-prefix encoding)."""
    text = compact.hex()
    if not text or text[0] not in "0123":
        raise WrongBytes("no hex-prefix encoding")
    flag = int(text[0])
    return text[1 if flag & 1 else 2 :], flag >= 2


def _resolve(reference: Node, remaining: list[bytes]) -> Node:
    """The node that a parent names: by its hash, or itself where it is shorter than one."""
    if isinstance(reference, list):
        return reference
    if len(reference) != 32:
        raise WrongBytes("a child is neither a hash nor a node")
    if not remaining:
        raise WrongBytes("the proof ends before its path", expected=reference.hex())
    raw = remaining.pop(0)
    if keccak(raw) != reference:
        raise WrongBytes(
            "a node is not the one that its parent names",
            expected=reference.hex(),
            actual=keccak(raw).hex(),
        )
    return _decode(raw)


def _decode(raw: bytes) -> Node:
    try:
        node: Node = rlp.decode(raw)
    except RLPException as error:
        raise WrongBytes(f"no RLP: {error}") from error
    return node


def _text(node: Node) -> bytes:
    if not isinstance(node, bytes):
        raise WrongBytes("a list where bytes belong")
    return node
