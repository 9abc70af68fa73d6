"""Epochs and claims: Settlement (and the vault that pays for it)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from contracts.chain.connection import Block, Call, checksummed
from contracts.chain.wrappers.base import Contract
from contracts.chain.wrappers.escrow import header_tuple, seal_tuple, split_signature
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, EpochNumber
from contracts.terms.merkle import Proof, SumNode
from contracts.terms.messages import JobSpec, Seal
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import Signed


class EpochState(IntEnum):
    """Settlement.EpochState."""

    NONE = 0
    POSTED = 1
    DISPUTED = 2
    FINAL = 3
    REJECTED = 4


@dataclass(frozen=True)
class OnChainEpoch:
    """The newest epoch as it stands in storage, and its state at this moment."""

    number: EpochNumber
    root: Digest
    root_sum: BaseUnits
    ends_at: UnixSeconds
    next_at: UnixSeconds
    stored: EpochState
    now: EpochState


@dataclass(frozen=True)
class Totals:
    """Debits of all final epochs, and what of it was claimed."""

    funded: BaseUnits
    paid: BaseUnits


@dataclass(frozen=True)
class Statement:
    """A job's order of pay; without a seal, a closed job settled by what its closing found due."""

    spec: JobSpec
    seal: Signed[Seal] | None


class SettlementContract(Contract):
    """Settlement."""

    name = "Settlement"

    async def newest(self, at: Block) -> OnChainEpoch:
        """See `OnChainEpoch`; number 0 before the first."""
        (root_sum, number, ends_at, next_at, stored), now = await self._read(at, "newestEpoch")
        root = Digest(bytes(await self._read(at, "newestRoot")))
        return OnChainEpoch(
            EpochNumber(number),
            root,
            BaseUnits(root_sum),
            UnixSeconds(ends_at),
            UnixSeconds(next_at),
            EpochState(stored),
            EpochState(now),
        )

    async def state(self, epoch: EpochNumber, at: Block) -> EpochState:
        """State of an epoch at this moment."""
        return EpochState(await self._read(at, "stateOf", epoch))

    async def totals(self, at: Block) -> Totals:
        """See `Totals`."""
        funded, paid = await self._read(at, "totals")
        return Totals(BaseUnits(funded), BaseUnits(paid))

    async def final_root(self, at: Block) -> Digest:
        """Root of the newest epoch that was booked as final."""
        return Digest(bytes(await self._read(at, "finalRoot")))

    async def claimed(self, account: Address, at: Block) -> BaseUnits:
        """What an account was paid so far."""
        return BaseUnits(await self._read(at, "claimed", checksummed(account)))

    def propose(self, epoch: EpochNumber, root: SumNode, statements: Sequence[Statement]) -> Call:
        """Post an epoch; the proposer only."""
        encoded = [_statement(statement) for statement in statements]
        return self._encode("propose", epoch, root.hash, root.sum, encoded)

    def finalize(self) -> Call:
        """Book an epoch whose window is over, and move its money to the vault."""
        return self._encode("finalize")

    def claim(
        self,
        account: Address,
        cumulative: BaseUnits,
        jobs_root: Digest,
        proof: Proof[SumNode],
    ) -> Call:
        """Pay `account` what the final root grants beyond what it got; anyone may pay the gas."""
        sides = sum(1 << i for i, (_, is_left) in enumerate(proof.siblings) if is_left)
        path = b"".join(
            sibling.hash + sibling.sum.to_bytes(12, "big") for sibling, _ in proof.siblings
        )
        return self._encode("claim", checksummed(account), cumulative, jobs_root, sides, path)


def _statement(statement: Statement) -> tuple[object, ...]:
    header = header_tuple(statement.spec)
    if statement.seal is None:
        nothing = (ZERO_DIGEST, 0, ZERO_DIGEST, ZERO_DIGEST, 0, ZERO_DIGEST, 0, 0, False)
        return (header, nothing, (ZERO_DIGEST, ZERO_DIGEST, 0))
    if statement.seal.message.job != statement.spec.job():
        raise InvariantBroken("a statement joins a job with the seal of another")
    signature = split_signature(statement.seal.signature)
    return (header, seal_tuple(statement.seal.message), signature)
