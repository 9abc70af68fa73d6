"""How a lane of SealAnchor folds: one 32-byte slot that fixes every batch and every coin. Pure.

lane' = keccak(lane, root, block) when a batch is anchored; lane'' = keccak(lane', coin) when the
hash of that block is recorded (docs/protocol.md 4). Only the newest batch may lack its coin.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from contracts.terms.digest import keccak
from contracts.terms.errors import Malformed
from contracts.terms.ids import ZERO_DIGEST, Digest


@dataclass(frozen=True)
class AnchoredBatch:
    """One step of a lane."""

    root: Digest
    block: int
    coin: Digest | None  # hash of that block; None: not recorded yet; zero: recorded too late


def anchored(lane: Digest, root: Digest, block: int) -> Digest:
    """The lane after `anchor(root)` in `block`."""
    return keccak(lane + root + block.to_bytes(8, "big"))


def recorded(lane: Digest, coin: Digest) -> Digest:
    """The lane after the coin of its newest batch was recorded."""
    return keccak(lane + coin)


def fold_lane(batches: Iterable[AnchoredBatch], lane: Digest = ZERO_DIGEST) -> Digest:
    """The lane after `batches`, from `lane` on.

    Raises:
        Malformed: blocks do not ascend, or a batch before the newest lacks its coin.
    """
    block, complete = -1, True
    for batch in batches:
        if batch.block <= block or not complete:
            raise Malformed("batches must ascend by block, each with its coin before the next")
        block, complete = batch.block, batch.coin is not None
        lane = anchored(lane, batch.root, batch.block)
        if batch.coin is not None:
            lane = recorded(lane, batch.coin)
    return lane
