"""What one event of our contracts changes beside the money, inside the caller's transaction.

The rows of the escrow's money (`money`) know the event already, and the caller holds the row of its
job.
"""

from dataclasses import replace

from contracts.governance.escrow import EscrowTimes
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.moments import UnixMillis
from market.domain.jobs import HAS_ENDED, Closed, JobState
from market.service.activate import activate
from market.service.audit_bonds import note_bonded
from market.service.coding import wide
from market.service.convictions import show_next
from market.service.due import note_due
from market.service.fund_jobs import note_opened
from market.service.life import happen
from market.service.money import CONTRACT
from market.service.pass_time import end_account
from market.service.ports import ChainEvent, UnitOfWork
from market.service.rows import BatchRow, JobRow
from market.service.slash_events import NAMES, note_slash
from market.service.tell_of_chain import tell_of_batch, tell_of_money


async def apply_event(
    event: ChainEvent, times: EscrowTimes, now: UnixMillis, work: UnitOfWork, anchorer: Address
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
            tell_of_money(row.job, event, now, work)
            await _of_job(row, event, times, now, work)


def _bytes(event: ChainEvent, name: str) -> bytes:
    value = event.args[name]
    if not isinstance(value, bytes):
        raise InvariantBroken(f"{event.event}: {name} is {value!r}")
    return value


async def _of_job(
    row: JobRow, event: ChainEvent, times: EscrowTimes, now: UnixMillis, work: UnitOfWork
) -> None:
    match event.event:
        case "Opened":
            await note_opened(row, now, work)
        case "Closed":
            await happen(row, Closed(), now, work)
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


async def _anchored(event: ChainEvent, now: UnixMillis, work: UnitOfWork) -> None:
    for batch in await work[BatchRow].where(number=wide(event.args["index"]), lock=True):
        if event.event == "Recorded":
            batch = replace(batch, coin=Digest(_bytes(event, "coin")))
        elif batch.root != event.args["root"]:
            raise InvariantBroken(f"batch {batch.number} is anchored with another root")
        else:
            batch = replace(batch, block=event.block, transaction=event.transaction)
        await work[BatchRow].put(batch)
        await tell_of_batch(batch, now, work)
