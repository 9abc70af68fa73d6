"""Debits that the chain refuses, so that one job never stops the epochs of the others.

An epoch is posted with all its debits or not at all. When one is refused, each of its debits is
asked for alone, and what is refused alone is left out of the next plan: until it is another debit,
or for a while, as a clock that lags and a budget that is short mend without us. Remembered in the
process: another one finds the same by asking.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import ContractRefused
from contracts.terms.ids import EpochNumber, JobId
from contracts.terms.merkle import SumNode
from contracts.terms.moments import UnixMillis
from market.service.ports import Chain, PayOrder
from market.service.rows import DebitRow, EpochRow

LEFT_OUT_MILLIS = 60_000
log = logging.getLogger(__name__)


@dataclass
class RefusedDebits:
    """The newest refused debit of each job, and when it was refused."""

    _held: dict[JobId, tuple[DebitRow, UnixMillis]] = field(default_factory=dict)

    def hold(self, debit: DebitRow, now: UnixMillis) -> None:
        """Leave `debit` out from now on."""
        self._held[debit.job] = (_of_any_epoch(debit), now)

    def holds(self, debit: DebitRow, now: UnixMillis) -> bool:
        """Whether `debit` is to be left out; one that differs from what was refused is not."""
        if debit.job not in self._held:
            return False
        refused, since = self._held[debit.job]
        if refused == _of_any_epoch(debit) and now < since + LEFT_OUT_MILLIS:
            return True
        del self._held[debit.job]
        return False


async def find_refused(
    row: EpochRow, debits: Sequence[DebitRow], orders: Sequence[PayOrder], chain: Chain
) -> list[DebitRow]:
    """Of a refused epoch the debits that are refused alone; none if it would be without any."""
    # Only the sum of a root is checked on chain, so any hash serves to ask.
    before = BaseUnits(row.sum - sum(debit.amount for debit in debits))
    if await _refusal(row.epoch, SumNode(row.root, before), (), chain):
        return []
    found = []
    for debit, order in zip(debits, orders, strict=True):
        root = SumNode(row.root, BaseUnits(before + debit.amount))
        if reason := await _refusal(row.epoch, root, (order,), chain):
            job = debit.job.hex()
            log.warning("epoch %d: job %s is left out: %s", row.epoch, job, reason)
            found.append(debit)
    return found


async def _refusal(
    epoch: EpochNumber, root: SumNode, orders: Sequence[PayOrder], chain: Chain
) -> str | None:
    try:
        await chain.check_proposal(epoch, root, orders)
    except ContractRefused as refusal:
        return refusal.message
    return None


def _of_any_epoch(debit: DebitRow) -> DebitRow:
    return replace(debit, epoch=EpochNumber(0))
