"""Stake of who was convicted is slashed, behind an announcement in which anyone may look.

        +------- it ran out -------+
        v                          |
    convicted -> announcing -> announced -> executed
                                  |  ^
                        contested-+  +-- the contest was rejected
                                  v
                              contested -> dropping -> dropped

A conviction waits `gather_millis`, so that those against one stake settle together; then its
amounts are stored, announced by the slasher's key, and executed when the window is over. The
convicted may contest with a bundle of its own: then nothing is executed until the market's operator
has run both bundles again (PROTOCOL section 5: until disputes on chain replace it, he is trusted
with this). Who is not answered before the case runs out is not slashed; a case that ran out with
nobody to answer is announced again. Beat finds all of it in rows; what the chain says of a case is
noted by `sync_chain`. Units: base units; milliseconds, windows in chain seconds.
"""

import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import BadSignature, Conflict, ContractRefused, NotFound
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import recover
from market.api.schemas import contest_digest
from market.domain.jobs import JobState
from market.domain.slashing import Conviction, Slash, SlashRules, settle_together
from market.service.ports import BlobStore, Chain, UnitOfWork
from market.service.rows import JobRow, SlashRow
from market.service.slash_events import WITH_CASE, blocks_of_case, tell_of_slash, times_announced

log = logging.getLogger(__name__)
OPEN = ("announcing", *WITH_CASE)
"""States in which a slash holds a part of the stake."""
IN_CASE = (*OPEN, "dropping")
"""States of a slash whose case has not ended: what it leaves of the stake is not known."""
UNENDED = ("convicted", *IN_CASE)
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
    conviction: Conviction, now: UnixMillis, work: UnitOfWork, blobs: BlobStore
) -> SlashRow:
    """Note a conviction. Safe to repeat: one that is known is returned as it is.

    Raises:
        NotFound: no such job, or its evidence is not published here.
    """
    if await blobs.size(conviction.evidence) is None:
        raise NotFound("the evidence is no blob of this market", digest=conviction.evidence.hex())
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
            convicted_at=now,
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
    return [row.evidence for row in planned if await _tried(row, _announce(row, work, chain))]


async def execute_slashes(now: UnixMillis, work: UnitOfWork, chain: Chain) -> list[Digest]:
    """End the cases whose time has come; returns their evidence. Safe to repeat."""
    async with work:
        rows = await work[SlashRow].where(state=(*WITH_CASE, "dropping"))
    return [row.evidence for row in rows if await _tried(row, _end(row, now, chain))]


async def contest_slash(
    evidence: Digest,
    bundle: Digest,
    signature: bytes,
    *,
    now: UnixMillis,
    work: UnitOfWork,
    blobs: BlobStore,
    chain: Chain,
) -> SlashRow:
    """The convicted shows a bundle that speaks for it. Safe to repeat.

    Raises:
        NotFound: no such slash, or the bundle is no blob of this market.
        BadSignature: not by the convicted account's wallet.
        Conflict: it is not announced, its case ran out, or it was contested with another bundle.
    """
    if await blobs.size(bundle) is None:
        raise NotFound("the bundle is no blob of this market", digest=bundle.hex())
    async with work:
        row = await _held(evidence, work)
    # Nobody could judge it any more: it would be dropped without an answer.
    if row.state == "announced" and not await _can_be_answered(row, now, chain):
        raise Conflict("its case ran out, and is announced again", state=row.state)
    async with work:
        row = await _held(evidence, work)
        if recover(contest_digest(evidence, bundle), signature) != row.account:
            raise BadSignature(f"not signed by 0x{row.account.hex()}")
        if row.contest == bundle:
            return row
        if row.state != "announced" or row.contest is not None:
            raise Conflict(f"a slash that is {row.state} cannot be contested so", state=row.state)
        row = replace(row, state="contested", contest=bundle)
        await work[SlashRow].put(row)
        await work.emit("slash", evidence)
        tell_of_slash(row, now, work)
    return row


async def judge_contest(
    evidence: Digest, *, upheld: bool, now: UnixMillis, work: UnitOfWork
) -> SlashRow:
    """The operator ran the bundles again: `upheld` ends the case without a slash.

    Raises:
        NotFound: no such slash. Conflict: it is not contested.
    """
    async with work:
        row = await _held(evidence, work)
        if row.state != "contested":
            raise Conflict(f"a slash that is {row.state} is not contested", state=row.state)
        is_on_chain = row.case is not None  # a chain that went back may not have it again yet
        rejected = "announced" if is_on_chain else "announcing"
        row = replace(row, state="dropping" if upheld else rejected)
        await work[SlashRow].put(row)
        await work.emit("slash", evidence)
        tell_of_slash(row, now, work)
    return row


async def _tried(row: SlashRow, doing: Awaitable[bool]) -> bool:
    """One that the chain refuses is told, and found again; it holds up no other."""
    try:
        return await doing
    except ContractRefused as refusal:
        log.warning("slash %s: %s: %s", row.evidence.hex(), refusal.code, refusal.message)
        return False


async def _can_be_answered(row: SlashRow, now: UnixMillis, chain: Chain) -> bool:
    found = None if row.case is None else await chain.slash_case(row.case)
    return found is not None and now < found.executable_until * 1000


async def _held(evidence: Digest, work: UnitOfWork) -> SlashRow:
    row = await work[SlashRow].lock(evidence)
    if row is None:
        raise NotFound("no such slash", evidence=evidence.hex())
    return row


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
        if (held := await work[SlashRow].lock(row.evidence)) and held.state == "convicted":
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
        if lacks and any(row.state in IN_CASE for row in rows):
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
                state="announcing",
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
    slash = Slash(
        row.evidence, row.job, row.account, row.amount, row.restitution, row.challenger, row.bounty
    )
    async with work:
        before = await times_announced(row, work)
    try:
        await chain.announce_slash(slash, before)
        return True
    except ContractRefused as refusal:
        if "SlashCap" not in refusal.message:  # the stake is smaller than it was
            raise
    async with work:
        held = await work[SlashRow].lock(row.evidence)
        if held is not None and held.state == "announcing":
            await work[SlashRow].put(replace(held, state="convicted", amount=BaseUnits(0)))
    return False


async def _end(row: SlashRow, now: UnixMillis, chain: Chain) -> bool:
    """Execute or drop a case, if it is time; False if it is not, or it has ended."""
    if row.case is None or (found := await chain.slash_case(row.case)) is None:
        return False
    runs_out = found.executable_until * 1000 <= now
    try:
        if row.state == "dropping" or runs_out:
            await chain.drop_slash(row.case)
            return True
        if row.state != "announced" or found.executable_at * 1000 > now:
            return False
        await chain.pass_time(found.executable_at)
        await chain.execute_slash(row.case)
        return True
    except ContractRefused as refusal:
        if not any(error in refusal.message for error in ("NotExecutable", "UnknownCase")):
            raise
        return False
