"""How a job's close stands on chain, as the events that are confirmed say.

The newest event of a job decides: a close or a better one sets what is due and until when, a job
that was kept open has none. What the chain forgot says nothing any more.
"""

from dataclasses import replace

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.service.coding import decode_arguments, wide
from market.service.ports import UnitOfWork
from market.service.rows import ChainEventRow, JobRow

_DEPOSITED = {"JobOpened": 1, "ToppedUp": 1, "Refunded": -1}
"""What changes a job's deposit, and in which direction."""
_REQUESTED, _KEPT_OPEN = "CloseRequested", "KeptOpen"


def is_closed(row: JobRow, now: UnixMillis) -> bool:
    """Whether the close on chain is final: nobody can show another seal any more."""
    return row.due is not None and row.ends_at is not None and row.ends_at * 1000 <= now


async def shown_by_close(row: JobRow, work: UnitOfWork) -> tuple[int, int]:
    """Step of the seal that the close on chain shows, and what it says is earned; 0 for none."""
    newest = await _newest(row.job, work, _REQUESTED)
    if newest is None:
        return 0, 0
    said = decode_arguments(newest.args)
    return max(0, wide(said["seals"]) - 1), wide(said["earned"])


async def with_close(row: JobRow, work: UnitOfWork) -> JobRow:
    """The job with what its newest event says of its close."""
    newest = await _newest(row.job, work, _REQUESTED, _KEPT_OPEN)
    if newest is None or newest.event == _KEPT_OPEN:
        return replace(row, due=None, ends_at=None, refundable_at=None)
    said = decode_arguments(newest.args)
    return replace(
        row,
        due=BaseUnits(wide(said["due"])),
        ends_at=UnixSeconds(wide(said["endsAt"])),
        refundable_at=UnixSeconds(wide(said["refundableAt"])),
    )


async def payable_due(row: JobRow, work: UnitOfWork) -> BaseUnits:
    """What the close found due, as far as JobEscrow holds it; 0 without a close.

    A coordinator's seal may say more than was ever deposited, and a refund leaves what was earned.
    """
    told = await work[ChainEventRow].where(job=row.job, event=tuple(_DEPOSITED))
    parts = (_DEPOSITED[each.event] * wide(decode_arguments(each.args)["amount"]) for each in told)
    return BaseUnits(min(row.due or 0, sum(parts)))


async def _newest(job: JobId, work: UnitOfWork, *names: str) -> ChainEventRow | None:
    events = await work[ChainEventRow].where(job=job, event=names)
    return max(events, key=lambda each: (each.block, each.log_index), default=None)
