"""What one event of our contracts changes beside the money, and what people see of it.

The rows of the escrow's money (`money`) know the event already; the caller is in a transaction and
holds the row of its job. Amounts that are told are of the one job.
"""

from collections.abc import Mapping
from dataclasses import replace

from contracts.chain.blocks import Log
from contracts.governance.escrow import EscrowTimes
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address, Digest, JobId, StepNumber
from contracts.terms.moments import UnixMillis
from market.bodies.events import (
    AnchoredEvent,
    BeaconEvent,
    BondEvent,
    ClaimedEvent,
    FundedEvent,
    JobEvent,
    LimitEvent,
    QuitEvent,
    ReclaimedEvent,
)
from market.domain.jobs import HAS_ENDED, JobState
from market.service.activate import activate
from market.service.auditors import note_bonded
from market.service.coding import wide
from market.service.convictions import show_next
from market.service.due import note_due
from market.service.feeds import event_of, tell_job
from market.service.fund_jobs import note_opened
from market.service.life import happen
from market.service.money import CONTRACT
from market.service.pass_time import end_account
from market.service.ports import UnitOfWork
from market.service.rows import BatchEntryRow, BatchRow, JobRow
from market.service.slash import NAMES, note_slash

_TOLD: Mapping[str, tuple[type[JobEvent], Mapping[str, str]]] = {
    "Opened": (FundedEvent, {"amount": "budget"}),
    "ToppedUp": (FundedEvent, {"amount": "amount"}),
    "Reclaimed": (ReclaimedEvent, {"amount": "amount"}),
    "LimitSet": (LimitEvent, {"account": "account", "limit": "limit"}),
    "Bonded": (BondEvent, {"account": "account", "stake": "stake"}),
    "Ended": (QuitEvent, {"account": "account"}),
    "Claimed": (ClaimedEvent, {"account": "account", "amount": "amount"}),
}
"""Which events of the escrow people see, as what, and which arguments have which names there."""


async def apply_event(
    event: Log, times: EscrowTimes, now: UnixMillis, work: UnitOfWork, anchorer: Address
) -> None:
    """Change rows as `event` says.

    Raises:
        InvariantBroken: the event contradicts what we sent.
    """
    if event.event in ("Anchored", "Recorded"):
        if event.args["caller"] == anchorer:
            await _anchored(event, now, work)
    elif event.contract == CONTRACT and "job" in event.args:
        row = await work[JobRow].lock(JobId(_bytes(event, "job")))
        if row is not None:
            _tell_of_money(row.job, event, now, work)
            await _of_job(row, event, times, now, work)


def _bytes(event: Log, name: str) -> bytes:
    value = event.args[name]
    if not isinstance(value, bytes):
        raise InvariantBroken(f"{event.event}: {name} is {value!r}")
    return value


async def _of_job(
    row: JobRow, event: Log, times: EscrowTimes, now: UnixMillis, work: UnitOfWork
) -> None:
    match event.event:
        case "Opened":
            await note_opened(row, now, work)
        case "Closed":
            await happen(row, "closed", now, work)
            await note_due(row.job, "release", 1000 * (event.at + times.tail), work)
        case "LimitSet" if JobState(row.state) in HAS_ENDED:
            await note_due(row.job, "claim", now, work)
        case "Bonded":
            account = Address(_bytes(event, "account"))
            await note_bonded(row.job, account, work)
            await activate(row, account, now, work)
        case "Ended":
            await end_account(row, Address(_bytes(event, "account")), now, work)
            await note_due(row.job, "release", 1000 * (event.at + times.tail), work)
        case name if name in NAMES:
            slash = await note_slash(event, now, work)
            if slash is not None and slash.state == "dropped":
                await show_next(slash, now, work)


async def _anchored(event: Log, now: UnixMillis, work: UnitOfWork) -> None:
    for batch in await work[BatchRow].where(number=wide(event.args["index"]), lock=True):
        if event.event == "Recorded":
            batch = replace(batch, beacon=Digest(_bytes(event, "beacon")))
        elif batch.root != event.args["root"]:
            raise InvariantBroken(f"batch {batch.number} is anchored with another root")
        else:
            batch = replace(batch, block=event.block, transaction=event.transaction)
        await work[BatchRow].put(batch)
        await _tell_of_batch(batch, now, work)


def _tell_of_money(job: JobId, event: Log, now: UnixMillis, work: UnitOfWork) -> None:
    if event.event not in _TOLD:
        return
    cls, names = _TOLD[event.event]
    said: dict[str, object] = {
        name: event.args[of] if name == "account" else wide(event.args[of])
        for name, of in names.items()
    }
    tell_job(job, cls.model_validate({"at": now, "transaction": event.transaction, **said}), work)


async def _tell_of_batch(batch: BatchRow, now: UnixMillis, work: UnitOfWork) -> None:
    """Seals are on chain, or, when the batch has its beacon, what draws from them."""
    steps: dict[JobId, list[StepNumber]] = {}
    for entry in await work[BatchEntryRow].where(root=batch.root):
        steps.setdefault(entry.job, []).append(StepNumber(entry.step))
    cls: type[AnchoredEvent | BeaconEvent] = AnchoredEvent if batch.beacon is None else BeaconEvent
    for job in sorted(steps):
        tell_job(job, event_of(cls, batch, at=now, steps=tuple(sorted(steps[job]))), work)
