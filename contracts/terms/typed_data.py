"""EIP-712: what a wallet signs, so that a contract can check it.

A message class that is wallet-signed names its struct once, as a `TypedStruct`. `JobEscrow.sol` has
the same type strings for what it checks, and shared vectors hold the two equal. A struct hash is
the keccak of its type hash and a word for each field; an array's word is the keccak of its words.

Every message uses one domain, bound to JobEscrow, whether a contract checks it or people do.
Source: EIP-712, https://eips.ethereum.org/EIPS/eip-712.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pydantic.alias_generators import to_snake

from contracts.terms.digest import keccak
from contracts.terms.errors import Malformed
from contracts.terms.ids import Address, Digest


def _word(solidity_type: str, value: object) -> bytes:
    if solidity_type.endswith("[]") and isinstance(value, tuple):
        return keccak(b"".join(_word(solidity_type[:-2], each) for each in value))
    if solidity_type == "bool" and isinstance(value, bool):
        return int(value).to_bytes(32, "big")
    if solidity_type == "address" and isinstance(value, bytes) and len(value) == 20:
        return value.rjust(32, b"\0")
    if solidity_type == "bytes32" and isinstance(value, bytes) and len(value) == 32:
        return value
    is_uint = solidity_type.startswith("uint") and solidity_type[4:].isdigit()
    if is_uint and isinstance(value, int) and 0 <= value < 1 << int(solidity_type[4:]):
        return value.to_bytes(32, "big")
    raise Malformed(f"{value!r} is no {solidity_type}")


@dataclass(frozen=True)
class TypedStruct:
    """Name and fields of an EIP-712 struct: pairs of (Solidity type, camelCase name)."""

    name: str
    fields: tuple[tuple[str, str], ...]

    @cached_property
    def type_string(self) -> str:
        """The string whose keccak is the type hash."""
        return f"{self.name}({','.join(f'{kind} {name}' for kind, name in self.fields)})"

    @cached_property
    def attributes(self) -> tuple[str, ...]:
        """What the fields are called in Python."""
        return tuple(to_snake(name) for _, name in self.fields)

    @cached_property
    def type_hash(self) -> Digest:
        """keccak of the type string."""
        return keccak(self.type_string.encode())

    def hash(self, values: Sequence[object]) -> Digest:
        """Struct hash of `values`, one per field in order.

        Raises:
            Malformed: a value does not fit its Solidity type.
        """
        words = (_word(kind, value) for (kind, _), value in zip(self.fields, values, strict=True))
        return keccak(self.type_hash + b"".join(words))


_DOMAIN_TYPE_HASH = keccak(
    b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
)


def signing_digest(separator: Digest, struct_hash: Digest) -> Digest:
    """What a wallet signs for a struct hash under a domain separator."""
    return keccak(b"\x19\x01" + separator + struct_hash)


@dataclass(frozen=True)
class WalletDomain:
    """Where a signature holds: one contract on one chain, as a wallet shows it to its owner."""

    name: str
    version: str
    chain_id: int
    contract: Address

    @cached_property
    def separator(self) -> Digest:
        """EIP-712 domain separator."""
        words = (
            keccak(self.name.encode()),
            keccak(self.version.encode()),
            _word("uint256", self.chain_id),
            _word("address", self.contract),
        )
        return keccak(_DOMAIN_TYPE_HASH + b"".join(words))

    def signing_digest(self, struct_hash: Digest) -> Digest:
        """What the wallet signs for a struct hash."""
        return signing_digest(self.separator, struct_hash)


class Domain(WalletDomain):
    """The domain of all messages: one chain, one JobEscrow."""

    def __init__(self, chain_id: int, escrow: Address) -> None:
        super().__init__("Tallystick", "2", chain_id, escrow)

    @property
    def escrow(self) -> Address:
        """The contract."""
        return self.contract


JOB_OPENING = TypedStruct(
    "JobOpening",
    (
        ("bytes32", "job"),
        ("bytes32", "sessionKey"),
        ("address", "anchorer"),
        ("uint64", "openingBlock"),
        ("bytes32", "details"),
    ),
)
OFFER = TypedStruct(
    "Offer",
    (
        ("address", "account"),
        ("bytes32", "sessionKey"),
        ("uint64", "price"),
        ("uint64", "expiresAt"),
        ("bytes32", "details"),
    ),
)
LEASE_ACCEPT = TypedStruct(
    "LeaseAccept",
    (
        ("bytes32", "job"),
        ("address", "account"),
        ("bytes32", "sessionKey"),
        ("uint64", "price"),
        ("uint96", "stake"),
        ("bytes32", "details"),
    ),
)
SEAL = TypedStruct("Seal", (("bytes32", "job"), ("bytes32", "payRoot"), ("bytes32", "details")))
JOB_HEADER = TypedStruct(
    "JobHeader",
    (
        ("address", "poster"),
        ("address", "coordinator"),
        ("bytes32", "specHash"),
        ("uint80", "budget"),
        ("uint80", "burst"),
        ("uint80", "rate"),
        ("uint40", "openBy"),
        ("uint256", "salt"),
    ),
)
GRANT = TypedStruct("Grant", (("bytes32", "job"), ("uint256[]", "limits"), ("uint40", "by")))
BOND = TypedStruct(
    "Bond", (("bytes32", "job"), ("address", "account"), ("uint80", "stake"), ("uint40", "by"))
)
QUIT = TypedStruct(
    "Quit", (("bytes32", "job"), ("address", "account"), ("uint80", "keep"), ("uint40", "by"))
)
END = TypedStruct("End", (("bytes32", "job"), ("address[]", "accounts"), ("uint40", "by")))
CLOSE = TypedStruct("Close", (("bytes32", "job"), ("uint40", "by")))
WITHDRAW = TypedStruct(
    "Withdraw",
    (
        ("address", "account"),
        ("uint96", "amount"),
        ("uint96", "fee"),
        ("uint32", "nonce"),
        ("uint40", "by"),
    ),
)
PERMIT = TypedStruct(
    "Permit",
    (
        ("address", "owner"),
        ("address", "spender"),
        ("uint256", "value"),
        ("uint256", "nonce"),
        ("uint256", "deadline"),
    ),
)
"""EIP-2612, signed under the token's own domain, not ours."""


_DOMAIN_FIELDS = (
    ("string", "name"),
    ("string", "version"),
    ("uint256", "chainId"),
    ("address", "verifyingContract"),
)


def wallet_request(
    struct: TypedStruct, values: Sequence[object], domain: WalletDomain
) -> dict[str, object]:
    """The JSON of `eth_signTypedData_v4` (EIP-1193 wallets); integers as text, bytes as 0x hex.

    Raises:
        Malformed: a value does not fit its Solidity type.
    """
    struct.hash(values)
    fields = {"EIP712Domain": _DOMAIN_FIELDS, struct.name: struct.fields}
    named = zip(struct.fields, values, strict=True)
    return {
        "types": {
            name: [{"name": field, "type": kind} for kind, field in pairs]
            for name, pairs in fields.items()
        },
        "primaryType": struct.name,
        "domain": {
            "name": domain.name,
            "version": domain.version,
            "chainId": str(domain.chain_id),
            "verifyingContract": f"0x{domain.contract.hex()}",
        },
        "message": {field: _shown(value) for (_, field), value in named},
    }


def _shown(value: object) -> object:
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return value if isinstance(value, bool) else str(value)
