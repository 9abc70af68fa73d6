"""Stake of who was convicted is slashed, behind an announcement in which anyone may look.

        +------- it ran out -------+
        v                          |
    convicted -> announcing -> announced -> executed
                                  |  ^
                        contested-+  +-- the contest was rejected
                                  v
                              contested -> dropping -> dropped

A conviction waits `gather_millis`, so that those against one stake settle together; then its
amounts are stored, announced by the slasher's key, and executed when the window is over. What the
convicted may say against it is in `contests`.

A contest decides nothing by being slow to judge. While it waits nothing is executed, and its case
is announced again before it runs out, with the older one dropped only after that, so that the stake
is never out of a case: nobody is slashed unheard, and nobody is acquitted by silence. Only one case
of a slash is ever executed, the newest one, and none while another is on its way.

A slash whose contest was upheld is dropped after the next bundle of the same conviction, if there
is one, was announced (`convictions`). Beat finds all of it in rows; what the chain says of a case
is noted by `sync_chain`. Units: base units; milliseconds, windows in chain seconds.
"""

import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import ContractRefused, NotFound
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.moments import UnixMillis
from market.domain.jobs import JobState
from market.domain.slashing import Conviction, Slash, SlashRules, settle_together
from market.service.ports import CaseNow, Chain, UnitOfWork
from market.service.rows import ConvictionRow, EvidenceRow, JobRow, SlashRow
from market.service.slash_events import (
    WITH_CASE,
    blocks_of_case,
    is_renewing,
    tell_of_slash,
    times_announced,
)

log = logging.getLogger(__name__)
OPEN = ("announcing", *WITH_CASE)
"""States in which a slash holds a part of the stake."""
UNENDED = ("convicted", *OPEN, "dropping")
"""States in which a slash may still take something, and give back to the job what it paid."""


@dataclass(frozen=True)
class Patience:
    """How long a conviction waits for others, and what the protocol allows."""

    gather_millis: int
    rules: SlashRules


def patience_of(parameters: Mapping[str, int]) -> Patience:
    """From the Parameters contract: who is announced together has one announcement window more."""
    rules = SlashRules(
        max_slash=parameters["max_slash_bps"],
        max_bounty=parameters["max_bounty_bps"],
        min_burn=parameters["min_burn_bps"],
    )
    return Patience(parameters["announcement_window"] * 1000, rules)


async def convict(
    conviction: Conviction, since: UnixMillis, now: UnixMillis, work: UnitOfWork
) -> SlashRow:
    """Note a conviction, which counts since `since`. Safe to repeat.

    Raises:
        NotFound: no such job.
    """
    async with work:
        if known := await work[SlashRow].get(conviction.evidence):
            return known
        if await work[JobRow].get(conviction.job) is None:
            raise NotFound("no such job", job=conviction.job.hex())
        row = SlashRow(
            conviction.evidence,
            conviction.job,
            conviction.account,
            conviction.wanted,
            conviction.owed,
            conviction.challenger,
            convicted_at=since,
        )
        await work[SlashRow].add(row)
        await work.emit("slash", row.evidence)
        tell_of_slash(row, now, work)
    return row


async def announce_slashes(now: UnixMillis, work: UnitOfWork, chain: Chain) -> list[Digest]:
    """Plan and announce what is due; returns the evidence of what was sent. Safe to repeat."""
    async with work:
        waiting = await work[SlashRow].where(state="convicted")
    if waiting:
        parameters = (await chain.network()).parameters
        patience = patience_of(parameters)
        waiting = [
            row for row in waiting if not await _drop_vetoed(row, parameters, now, work, chain)
        ]
        for (job, account), first in _first_of_each(waiting).items():
            if now - first >= patience.gather_millis:
                slashable = await chain.slashable(job, account)
                await _plan(job, account, slashable, now, work, patience.rules)
    async with work:
        planned = await work[SlashRow].where(state="announcing")
        held = await work[SlashRow].where(state=WITH_CASE)
    sent = [row for row in planned if await _tried(row, _announce(row, work, chain))]
    sent += [row for row in held if await _tried(row, _renew(row, now, work, chain))]
    return [row.evidence for row in sent]


async def execute_slashes(work: UnitOfWork, chain: Chain) -> list[Digest]:
    """End the cases whose time has come; returns their evidence. Safe to repeat."""
    async with work:
        rows = await work[SlashRow].where(state=(*WITH_CASE, "dropping"))
        replaced = {row.evidence for row in rows if await _is_replaced(row, work)}
    ended = [row for row in rows if row.evidence not in replaced]
    return [row.evidence for row in ended if await _tried(row, _end(row, chain))]


async def _tried(row: SlashRow, doing: Awaitable[bool]) -> bool:
    """One that the chain refuses is told, and found again; it holds up no other."""
    try:
        return await doing
    except ContractRefused as refusal:
        log.warning("slash %s: %s: %s", row.evidence.hex(), refusal.code, refusal.message)
        return False


def _first_of_each(waiting: Sequence[SlashRow]) -> dict[tuple[JobId, Address], UnixMillis]:
    """When the first conviction came against each stake, in the order of jobs and accounts."""
    first: dict[tuple[JobId, Address], UnixMillis] = {}
    for row in sorted(waiting, key=lambda row: (row.job, row.account, row.convicted_at)):
        first.setdefault((row.job, row.account), row.convicted_at)
    return first


async def _drop_vetoed(
    row: SlashRow, parameters: Mapping[str, int], now: UnixMillis, work: UnitOfWork, chain: Chain
) -> bool:
    """Drop what the registry's admin has cancelled: its case was ended before it ran out."""
    async with work:
        blocks = await blocks_of_case(row.case, work) if row.case is not None else ()
    times = [block.timestamp for each in blocks if (block := await chain.block(each))]
    lasts = parameters["announcement_window"] + parameters["execution_window"]
    if len(times) < 2 or times[1] >= times[0] + lasts:
        return False
    async with work:
        if (held := await work[SlashRow].lock(row.evidence)) and held.state == row.state:
            dropped = replace(held, state="dropped")
            await work[SlashRow].put(dropped)
            await work.emit("slash", row.evidence)
            tell_of_slash(dropped, now, work)
    return True


async def _plan(
    job: JobId,
    account: Address,
    slashable: BaseUnits,
    now: UnixMillis,
    work: UnitOfWork,
    rules: SlashRules,
) -> None:
    """Store what convictions of an account in a job take, before any of it is announced."""
    async with work:
        known = await work[JobRow].lock(job)
        rows = await work[SlashRow].where(job=job, account=account)
        waiting = [row for row in rows if row.state == "convicted"]
        announced = sum(row.amount for row in rows if row.state in OPEN)
        closed = known is None or known.state == JobState.REFUNDED.value
        slashes = settle_together(
            [_conviction(row, can_repay=not closed) for row in waiting],
            slashable=slashable,
            announced=BaseUnits(announced),
            rules=rules,
        )
        lacks = sum(slash.amount for slash in slashes) < sum(row.wanted for row in waiting)
        if lacks and any(row.state in OPEN for row in rows):
            return  # more is left if that case ends without a slash
        await _store(waiting, slashes, now, work)


async def _store(
    waiting: Sequence[SlashRow], slashes: Sequence[Slash], now: UnixMillis, work: UnitOfWork
) -> None:
    by_evidence = {slash.evidence: slash for slash in slashes}
    for row in waiting:
        slash = by_evidence.get(row.evidence)
        planned = replace(row, state="nothing", amount=BaseUnits(0))  # nothing is left of the stake
        if slash is not None:
            planned = replace(
                row,
                state="announcing" if row.state == "convicted" else row.state,
                amount=slash.amount,
                restitution=slash.restitution,
                bounty=slash.bounty,
            )
        await work[SlashRow].put(planned)
        tell_of_slash(planned, now, work)


def _conviction(row: SlashRow, *, can_repay: bool) -> Conviction:
    """Of a row; a job that was refunded has nobody left to repay."""
    owed = row.owed if can_repay else BaseUnits(0)
    return Conviction(row.evidence, row.job, row.account, row.wanted, owed, row.challenger)


async def _announce(row: SlashRow, work: UnitOfWork, chain: Chain) -> bool:
    """Announce one; what the chain refuses is planned anew."""
    if await _send(row, work, chain):
        return True
    async with work:
        held = await work[SlashRow].lock(row.evidence)
        if held is not None and held.state == "announcing":
            await work[SlashRow].put(replace(held, state="convicted", amount=BaseUnits(0)))
    return False


async def _send(row: SlashRow, work: UnitOfWork, chain: Chain) -> bool:
    """Announce what is stored; False if the stake is smaller than it was."""
    slash = Slash(
        row.evidence, row.job, row.account, row.amount, row.restitution, row.challenger, row.bounty
    )
    async with work:
        before = await times_announced(row, work)
    try:
        await chain.announce_slash(slash, before)
        return True
    except ContractRefused as refusal:
        if "SlashCap" not in refusal.message:
            raise
        return False


async def _renew(row: SlashRow, now: UnixMillis, work: UnitOfWork, chain: Chain) -> bool:
    """Announce a contested slash anew while its case is open, or after it ran out."""
    if row.case is None:
        return False  # the chain forgot its announcement, which is sent again
    if not is_renewing(row):
        if row.state != "contested":
            return False
        found = await chain.slash_case(row.case)
        if found is not None and now < _renewed_at(found) * 1000:
            return False
        if found is None and not await _has_ended(row, work):
            return False  # its end is not confirmed yet
        if found is None:
            parameters = (await chain.network()).parameters
            if await _drop_vetoed(row, parameters, now, work, chain):
                return False
        again = await _plan_again(row, now, work, chain, is_open=found is not None)
        if again is None:
            return False
        row = again
    if await _send(row, work, chain):
        return True
    async with work:
        held = await work[SlashRow].lock(row.evidence)
        if held is not None and is_renewing(held):
            await work[SlashRow].put(replace(held, superseded=None))
    return False


def _renewed_at(case: CaseNow) -> int:
    """In the middle of the time in which a case can be executed."""
    return (case.executable_at + case.executable_until) // 2


async def _has_ended(row: SlashRow, work: UnitOfWork) -> bool:
    async with work:
        return row.case is not None and len(await blocks_of_case(row.case, work)) > 1


async def _plan_again(
    row: SlashRow, now: UnixMillis, work: UnitOfWork, chain: Chain, *, is_open: bool
) -> SlashRow | None:
    """Store what a contested slash takes now, and that it is on its way; None if it is not."""
    rules = patience_of((await chain.network()).parameters).rules
    slashable = await chain.slashable(row.job, row.account)
    async with work:
        known = await work[JobRow].lock(row.job)
        held = await work[SlashRow].lock(row.evidence)
        if held is None or (held.state, held.case) != ("contested", row.case):
            return None
        rows = await work[SlashRow].where(job=row.job, account=row.account, state=OPEN)
        others = sum(each.amount for each in rows if each.evidence != row.evidence)
        can_repay = known is not None and known.state != JobState.REFUNDED.value
        slashes = settle_together(
            [_conviction(held, can_repay=can_repay)],
            slashable=slashable,
            announced=BaseUnits(others),
            rules=rules,
        )
        if is_open and not slashes:
            return None  # its case may still find something
        await _store([replace(held, superseded=held.case)], slashes, now, work)
        return await work[SlashRow].get(row.evidence) if slashes else None


async def _is_replaced(row: SlashRow, work: UnitOfWork) -> bool:
    """Whether the next bundle of its conviction has a slash that is yet to be announced."""
    if row.state != "dropping":
        return False
    shown = await work[EvidenceRow].where(bundle=row.evidence)
    if not shown:
        return False
    conviction = await work[ConvictionRow].get(shown[0].job, shown[0].subject)
    if conviction is None or conviction.evidence in (None, row.evidence):
        return False
    following = await work[SlashRow].get(conviction.evidence)
    return following is not None and following.state in ("convicted", "announcing")


async def _end(row: SlashRow, chain: Chain) -> bool:
    """Execute or drop a case, if it is time; False if it is not, or it has ended."""
    if row.case is None or (found := await chain.slash_case(row.case)) is None:
        return False
    if row.state != "dropping" and is_renewing(row):
        return False  # which of the two may be executed is known once both are
    if row.superseded is not None and await chain.slash_case(row.superseded) is not None:
        await chain.drop_slash(row.superseded)
        return False
    try:
        if row.state == "dropping" or await chain.is_over(found.executable_until):
            await chain.drop_slash(row.case)
            return True
        if row.state != "announced" or not await chain.is_over(found.executable_at):
            return False
        await chain.execute_slash(row.case)
        return True
    except ContractRefused as refusal:
        if not any(error in refusal.message for error in ("NotExecutable", "UnknownCase")):
            raise
        return False
