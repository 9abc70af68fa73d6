"""Fold an anchor chain of SealAnchor: one 32-byte slot that fixes all batches and beacons. Pure.

chain' = keccak(chain, root, block) when a batch is anchored; chain'' = keccak(chain', beacon) when
the hash of that block is recorded (docs/protocol.md 4). Only the newest batch may lack its beacon.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from contracts.terms.digest import keccak
from contracts.terms.errors import Malformed
from contracts.terms.ids import ZERO_DIGEST, Digest


@dataclass(frozen=True)
class AnchoredBatch:
    """One step of an anchor chain."""

    root: Digest
    block: int
    beacon: Digest | None  # hash of that block; None: not recorded yet; zero: recorded too late


def anchored(anchor_chain: Digest, root: Digest, block: int) -> Digest:
    """The anchor chain after `anchor(root)` in `block`."""
    return keccak(anchor_chain + root + block.to_bytes(8, "big"))


def recorded(anchor_chain: Digest, beacon: Digest) -> Digest:
    """The anchor chain after the beacon of its newest batch was recorded."""
    return keccak(anchor_chain + beacon)


def fold_anchor_chain(
    batches: Iterable[AnchoredBatch], anchor_chain: Digest = ZERO_DIGEST
) -> Digest:
    """The anchor chain after `batches`, from `anchor_chain` on.

    Raises:
        Malformed: blocks do not ascend, or a batch before the newest lacks its beacon.
    """
    block, complete = -1, True
    for batch in batches:
        if batch.block <= block or not complete:
            raise Malformed("batches must ascend by block, each with its beacon before the next")
        block, complete = batch.block, batch.beacon is not None
        anchor_chain = anchored(anchor_chain, batch.root, batch.block)
        if batch.beacon is not None:
            anchor_chain = recorded(anchor_chain, batch.beacon)
    return anchor_chain
