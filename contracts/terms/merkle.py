"""Merkle trees: what is under a root, and how much it sums to.

Three families, domain-separated by a tag byte, so that a leaf of one is never a node of another:
plain keccak (messages of a seal, unit leaves, batches), one sum (settlement: who may claim how
much) and two sums (pay: earned and vested). Leaves are sorted strictly by key where the order
proves absence; a level with an odd node carries its last node up unchanged. Sums are uint96, 12
bytes big-endian; the Solidity twin is `SumTree.sol`, held equal by shared vectors.

Source: Merkle-sum trees (G. Maxwell's proof of liabilities, 2014); docs/protocol.md 1.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from contracts.terms.amounts import UINT96_MAX, BaseUnits
from contracts.terms.digest import keccak
from contracts.terms.errors import Malformed
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, JobId

FROZEN = Address(bytes(19) + b"\x01")
"""Reserved account of the pay tree: earned, and held by an open case."""
FORFEITED = Address(bytes(19) + b"\x02")
"""Reserved account of the pay tree: earned once, and lost."""

_SETTLEMENT_LEAF, _SUM_NODE, _PAY_LEAF, _PAY_NODE, _JOB_LEAF = b"\0", b"\1", b"\2", b"\3", b"\4"
_BATCH_LEAF, _PLAIN_NODE, _PLAIN_LEAF, _EARNED_LEAF = b"\5", b"\6", b"\7", b"\x08"


@dataclass(frozen=True)
class SumNode:
    """A node of a one-sum tree."""

    hash: Digest
    sum: BaseUnits


@dataclass(frozen=True)
class PayNode:
    """A node of a pay tree."""

    hash: Digest
    earned: BaseUnits
    vested: BaseUnits


def _wide(amount: int) -> bytes:
    if not 0 <= amount <= UINT96_MAX:
        raise Malformed(f"{amount} is no uint96")
    return amount.to_bytes(12, "big")


def settlement_leaf(account: Address, jobs_root: Digest, cumulative: BaseUnits) -> SumNode:
    """Leaf of an epoch's root: what `account` may have claimed in total, over all epochs."""
    return SumNode(keccak(_SETTLEMENT_LEAF + account + jobs_root + _wide(cumulative)), cumulative)


def job_leaf(job: JobId, cumulative: BaseUnits) -> SumNode:
    """Leaf of an account's tree of jobs: what `job` paid it in total."""
    return SumNode(keccak(_JOB_LEAF + job + _wide(cumulative)), cumulative)


def pay_leaf(account: Address, earned: BaseUnits, vested: BaseUnits) -> PayNode:
    """Leaf of a seal's pay tree: what `account` earned and what of it has vested."""
    return PayNode(keccak(_PAY_LEAF + account + _wide(earned) + _wide(vested)), earned, vested)


def batch_leaf(job: JobId, step: int, seal: Digest) -> Digest:
    """Leaf of an anchored batch."""
    return keccak(_BATCH_LEAF + job + step.to_bytes(8, "big") + seal)


def earned_leaf(account: Address, earned: BaseUnits, vested: BaseUnits) -> Digest:
    """Leaf of the pay tree that `PayEscrow` pays from; `PayTree.sol` is its twin.

    Raises:
        OverflowError: an amount has more than 80 bits.
    """
    amounts = earned.to_bytes(10, "big") + vested.to_bytes(10, "big")
    return keccak(_EARNED_LEAF + account + amounts)


def plain_leaf(data: bytes) -> Digest:
    """Leaf of a plain tree over digests or encoded records."""
    return keccak(_PLAIN_LEAF + data)


def sum_node(left: SumNode, right: SumNode) -> SumNode:
    """Parent of two one-sum nodes."""
    total = BaseUnits(left.sum + right.sum)
    data = _SUM_NODE + left.hash + _wide(left.sum) + right.hash + _wide(right.sum)
    _wide(total)
    return SumNode(keccak(data), total)


def pay_node(left: PayNode, right: PayNode) -> PayNode:
    """Parent of two pay nodes."""
    words = (
        left.hash, _wide(left.earned), _wide(left.vested),
        right.hash, _wide(right.earned), _wide(right.vested),
    )  # fmt: skip
    earned, vested = left.earned + right.earned, left.vested + right.vested
    _wide(earned), _wide(vested)
    return PayNode(keccak(_PAY_NODE + b"".join(words)), BaseUnits(earned), BaseUnits(vested))


def plain_node(left: Digest, right: Digest) -> Digest:
    """Parent of two plain nodes."""
    return keccak(_PLAIN_NODE + left + right)


EMPTY_SUM = SumNode(ZERO_DIGEST, BaseUnits(0))
EMPTY_PAY = PayNode(ZERO_DIGEST, BaseUnits(0), BaseUnits(0))

N = TypeVar("N")


@dataclass(frozen=True)
class Proof(Generic[N]):
    """Path from a leaf to the root: siblings bottom-up, True where the sibling is on the left."""

    siblings: tuple[tuple[N, bool], ...]


def root(leaves: Sequence[N], join: Callable[[N, N], N], empty: N) -> N:
    """Root of `leaves` in order; `empty` for none."""
    return levels(leaves, join)[-1][0] if leaves else empty


def levels(leaves: Sequence[N], join: Callable[[N, N], N]) -> list[list[N]]:
    """All levels, leaves first, root last."""
    built = [list(leaves)]
    while len(built[-1]) > 1:
        level = built[-1]
        paired = [join(*level[i : i + 2]) for i in range(0, len(level) - 1, 2)]
        built.append(paired + level[len(level) & ~1 :])
    return built


def prove(leaves: Sequence[N], index: int, join: Callable[[N, N], N]) -> Proof[N]:
    """Path of leaf `index`. A node that is carried up has no sibling on that level."""
    return path_in(levels(leaves, join), index)


def prove_all(leaves: Sequence[N], join: Callable[[N, N], N]) -> list[Proof[N]]:
    """Paths of all leaves, in order; the tree is built once."""
    built = levels(leaves, join)
    return [path_in(built, index) for index in range(len(leaves))]


def path_in(built: Sequence[Sequence[N]], index: int) -> Proof[N]:
    """Path of node `index` of the lowest level of `built`, which `levels` has made."""
    siblings: list[tuple[N, bool]] = []
    for level in built[:-1]:
        sibling = index ^ 1
        if sibling < len(level):
            siblings.append((level[sibling], sibling < index))
        index //= 2
    return Proof(tuple(siblings))


def fold(leaf: N, proof: Proof[N], join: Callable[[N, N], N]) -> N:
    """The root that `leaf` and `proof` lead to."""
    node = leaf
    for sibling, is_left in proof.siblings:
        node = join(sibling, node) if is_left else join(node, sibling)
    return node


def plain_root(leaves: Sequence[bytes]) -> Digest:
    """Root of a plain tree over `leaves` (digests or encoded records), in the given order."""
    return root([plain_leaf(leaf) for leaf in leaves], plain_node, ZERO_DIGEST)


def batch_root(entries: Sequence[tuple[JobId, int, Digest]]) -> Digest:
    """Root of a batch of (job, step, seal digest).

    Raises:
        Malformed: entries are not sorted strictly by (job, step).
    """
    keys = [(job, step) for job, step, _ in entries]
    if any(a >= b for a, b in itertools.pairwise(keys)):
        raise Malformed("batch entries must be sorted by job and step, each once")
    return root([batch_leaf(*entry) for entry in entries], plain_node, ZERO_DIGEST)
