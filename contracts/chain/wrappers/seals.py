"""Anchored batches and their beacons: SealAnchor."""

from dataclasses import dataclass

from contracts.chain.blocks import Block
from contracts.chain.connection import Call, checksummed
from contracts.chain.wrappers.base import Contract
from contracts.terms.ids import Address, Digest


@dataclass(frozen=True)
class AnchorChain:
    """An anchorer's running hash."""

    hash: Digest
    count: int


class Seals(Contract):
    """SealAnchor."""

    name = "SealAnchor"
    role = "seals"

    async def anchor_chain(self, anchorer: Address, at: Block) -> AnchorChain:
        """Running hash of an anchorer and how many batches it anchored."""
        name, count = await self._read(at, "anchorChain", checksummed(anchorer))
        return AnchorChain(Digest(bytes(name)), int(count))

    async def pending_block(self, anchorer: Address, at: Block) -> int:
        """Block of the batch whose beacon is not recorded yet; 0 for none."""
        _, block = await self._read(at, "pending", checksummed(anchorer))
        return int(block)

    def anchor(self, root: Digest) -> Call:
        """Anchor a batch; records the beacon of the one before."""
        return self._encode("anchor", root)

    def record(self, anchorer: Address) -> Call:
        """Record the beacon of the newest batch."""
        return self._encode("record", checksummed(anchorer))
