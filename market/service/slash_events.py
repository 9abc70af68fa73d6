"""What StakeRegistry's events say about slash cases, as rows. The caller is in a transaction.

A case is known by the evidence that its announcement names; its number is the chain's, and another
one if the announcement was forgotten and mined again, or if the case ran out and is announced anew.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Digest, JobId
from contracts.terms.moments import UnixMillis
from market.bodies.events import SlashEvent
from market.bodies.settlement import SlashState
from market.service.coding import decode_arguments, wide
from market.service.feeds import tell_job
from market.service.ports import ChainEvent, UnitOfWork
from market.service.rows import ChainEventRow, SlashRow

WITH_CASE = ("announced", "contested")
"""States of a case that is on chain and has not ended."""
_ANNOUNCED = {"convicted": "announced", "announcing": "announced", "dropped": "dropping"}
"""What becomes of a slash when it has a new case; what was dropped is dropped again."""
_KEPT = {"contested": "contested", "dropping": "dropping", "dropped": "dropping"}
"""What becomes of the states that speak for a convict when the chain forgets an event."""


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


def is_renewing(row: SlashRow) -> bool:
    """Whether another case of it is on its way."""
    return row.superseded is not None and row.superseded == row.case


async def slash_announced(event: ChainEvent, now: UnixMillis, work: UnitOfWork) -> None:
    """Our slash has a case now. One that is not of our rows is somebody's who shares the role."""
    row = await work[SlashRow].lock(event.args["evidence"])
    if row is None:
        return
    case, before = wide(event.args["id"]), row.superseded
    if row.case is not None and row.case != case:
        before = row.case
    state = _ANNOUNCED.get(row.state, row.state)
    row = replace(row, state=state, case=case, superseded=before, announced_by=event.transaction)
    await work[SlashRow].put(row)
    await work.emit("slash", row.evidence)
    tell_of_slash(row, now, work)


async def slash_ended(event: ChainEvent, now: UnixMillis, work: UnitOfWork) -> None:
    """A case was executed, or dropped: then nothing was taken."""
    taken = [BaseUnits(wide(event.args[part])) for part in ("restitution", "bounty", "burned")]
    for row in await work[SlashRow].where(case=wide(event.args["id"]), lock=True):
        over = _ended(row, taken, event.transaction)
        await work[SlashRow].put(over)
        await work.emit("slash", row.evidence)
        tell_of_slash(over, now, work)


def _ended(row: SlashRow, taken: Sequence[BaseUnits], by: Digest) -> SlashRow:
    if any(taken):
        restitution, bounty, burned = taken
        row = replace(row, restitution=restitution, bounty=bounty, burned=burned)
        return replace(row, state="executed", ended_by=by)
    # Nobody has spoken for the convict, or in vain: that its case ran out saves it nothing.
    if row.state == "announced":
        return replace(row, state="convicted")
    if row.state == "contested":
        return row  # and is announced again, or was vetoed: `slash` knows
    return replace(row, state="dropped", ended_by=by)


async def times_announced(row: SlashRow, work: UnitOfWork) -> int:
    """How often the chain announced a slash; what it has forgotten does not count."""
    events = await work[ChainEventRow].where(event="SlashAnnounced", job=row.job)
    return sum(decode_arguments(each.args)["evidence"] == row.evidence for each in events)


async def blocks_of_case(case: int, work: UnitOfWork) -> list[int]:
    """The blocks that announced a case and ended it, as far as they are known."""
    names = ("SlashAnnounced", "SlashEnded")
    events = await work[ChainEventRow].where(event=names, order="block")
    return [each.block for each in events if wide(decode_arguments(each.args)["id"]) == case]


async def job_of_case(case: int, work: UnitOfWork) -> JobId:
    """The job that a case was announced for."""
    for row in await work[ChainEventRow].where(event="SlashAnnounced"):
        if wide(decode_arguments(row.args)["id"]) == case and row.job is not None:
            return row.job
    raise InvariantBroken(f"slash case {case} ended and was never announced")


async def forget_slash(event: ChainEventRow, work: UnitOfWork) -> None:
    """The chain went back before an event; its transaction is sent again.

    What was said for the convict holds against the case that is announced again: a contest is of
    the evidence. What ended in its favour ends so once more.
    """
    case = wide(decode_arguments(event.args)["id"])
    if event.event == "SlashAnnounced":
        for row in await work[SlashRow].where(superseded=case, lock=True):
            await work[SlashRow].put(replace(row, superseded=None))
    for row in await work[SlashRow].where(case=case, lock=True):
        before = replace(row, state=_KEPT.get(row.state, "announced"), ended_by=None)
        if event.event == "SlashAnnounced":
            state = _KEPT.get(row.state, "announcing")
            before = replace(before, state=state, case=None, announced_by=None)
        await work[SlashRow].put(before)
