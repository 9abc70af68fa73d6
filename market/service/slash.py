"""Stake of who was convicted is burned, behind an announcement in which anyone may look.

        +---- it ran out ----+
        v                    |
    convicted -> announcing -> announced -> burned
        |                        |
        v                        v
    nothing, lapsed           dropped

A conviction is announced by the slasher's key with the digest of its evidence, and burned when the
escrow's time for that has come. Only the canceller's key, which is not ours, stops that: what the
account answers is shown beside the slash, for who holds that key and for everybody. One slash of an
account in a job is open at a time; the others wait, and take what is left. One that ran out while
nobody burned is announced again, until the stake is on its way back (`lapsed`). A slash is named by
job, account and evidence. An announcement names its evidence; what ends it names job and account
alone. One that is not of our rows is somebody's who shares the role. Beat finds all of it in rows.
Units: base units; the market's milliseconds, the chain's seconds.
"""

import logging
from dataclasses import replace

from contracts.chain.blocks import Log
from contracts.governance.escrow import Channel, EscrowTimes
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import BadSignature, Conflict, ContractRefused
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.signatures import recover
from market.bodies.events import SlashEvent
from market.bodies.signing import answer_digest
from market.domain.slashing import amount_to_announce
from market.service.coding import decode_arguments, wide
from market.service.feeds import event_of, tell_job
from market.service.find_job import need
from market.service.money import budget_of, channel_of
from market.service.named_blobs import need_blobs
from market.service.ports import BlobStore, Chain, UnitOfWork
from market.service.rows import BudgetRow, ChainEventRow, JobRow, LimitRow, SlashRow

OPEN = ("announcing", "announced")
"""States in which a slash holds a part of the stake."""
UNENDED = ("convicted", *OPEN)
"""States in which a slash may still take something."""
_ENDS = {"Burned": "burned", "SlashDropped": "dropped"}
NAMES = ("SlashAnnounced", *_ENDS)
"""The events that this is about."""
log = logging.getLogger(__name__)


async def convict(row: SlashRow, now: UnixMillis, work: UnitOfWork) -> SlashRow:
    """Store a conviction of which no slash is yet."""
    async with work:
        await work[SlashRow].add(row)
        tell_of_slash(row, now, work)
    return row


async def announce_slashes(now: UnixMillis, work: UnitOfWork, chain: Chain) -> list[Digest]:
    """Announce what is due; returns the evidence of what was sent. Safe to repeat."""
    async with work:
        waiting = await work[SlashRow].where(state="convicted")
    if waiting:
        times, head = await chain.times(), await chain.head()
        at = UnixSeconds(max(head.timestamp, now // 1000))  # a chain that idles stands still
        for job, account in sorted({(row.job, row.account) for row in waiting}):
            async with work:
                await _plan(job, account, times, at, now, work)
    async with work:
        planned = await work[SlashRow].where(state="announcing")
    return [row.evidence for row in planned if await _announce(row, now, work, chain)]


async def burn_slashes(now: UnixMillis, work: UnitOfWork, chain: Chain) -> list[Digest]:
    """Burn what was announced, in its time; returns the evidence. Safe to repeat."""
    async with work:
        announced = await work[SlashRow].where(state="announced")
    if not announced:
        return []
    execute = (await chain.times()).execute
    return [row.evidence for row in announced if await _burn(row, execute, now, work, chain)]


async def _plan(
    job: JobId, account: Address, times: EscrowTimes, at: UnixSeconds, now: UnixMillis,
    work: UnitOfWork,
) -> None:  # fmt: skip
    """Store what the first conviction of an account in a job takes, if none is open."""
    await work[JobRow].lock(job)
    rows = await work[SlashRow].where(job=job, account=account, state=UNENDED)
    waiting = [row for row in rows if row.state == "convicted"]
    if not waiting or len(waiting) < len(rows):
        return
    first = min(waiting, key=lambda row: (row.convicted_at, row.evidence))
    limit, budget = await work[LimitRow].get(job, account), await work[BudgetRow].get(job)
    channel = Channel() if limit is None else channel_of(limit)
    if channel.slash_amount and at < channel.slash_from + times.execute:
        return  # somebody else's, who shares the role
    amount = amount_to_announce(first.wanted, channel, budget_of(budget), times, at)
    state = "announcing" if amount else "lapsed" if channel.stake else "nothing"
    planned = replace(first, state=state, amount=amount)
    await work[SlashRow].put(planned)
    tell_of_slash(planned, now, work)


async def _announce(row: SlashRow, now: UnixMillis, work: UnitOfWork, chain: Chain) -> bool:
    """Announce one; what the chain refuses is planned anew."""
    try:
        async with work:
            before = await times_announced(row, work)
        await chain.announce(row, before)
        return True
    except ContractRefused as refusal:
        log.warning("slash %s: %s", row.evidence.hex(), refusal.message)
    await _back(row, now, work)
    return False


async def _burn(
    row: SlashRow, execute: int, now: UnixMillis, work: UnitOfWork, chain: Chain
) -> bool:
    """Burn one, if it is time; one whose time is over is announced again."""
    if row.burns_from is None or not await chain.is_over(row.burns_from):
        return False
    if await chain.is_over(UnixSeconds(row.burns_from + execute)):
        await _back(row, now, work)
        return False
    try:
        async with work:
            announced = await times_announced(row, work)
        await chain.burn(row, announced)
        return True
    except ContractRefused as refusal:  # it was dropped, or has just run out
        log.warning("slash %s: %s", row.evidence.hex(), refusal.message)
        return False


async def _back(row: SlashRow, now: UnixMillis, work: UnitOfWork) -> None:
    """It is convicted still, and no longer announced."""
    async with work:
        held = await work[SlashRow].lock(row.evidence)
        if held is not None and held.state == row.state:
            held = replace(held, state="convicted", amount=BaseUnits(0), burns_from=None)
            await work[SlashRow].put(held)
            tell_of_slash(held, now, work)


async def answer_slash(
    evidence: Digest,
    answer: Digest,
    signature: bytes,
    *,
    now: UnixMillis,
    work: UnitOfWork,
    blobs: BlobStore,
) -> SlashRow:
    """What a convicted account says: a blob that is shown beside it and stops nothing.

    Safe to repeat.

    Raises:
        NotFound: no such slash, or the answer is no blob of this market.
        BadSignature: not by the convicted account's wallet.
        Conflict: it was answered with another blob.
    """
    async with work:
        row = need(await work[SlashRow].lock(evidence), "slash", evidence=evidence)
        if recover(answer_digest(evidence, answer), signature) != row.account:
            raise BadSignature(f"not signed by 0x{row.account.hex()}")
        if row.answer == answer:
            return row
        if row.answer is not None:
            raise Conflict("this slash was answered before", answer=row.answer.hex())
        await need_blobs((answer,), work, blobs)
        row = replace(row, answer=answer)
        await work[SlashRow].put(row)
        tell_of_slash(row, now, work)
    return row


# --------------------------------------------------------------------- what the chain's events say


def tell_of_slash(row: SlashRow, now: UnixMillis, work: UnitOfWork) -> None:
    """Tell who watches the job in which state the slash is now."""
    tell_job(row.job, event_of(SlashEvent, row, at=now), work)


async def note_slash(event: Log, now: UnixMillis, work: UnitOfWork) -> SlashRow | None:
    """A slash was announced, burned or dropped; what it is now, if it is ours.

    The rows of the escrow's money know the event already.
    """
    job, account = JobId(event.args["job"]), Address(event.args["account"])
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
