"""Budgets of jobs: JobEscrow."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from contracts.chain.connection import Block, Call, checksummed
from contracts.chain.wrappers.base import Contract
from contracts.governance.pay import PayLeaf, prove_pay
from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import ZERO_ADDRESS, JobId
from contracts.terms.messages import JobSpec, Seal
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import Signed

NO_PAY_LEAF = (checksummed(ZERO_ADDRESS), 0, 0, b"")
"""For a seal that is `last` or has vested all it earned."""


class JobPhase(IntEnum):
    """JobClosing.JobState."""

    NONE = 0
    OPEN = 1
    CLOSING = 2
    CLOSED = 3


@dataclass(frozen=True)
class Funds:
    """What a job holds on chain."""

    deposited: BaseUnits  # all deposits less refunds
    debited: BaseUnits
    phase: JobPhase


@dataclass(frozen=True)
class Closing:
    """How a job is closing or was closed."""

    seals: int  # step of the shown seal + 1
    earned: BaseUnits
    ends_at: UnixSeconds
    refundable_at: UnixSeconds
    due: BaseUnits
    kept_open: int  # latest step + 1 of a seal that undid a close; 0: none was undone


class Escrow(Contract):
    """JobEscrow."""

    name = "JobEscrow"

    async def funds(self, job: JobId, at: Block) -> Funds:
        """Deposits, debits and phase of a job; the phase is NONE if it was never opened."""
        deposited, debited = await self._read(at, "fundsOf", job)
        phase = JobPhase(await self._read(at, "stateOf", job))
        return Funds(BaseUnits(deposited), BaseUnits(debited), phase)

    async def closing(self, job: JobId, at: Block) -> Closing:
        """See `Closing`; all zero but `kept_open` for an open job."""
        found = await self._read(at, "closingOf", job)
        seals, earned, ends_at, refundable_at, _, due, _, kept_open, *_ = found
        return Closing(
            seals,
            BaseUnits(earned),
            UnixSeconds(ends_at),
            UnixSeconds(refundable_at),
            BaseUnits(due),
            kept_open,
        )

    async def released(self, at: Block) -> BaseUnits:
        """What final epochs moved to the vault so far."""
        return BaseUnits(await self._read(at, "released"))

    def open_with_permit(
        self, spec: Signed[JobSpec], *, permit_deadline: UnixSeconds, permit: bytes
    ) -> Call:
        """Open a job with its poster's signatures; anyone may pay the gas."""
        r, s, v = split_signature(permit)
        return self._encode(
            "openWithPermit",
            spec_tuple(spec.message),
            spec.signature,
            (spec.message.budget, permit_deadline, v, r, s),
        )

    def open(self, spec: JobSpec, amount: BaseUnits) -> Call:
        """Open a job with the caller's own tokens."""
        return self._encode("open", header_tuple(spec), amount)

    def top_up(self, job: JobId, amount: BaseUnits) -> Call:
        """Add to a job's budget."""
        return self._encode("topUp", job, amount)

    def request_close(self, spec: JobSpec, seal: Signed[Seal], pay: Sequence[PayLeaf] = ()) -> Call:
        """Close a job by a seal; `pay` (its leaves) unless it is `last` or has vested all."""
        return self._encode(
            "requestClose",
            header_tuple(spec),
            seal_tuple(seal.message),
            seal.signature,
            first_pay_leaf(pay) if pay else NO_PAY_LEAF,
        )

    def answer_close(self, spec: JobSpec, seal: Signed[Seal], pay: Sequence[PayLeaf] = ()) -> Call:
        """Answer a close with another seal; `pay` as in `request_close`."""
        return self._encode(
            "answerClose",
            header_tuple(spec),
            seal_tuple(seal.message),
            seal.signature,
            first_pay_leaf(pay) if pay else NO_PAY_LEAF,
        )

    def request_close_unsealed(self, spec: JobSpec) -> Call:
        """Close a job that has no seal, past its deadline (or by its poster)."""
        return self._encode("requestCloseUnsealed", header_tuple(spec))

    def refund(self, job: JobId) -> Call:
        """Pay the poster what was not earned."""
        return self._encode("refund", job)


def first_pay_leaf(pay: Sequence[PayLeaf]) -> tuple[object, ...]:
    """JobClosing.FirstPayLeaf: the leftmost leaf, whose siblings all stand on the right."""
    first, proof = prove_pay(pay, pay[0].account)
    path = b"".join(
        node.hash + node.earned.to_bytes(12, "big") + node.vested.to_bytes(12, "big")
        for node, _ in proof.siblings
    )
    return (checksummed(first.account), first.earned, first.vested, path)


def header_tuple(spec: JobSpec) -> tuple[object, ...]:
    """Messages.JobHeader."""
    return (
        checksummed(spec.poster),
        checksummed(spec.coordinator),
        spec.digest(),
        spec.epoch_cap,
        spec.deadline,
        spec.nonce,
    )


def spec_tuple(spec: JobSpec) -> tuple[object, ...]:
    """Messages.JobSpec."""
    _, _, *rest = spec.typed_values()
    return (checksummed(spec.poster), checksummed(spec.coordinator), *rest)


def seal_tuple(seal: Seal) -> tuple[object, ...]:
    """Messages.Seal."""
    return seal.typed_values()


def split_signature(signature: bytes) -> tuple[bytes, bytes, int]:
    """65 bytes as r, s, v."""
    return signature[:32], signature[32:64], signature[64]
