"""Where a contract keeps what, and whether deployed code is the shipped one. No web3.

Slots and packed fields come from the compiler's `storageLayout` in the shipped artifact, so that
nobody repeats them by hand. Deployed code equals the shipped runtime code everywhere but at the
immutables, whose values are read from it: so one trusted contract names the others.

Source: Solidity documentation, "Layout of State Variables in Storage".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from contracts.chain.artifacts import compiled
from contracts.terms.digest import keccak
from contracts.terms.errors import InvariantBroken, WrongBytes
from contracts.terms.ids import Address

_WORD = 32


@dataclass(frozen=True)
class Member:
    """One field of a stored value: which word, where in it, how long."""

    name: str  # empty for a value that is no struct
    word: int
    offset: int  # bytes from the low end
    size: int  # bytes


@dataclass(frozen=True)
class Place:
    """A stored value: its first slot and its fields."""

    slot: int
    members: tuple[Member, ...]

    @property
    def slots(self) -> tuple[int, ...]:
        """All slots of the value, in order."""
        num_words = 1 + max(member.word for member in self.members)
        return tuple((self.slot + word) % 2**256 for word in range(num_words))

    def read(self, words: Sequence[int]) -> dict[str, int]:
        """The fields in `words`, one per slot; a value that is no struct has the name ``""``."""
        return {
            member.name: words[member.word] >> 8 * member.offset & (1 << 8 * member.size) - 1
            for member in self.members
        }


@dataclass(frozen=True)
class Shipped:
    """A contract as we ship it: code that a chain must hold, and where its state lies."""

    name: str
    runtime: bytes
    immutables: Mapping[str, Sequence[int]]  # where in the code each 32-byte value stands
    layout: Mapping[str, Any]  # the compiler's storageLayout

    def place(self, label: str, *keys: bytes | int) -> Place:
        """Where the variable `label`, or its entry under mapping `keys`, is stored.

        Addresses and numbers are padded to a word, 32 bytes are taken as they are.
        """
        variable = next((each for each in self.layout["storage"] if each["label"] == label), None)
        if variable is None:
            raise InvariantBroken(f"{self.name} has no variable {label}")
        slot, kind = int(variable["slot"]), str(variable["type"])
        for key in keys:
            word = key.to_bytes(_WORD, "big") if isinstance(key, int) else key.rjust(_WORD, b"\0")
            slot = int.from_bytes(keccak(word + slot.to_bytes(_WORD, "big")), "big")
            kind = self.layout["types"][kind]["value"]
        return Place(slot, self._members(kind, int(variable["offset"]) if not keys else 0))

    def read_immutables(self, code: bytes) -> dict[str, bytes]:
        """Values of the immutables in deployed `code`, 32 bytes each.

        Raises:
            WrongBytes: the code is not the shipped one, or one value differs between its places.
        """
        if self._blank(code) != self._blank(self.runtime):
            raise WrongBytes(f"{self.name}: the code on chain is not the code that we ship")
        values: dict[str, bytes] = {}
        for name, starts in self.immutables.items():
            found = {code[start : start + _WORD] for start in starts}
            if len(found) != 1:
                raise WrongBytes(f"{self.name}: immutable {name} has several values")
            values[name] = found.pop()
        return values

    def _blank(self, code: bytes) -> bytes:
        blank = bytearray(code)
        for starts in self.immutables.values():
            for start in starts:
                blank[start : start + _WORD] = bytes(_WORD)
        return bytes(blank)

    def _members(self, kind: str, offset: int) -> tuple[Member, ...]:
        described = self.layout["types"][kind]
        fields = described.get("members")
        if fields is None:
            return (Member("", 0, offset, int(described["numberOfBytes"])),)
        return tuple(
            Member(
                field["label"],
                int(field["slot"]),
                int(field["offset"]),
                int(self.layout["types"][field["type"]]["numberOfBytes"]),
            )
            for field in fields
        )


def as_address(word: bytes) -> Address:
    """The address in a 32-byte immutable.

    Raises:
        WrongBytes: it is no padded address.
    """
    if len(word) != _WORD or any(word[:12]):
        raise WrongBytes("an immutable holds no address")
    return Address(word[12:])


@cache
def shipped(name: str) -> Shipped:
    """The shipped artifact of contract `name`, as proofs need it."""
    raw = compiled(name)
    return Shipped(
        name,
        bytes.fromhex(raw["deployedBytecode"].removeprefix("0x")),
        raw["immutableReferences"],
        raw["storageLayout"],
    )
