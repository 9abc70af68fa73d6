"""What people see of the chain's events: a job's money, anchors, coins.

The caller is in the transaction that applies the event, after the rows that it changes, and calls
each once for an event. Amounts are of the one job.
"""

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, JobId, StepNumber
from contracts.terms.moments import UnixMillis
from market.bodies.events import (
    AnchoredEvent,
    BondEvent,
    ClaimedEvent,
    CoinEvent,
    FundedEvent,
    JobEvent,
    LimitEvent,
    QuitEvent,
    ReclaimedEvent,
)
from market.service.coding import wide
from market.service.feeds import tell_job
from market.service.ports import ChainEvent, UnitOfWork
from market.service.rows import BatchEntryRow, BatchRow


def tell_of_money(job: JobId, event: ChainEvent, now: UnixMillis, work: UnitOfWork) -> None:
    """An event of the escrow, of whatever kind; some say nothing to people."""
    told = _of_money(event, now)
    if told is not None:
        tell_job(job, told, work)


def _of_money(event: ChainEvent, now: UnixMillis) -> JobEvent | None:
    args, transaction = event.args, event.transaction

    def amount(name: str = "amount") -> BaseUnits:
        return BaseUnits(wide(args[name]))

    def account() -> Address:
        value = args["account"]
        assert isinstance(value, bytes)
        return Address(value)

    match event.event:
        case "Opened":
            return FundedEvent(at=now, amount=amount("budget"), transaction=transaction)
        case "ToppedUp":
            return FundedEvent(at=now, amount=amount(), transaction=transaction)
        case "Reclaimed":
            return ReclaimedEvent(at=now, amount=amount(), transaction=transaction)
        case "LimitSet":
            limit = amount("limit")
            return LimitEvent(at=now, account=account(), limit=limit, transaction=transaction)
        case "Bonded":
            stake = amount("stake")
            return BondEvent(at=now, account=account(), stake=stake, transaction=transaction)
        case "Ended":
            return QuitEvent(at=now, account=account(), transaction=transaction)
        case "Claimed":
            paid = amount()
            return ClaimedEvent(at=now, account=account(), amount=paid, transaction=transaction)
    return None


async def tell_of_batch(batch: BatchRow, now: UnixMillis, work: UnitOfWork) -> None:
    """Seals are on chain, or, when the batch has its coin, what draws from them."""
    steps: dict[JobId, list[StepNumber]] = {}
    for entry in await work[BatchEntryRow].where(root=batch.root):
        steps.setdefault(entry.job, []).append(StepNumber(entry.step))
    for job in sorted(steps):
        tell_job(job, _of_batch(batch, tuple(sorted(steps[job])), now), work)


def _of_batch(
    batch: BatchRow, steps: tuple[StepNumber, ...], now: UnixMillis
) -> AnchoredEvent | CoinEvent:
    if batch.coin is not None:
        return CoinEvent(at=now, steps=steps, root=batch.root, coin=batch.coin)
    assert batch.block is not None and batch.transaction is not None  # `Anchored` sets both
    return AnchoredEvent(
        at=now, steps=steps, root=batch.root, block=batch.block, transaction=batch.transaction
    )
