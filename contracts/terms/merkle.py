"""Merkle trees: what is under a root.

A tag byte separates leaves of each family and nodes, so that none is ever taken for another: pay
of a seal, batches of seals, everything else (messages of a seal, unit leaves). An odd node moves up
unchanged. `PayTree.sol` is the twin of the pay tree, held equal by shared vectors.
Source: docs/protocol.md 1.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import keccak
from contracts.terms.errors import Malformed
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, JobId

_BATCH_LEAF, _PLAIN_NODE, _PLAIN_LEAF, _EARNED_LEAF = b"\5", b"\6", b"\7", b"\x08"


def batch_leaf(job: JobId, step: int, seal: Digest) -> Digest:
    """Leaf of an anchored batch."""
    return keccak(_BATCH_LEAF + job + step.to_bytes(8, "big") + seal)


def earned_leaf(account: Address, earned: BaseUnits, vested: BaseUnits) -> Digest:
    """Leaf of the pay tree that `JobEscrow` pays from; `PayTree.sol` is its twin.

    Raises:
        OverflowError: an amount has more than 80 bits.
    """
    amounts = earned.to_bytes(10, "big") + vested.to_bytes(10, "big")
    return keccak(_EARNED_LEAF + account + amounts)


def plain_leaf(data: bytes) -> Digest:
    """Leaf of a plain tree over digests or encoded records."""
    return keccak(_PLAIN_LEAF + data)


def plain_node(left: Digest, right: Digest) -> Digest:
    """Parent of two plain nodes."""
    return keccak(_PLAIN_NODE + left + right)


@dataclass(frozen=True)
class Proof:
    """Path from a leaf to the root: siblings bottom-up, True where the sibling is on the left."""

    siblings: tuple[tuple[Digest, bool], ...]


def root(leaves: Sequence[Digest]) -> Digest:
    """Root of `leaves` in order; zero for none."""
    return levels(leaves)[-1][0] if leaves else ZERO_DIGEST


def levels(leaves: Sequence[Digest]) -> list[list[Digest]]:
    """All levels, leaves first, root last."""
    built = [list(leaves)]
    while len(built[-1]) > 1:
        level = built[-1]
        paired = [plain_node(*level[i : i + 2]) for i in range(0, len(level) - 1, 2)]
        built.append(paired + level[len(level) & ~1 :])
    return built


def prove(leaves: Sequence[Digest], index: int) -> Proof:
    """Path of leaf `index`. A node that is carried up has no sibling on that level."""
    return path_in(levels(leaves), index)


def prove_all(leaves: Sequence[Digest]) -> list[Proof]:
    """Paths of all leaves, in order; the tree is built once."""
    built = levels(leaves)
    return [path_in(built, index) for index in range(len(leaves))]


def path_in(built: Sequence[Sequence[Digest]], index: int) -> Proof:
    """Path of node `index` of the lowest level of `built`, which `levels` has made."""
    siblings: list[tuple[Digest, bool]] = []
    for level in built[:-1]:
        sibling = index ^ 1
        if sibling < len(level):
            siblings.append((level[sibling], sibling < index))
        index //= 2
    return Proof(tuple(siblings))


def fold(leaf: Digest, proof: Proof) -> Digest:
    """The root that `leaf` and `proof` lead to."""
    node = leaf
    for sibling, is_left in proof.siblings:
        node = plain_node(sibling, node) if is_left else plain_node(node, sibling)
    return node


def plain_root(leaves: Sequence[bytes]) -> Digest:
    """Root of a plain tree over `leaves` (digests or encoded records), in the given order."""
    return root([plain_leaf(leaf) for leaf in leaves])


def batch_root(entries: Sequence[tuple[JobId, int, Digest]]) -> Digest:
    """Root of a batch of (job, step, seal digest).

    Raises:
        Malformed: entries are not sorted strictly by (job, step).
    """
    keys = [(job, step) for job, step, _ in entries]
    if any(a >= b for a, b in itertools.pairwise(keys)):
        raise Malformed("batch entries must be sorted by job and step, each once")
    return root([batch_leaf(*entry) for entry in entries])
