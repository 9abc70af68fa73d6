"""What the escrow's events say about slashes, as rows. The caller is in a transaction.

An announcement names its evidence. What ends it names job and account alone: of those one slash is
open at a time. One that is not of our rows is somebody's who shares the role.
"""

from dataclasses import replace
from typing import cast

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, JobId
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.bodies.events import SlashEvent
from market.bodies.slashes import SlashState
from market.service.coding import decode_arguments, wide
from market.service.feeds import tell_job
from market.service.ports import ChainEvent, UnitOfWork
from market.service.rows import ChainEventRow, LimitRow, SlashRow

_ENDS = {"Burned": "burned", "SlashDropped": "dropped"}
NAMES = ("SlashAnnounced", *_ENDS)
"""The events that this is about."""


def tell_of_slash(row: SlashRow, now: UnixMillis, work: UnitOfWork) -> None:
    """Tell who watches the job in which state the slash is now."""
    event = SlashEvent(
        at=now,
        evidence=row.evidence,
        account=row.account,
        state=cast(SlashState, row.state),
        amount=row.amount,
    )
    tell_job(row.job, event, work)


async def note_slash(event: ChainEvent, now: UnixMillis, work: UnitOfWork) -> SlashRow | None:
    """A slash was announced, burned or dropped; what it is now, if it is ours.

    The rows of the escrow's money know the event already.
    """
    job, account = (
        JobId(cast(bytes, event.args["job"])),
        Address(cast(bytes, event.args["account"])),
    )
    if event.event == "SlashAnnounced":
        row = await work[SlashRow].lock(event.args["evidence"])
        limit = await work[LimitRow].get(job, account)
        if row is None or limit is None or (row.job, row.account) != (job, account):
            await _overwritten(job, account, work)  # by what is not ours
            return None
        row = replace(
            row,
            state="announced",
            amount=BaseUnits(wide(event.args["amount"])),
            burns_from=UnixSeconds(limit.slash_from),
            announced_by=event.transaction,
        )
    else:
        held = await work[SlashRow].where(job=job, account=account, state="announced")
        if not held:
            return None
        row = replace(held[0], state=_ENDS[event.event], ended_by=event.transaction)
        if event.event == "Burned":
            row = replace(row, amount=BaseUnits(wide(event.args["amount"])))
    await work[SlashRow].put(row)
    tell_of_slash(row, now, work)
    return row


async def _overwritten(job: JobId, account: Address, work: UnitOfWork) -> None:
    """Our announcement ran out, and another stands there: what ends it is not the end of ours."""
    for row in await work[SlashRow].where(job=job, account=account, state="announced"):
        before = replace(row, state="convicted", amount=BaseUnits(0), burns_from=None)
        await work[SlashRow].put(before)


async def times_announced(row: SlashRow, work: UnitOfWork) -> int:
    """How often the chain announced a slash; what it has forgotten does not count."""
    events = await work[ChainEventRow].where(event="SlashAnnounced", job=row.job)
    return sum(decode_arguments(each.args)["evidence"] == row.evidence for each in events)


async def forget_slash(event: ChainEventRow, work: UnitOfWork) -> None:
    """The chain went back before an event; its transaction is sent again."""
    if event.event == "SlashAnnounced":
        evidence = decode_arguments(event.args)["evidence"]
        row = await work[SlashRow].lock(evidence)
        if row is not None:
            before = replace(row, state="announcing", burns_from=None, announced_by=None)
            await work[SlashRow].put(before)
        return
    for row in await work[SlashRow].where(job=event.job, ended_by=event.transaction):
        await work[SlashRow].put(replace(row, state="announced", ended_by=None))
