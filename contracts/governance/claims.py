"""How a seal's pay tree is shown to the escrow: one leaf with its path, or whole subtrees. Pure.

A leaf is (account, earned, vested), cumulative in the job; leaves stand in ascending order of the
account. A claim for many shows subtrees of up to 256 leaves, which share one path. Amounts are base
units. A `SealedPay` is all that its holder needs to claim for everybody, with nobody's help: each
member keeps the newest as `pay.bin`. Source: contracts/solidity/README.md.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from contracts.governance.pay import PayLeaf
from contracts.terms import merkle
from contracts.terms.amounts import BaseUnits, BaseUnitsField
from contracts.terms.encoding import Value, decode, encode
from contracts.terms.errors import Malformed, NotFound
from contracts.terms.ids import ZERO_DIGEST, Address, AddressField, Digest
from contracts.terms.messages import Record, Seal
from contracts.terms.signatures import Signed, decode_signed, expect

LEVELS = 8
SUBTREE = 2**LEVELS
"""Leaves in one call: 256 first claims take 8.2 M gas, and a transaction has 16.8 M (EIP-7825)."""


@dataclass(frozen=True)
class Path:
    """From a node of the tree to its root."""

    sides: int  # bit i: the i-th sibling, from below, stands on the left
    siblings: tuple[Digest, ...]


@dataclass(frozen=True)
class Subtree:
    """Leaves that are claimed together."""

    leaves: tuple[PayLeaf, ...]
    path: Path

    def packed(self) -> bytes:
        """As the contract reads them: 40 bytes each."""
        return b"".join(
            leaf.account + leaf.earned.to_bytes(10, "big") + leaf.vested.to_bytes(10, "big")
            for leaf in self.leaves
        )


@dataclass(frozen=True)
class PayTree:
    """The tree over `leaves`.

    Raises:
        Malformed: they do not ascend by account, each once; one is empty, or vests more than it
            earned.
    """

    leaves: tuple[PayLeaf, ...]

    def __post_init__(self) -> None:
        previous = b""
        for leaf in self.leaves:
            if leaf.account <= previous:
                raise Malformed("pay leaves must be sorted by account, each once")
            if not 0 <= leaf.vested <= leaf.earned or leaf.earned == 0:
                raise Malformed(f"0x{leaf.account.hex()}: vests {leaf.vested} of {leaf.earned}")
            previous = leaf.account

    @cached_property
    def _levels(self) -> list[list[Digest]]:
        hashes = [
            merkle.earned_leaf(each.account, each.earned, each.vested) for each in self.leaves
        ]
        return merkle.levels(hashes)

    @property
    def root(self) -> Digest:
        """What the seal signs; zero for no leaves."""
        return self._levels[-1][0] if self.leaves else ZERO_DIGEST

    def prove(self, account: Address) -> tuple[PayLeaf, Path]:
        """The leaf of an account and its path.

        Raises:
            NotFound: the account earned nothing.
        """
        for index, leaf in enumerate(self.leaves):
            if leaf.account == account:
                return leaf, _path(self._levels, index)
        raise NotFound(f"0x{account.hex()} earned nothing in this job")

    def subtrees(self, accounts: Collection[Address] | None = None) -> list[Subtree]:
        """The fewest calls that pay `accounts`, or everybody; one account is cheaper by `prove`."""
        wanted = None if accounts is None else frozenset(accounts)
        upper = self._levels[min(LEVELS, len(self._levels) - 1) :]
        found = list[Subtree]()
        for index, start in enumerate(range(0, len(self.leaves), SUBTREE)):
            leaves = self.leaves[start : start + SUBTREE]
            if wanted is None or any(leaf.account in wanted for leaf in leaves):
                found.append(Subtree(leaves, _path(upper, index)))
        return found


def _path(levels: Sequence[Sequence[Digest]], index: int) -> Path:
    proof = merkle.path_in(levels, index)
    sides = sum(1 << place for place, (_, is_left) in enumerate(proof.siblings) if is_left)
    return Path(sides, tuple(sibling for sibling, _ in proof.siblings))


@dataclass(frozen=True)
class SealedPay:
    """A seal with the pay that its root stands for."""

    seal: Signed[Seal]
    pay: tuple[PayLeaf, ...]
    forfeited: Mapping[Address, int] = field(default_factory=dict)
    """What accounts have lost of it by verdicts, as who derived the seal found."""
    left_out: int = 0
    """Rounds in a row, up to it, in which its holder worked and no seal counted any of that."""

    def encoded(self) -> bytes:
        """Canonical bytes."""
        rows: list[Value] = [
            _Row(
                account=leaf.account,
                earned=leaf.earned,
                vested=leaf.vested,
                forfeited=BaseUnits(self.forfeited.get(leaf.account, 0)),
            ).value()
            for leaf in self.pay
        ]
        return encode({"seal": self.seal.encoded(), "pay": rows, "left_out": self.left_out})


class _Row(Record):
    account: AddressField
    earned: BaseUnitsField
    vested: BaseUnitsField
    forfeited: BaseUnitsField


def decode_sealed_pay(data: bytes) -> SealedPay:
    """The seal and its pay that `data` spells; whether they were signed is not checked.

    Raises:
        Malformed: it spells none, or the leaves are not those of the seal's root.
    """
    match decode(data):
        case {"seal": bytes(seal), "pay": list(pay), "left_out": int(left_out), **rest} if not rest:
            rows = [_Row.from_value(each) for each in pay]
            leaves = tuple(PayLeaf(each.account, each.earned, each.vested) for each in rows)
            forfeited = {each.account: each.forfeited for each in rows if each.forfeited}
            found = SealedPay(expect(decode_signed(seal), Seal), leaves, forfeited, left_out)
            if PayTree(leaves).root != found.seal.message.pay_root:
                raise Malformed("the leaves are not those that the seal signs")
            return found
    raise Malformed("no pay of a seal")
