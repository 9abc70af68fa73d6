"""What parties sign for the escrow of a job is taken in, and sent.

A Grant or End by the job's coordinator, a Bond or Quit by an account, a Close by its poster: the
market keeps it as a row and pays the gas. An order is sent once, by the digest of its message; what
the chain makes of it is told by its events. A bond waits until the account's free balance covers
it; whatever is not sent by its `by` is worth nothing any more. Times are Unix seconds.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Sequence, Set
from dataclasses import dataclass, replace

from contracts.governance.escrow import EscrowTimes
from contracts.terms.errors import (
    Conflict,
    ContractRefused,
    Expired,
    Forbidden,
    Malformed,
)
from contracts.terms.escrow_messages import Bond, Close, End, Grant, Quit
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.messages import JobHeader
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed, decode_signed, expect, verify_wallet
from market.service.coding import spec_of
from market.service.due import note_due
from market.service.find_job import find_job
from market.service.leases import LIVE
from market.service.money import budget_of, terms_of
from market.service.ports import Chain, Order, UnitOfWork
from market.service.rows import (
    AuditBondRow,
    BudgetRow,
    FreeMoneyRow,
    JobRow,
    LeaseRow,
    LimitRow,
    OrderRow,
)

MAX_WAITING = 16  # of one signer in a job
MAX_AN_HOUR = 600  # of one kind and signer in a job: each costs the market gas
TURNS = {"close": 0, "end": 1, "grant": 1, "quit": 2}
"""Who signs little is not behind the many."""
MAX_BONDS = 100  # in one call
MAX_SENT = 50  # others, in one look
WAIT_MILLIS = 5_000
"""Until what waits for money is looked at again."""
ROOM_MILLIS = 60_000
"""For which a grant waits that bucket or budget leave no room for: confirmed events come late."""
log = logging.getLogger(__name__)


# ------------------------------------------------------------------------------------------ intake


async def take_order(
    job: JobId, encoded: bytes, now: UnixMillis, work: UnitOfWork, chain: Chain
) -> OrderRow:
    """Keep an order; it is sent next. Safe to repeat: one that is known is returned as it is.

    Raises:
        Malformed, UnknownVersion: it is no order for this job.
        NotFound: no such job.
        BadSignature: not by who may give it.
        Forbidden: its signer, or an account that it names, has nothing to do with the job.
        Expired: its time is over.
        Conflict: the escrow does not hold the job, or too many of its signer wait.
    """
    signed, times = order_of(encoded), await chain.times()
    message = signed.message
    if message.job != job:
        raise Malformed("it is an order for another job", job=message.job.hex())
    async with work:
        row = await find_job(job, work)
    match message:
        case Grant() | End():
            signer = row.coordinator
        case Close():
            signer = row.poster
        case _:
            signer = message.account
    verify_wallet(signed, signer, chain.domain)  # before the row is held: strangers hold up nobody
    async with work:
        await work[JobRow].lock(job)
        if known := await work[OrderRow].get(message.digest()):
            return known
        if await work[BudgetRow].get(job) is None:
            raise Conflict("the escrow does not hold this job's budget yet", job=job.hex())
        match message:
            case Grant(limits=limits):
                await _need_parts(job, {each.account for each in limits}, work)
            case End(accounts=accounts):
                await _need_parts(job, set(accounts), work)
            case Bond(account=account) if not await _is_asked(job, account, work):
                raise Forbidden("this account has no lease in the job, and is not to audit it")
            case Quit(account=account) if await work[LimitRow].get(job, account) is None:
                raise Forbidden("this account has neither a limit nor a stake in the job")
        return await store_order(signed, times, now, work)


def order_of(encoded: bytes) -> Signed[Order]:
    """An order from its bytes.

    Raises:
        Malformed, UnknownVersion: it is none.
    """
    signed = decode_signed(encoded)
    if isinstance(signed.message, Grant | Bond | Quit | End):
        return Signed(signed.message, signed.signature)
    return expect(signed, Close)


async def store_order(
    signed: Signed[Order], times: EscrowTimes, now: UnixMillis, work: UnitOfWork
) -> OrderRow:
    """Keep an order whose signature was checked; the caller holds the job's row.

    Raises:
        Expired: its time is over. Malformed: it counts for longer than the escrow allows.
        Conflict: too many of its signer wait.
    """
    message = signed.message
    if known := await work[OrderRow].get(message.digest()):
        return known
    if message.by * 1000 < now:
        raise Expired("this order counts no more", by=message.by, now=now // 1000)
    if message.by > now // 1000 + times.margin:
        raise Malformed(
            f"by lies more than {times.margin} s ahead, so the escrow would refuse it",
            would_fit=now // 1000 + times.margin,
        )
    account = message.account if isinstance(message, Bond | Quit) else None
    kind = message.kind.partition(".")[0]
    waiting = await _waiting(message.job, work)
    by_signer = (
        each for each in waiting if _signer(each.account, each.kind) == _signer(account, kind)
    )
    if len([*by_signer]) >= MAX_WAITING:
        raise Conflict(f"{MAX_WAITING} orders of this signer wait to be sent")
    newest = await work[OrderRow].where(
        job=message.job, account=account, kind=kind, order="-asked_at", limit=MAX_AN_HOUR
    )
    if len(newest) == MAX_AN_HOUR and newest[-1].asked_at + 3_600_000 > now:
        raise Conflict(f"the market sends {MAX_AN_HOUR} such orders an hour: send it yourself")
    row = OrderRow(
        digest=message.digest(),
        job=message.job,
        account=account,
        kind=kind,
        signed=signed.encoded(),
        by=message.by,
        asked_at=now,
    )
    await work[OrderRow].add(row)
    await note_due(row.job, "grant", now, work)
    return row


def _signer(account: Address | None, kind: str) -> Address | str:
    """Who signed an order of a job: the account, its poster or its coordinator."""
    return account or ("poster" if kind == "close" else "coordinator")


async def _need_parts(job: JobId, accounts: Set[Address], work: UnitOfWork) -> None:
    """A coordinator has the market's gas for who works in the job or audits it, and no others.

    Raises:
        Forbidden: somebody never had a lease there, and was not asked to audit.
    """
    named = tuple(accounts)
    known = {lease.account for lease in await work[LeaseRow].where(job=job, account=named)}
    known |= {bond.account for bond in await work[AuditBondRow].where(job=job, account=named)}
    for account in sorted(accounts - known):
        raise Forbidden(
            f"0x{account.hex()} has no lease in the job, and is not to audit it",
            account=account.hex(),
        )


async def _is_asked(job: JobId, account: Address, work: UnitOfWork) -> bool:
    """Whether a stake of this account is of use in the job."""
    if await work[LeaseRow].where(job=job, account=account, state=LIVE, limit=1):
        return True
    bond = await work[AuditBondRow].get(job, account)
    return bond is not None and bond.state != "refused"


# ----------------------------------------------------------------------------------------- sending


@dataclass(frozen=True)
class _Plan:
    """What is sent now."""

    header: JobHeader
    bonds: Sequence[OrderRow]
    others: Sequence[OrderRow]
    num_left: int  # that wait on


async def relay_orders(
    job: JobId, now: UnixMillis, work: UnitOfWork, chain: Chain
) -> UnixMillis | None:
    """Send the orders of a job that wait. Safe to repeat and to interrupt.

    Returns:
        When to look again; None: nothing waits.

    Raises:
        Unavailable: something may or may not have been sent.
    """
    async with work:
        plan = await _plan(job, now, work)
    if plan is None:
        return None
    for first in range(0, len(plan.bonds), MAX_BONDS):
        await _send_bonds(job, plan.bonds[first : first + MAX_BONDS], work, chain)
    for each in plan.others:
        await _send([each], chain.relay(plan.header, order_of(each.signed)), work)
    return UnixMillis(now + WAIT_MILLIS) if plan.num_left else None


async def _plan(job: JobId, now: UnixMillis, work: UnitOfWork) -> _Plan | None:
    row = await work[JobRow].lock(job)
    waiting = await _waiting(job, work)
    if row is None or not waiting:
        return None
    refused = {each.digest: "it came too late" for each in waiting if each.by * 1000 < now}
    header = spec_of(row).message.header()
    budget = await work[BudgetRow].get(job)
    if budget is None:
        left = await _refuse(waiting, refused, work)
        return _Plan(header, (), (), len(left))
    limits = {each.account: each for each in await work[LimitRow].where(job=job)}
    for each in waiting:
        if (why := await _is_vain(each, budget, limits, work)) is not None:
            refused.setdefault(each.digest, why)
        elif each.asked_at + ROOM_MILLIS < now and not _has_room(each, budget, limits, now):
            refused.setdefault(each.digest, "bucket and budget leave no room for it")
    left = await _refuse(waiting, refused, work)
    covered = await _covered([each for each in left if each.kind == "bond"], limits, work)
    ready = [each for each in left if each.kind != "bond" and _has_room(each, budget, limits, now)]
    others = _first_of_each(ready)[:MAX_SENT]
    return _Plan(header, covered, others, len(left) - len(covered) - len(others))


def _first_of_each(orders: Sequence[OrderRow]) -> list[OrderRow]:
    """Those that may be sent at once, the poster's before the coordinator's and the accounts'.

    A second close, or quit of an account, waits until the first is known: it is vain then.
    """
    ends = dict[tuple[str, Address | None], OrderRow]()
    for each in orders:
        ends.setdefault((each.kind, each.account), each)
    wanted = [
        each
        for each in orders
        if each.kind not in ("close", "quit") or ends[each.kind, each.account] is each
    ]
    return sorted(wanted, key=lambda each: TURNS[each.kind])


async def _is_vain(
    order: OrderRow, budget: BudgetRow, limits: dict[Address, LimitRow], work: UnitOfWork
) -> str | None:
    """Why an order would change nothing, as far as the chain is confirmed."""
    message = order_of(order.signed).message
    if budget.closed_at and not isinstance(message, End | Quit):
        return "the job is closed"
    match message:
        case End(accounts=accounts):
            if all(account in limits and limits[account].end for account in accounts):
                return "their work in the job has ended"
        case Quit(account=account):
            if account in limits and limits[account].end:
                return "the account's work in the job has ended"
        case Grant(limits=wanted):
            known = (limits.get(each.account) for each in wanted)
            if all(
                it is not None and (it.end or it.limit >= each.limit)
                for each, it in zip(wanted, known, strict=True)
            ):
                return "it raises no limit"
        case Bond(job=job, account=account, stake=stake):
            held = limits.get(account)
            if held is not None and held.stake >= stake:
                return "its stake is there"
            if held is not None and held.end:
                return "the account's work in the job has ended"
            if not await _is_asked(job, account, work):
                return "its lease is over"
    return None


def _has_room(
    order: OrderRow, budget: BudgetRow, limits: dict[Address, LimitRow], now: UnixMillis
) -> bool:
    """Whether an order is no grant of which the escrow would skip all."""
    message, held = order_of(order.signed).message, budget_of(budget)
    if not isinstance(message, Grant):
        return True
    room = min(held.allowance_at(terms_of(budget), now // 1000), held.free)
    known = {account: row.limit for account, row in limits.items()}
    return any(0 < each.limit - known.get(each.account, 0) <= room for each in message.limits)


async def _covered(
    bonds: Sequence[OrderRow], limits: dict[Address, LimitRow], work: UnitOfWork
) -> list[OrderRow]:
    """The highest bond of each account, if its free balance covers it."""
    of_account = defaultdict[Address, list[tuple[int, OrderRow]]](list)
    for each in bonds:
        bond = expect(decode_signed(each.signed), Bond).message
        of_account[bond.account].append((bond.stake, each))
    accounts = tuple(of_account)
    rows = await work[FreeMoneyRow].where(account=accounts)
    free = Counter({row.account: row.amount for row in rows})
    found = []
    for account, of_one in of_account.items():
        stake, order = max(of_one, key=lambda pair: pair[0])
        held = limits[account].stake if account in limits else 0
        if stake - held <= free[account]:
            found.append(order)
    return found


async def _send_bonds(
    job: JobId, bonds: Sequence[OrderRow], work: UnitOfWork, chain: Chain
) -> None:
    """All in one call; one that the chain refuses as a whole is sent bond by bond."""
    signed = [expect(decode_signed(each.signed), Bond) for each in bonds]
    if len(bonds) == 1 or not await _send(
        bonds, chain.bond_many(job, signed), work, is_final=False
    ):
        for each, bond in zip(bonds, signed, strict=True):
            await _send([each], chain.bond_many(job, [bond]), work)


async def _send(
    orders: Sequence[OrderRow],
    sending: Awaitable[Digest],
    work: UnitOfWork,
    *,
    is_final: bool = True,
) -> bool:
    """Note the transaction, or, where it `is_final`, why there is none."""
    try:
        transaction, refusal = await sending, None
    except ContractRefused as error:
        log.warning("order %s: %s", orders[0].digest.hex(), error.message)
        if not is_final:
            return False
        transaction, refusal = None, error.message
    async with work:
        for each in orders:
            held = await work[OrderRow].lock(each.digest)
            if held is not None:
                await work[OrderRow].put(replace(held, transaction=transaction, refusal=refusal))
    return refusal is None


async def _refuse(
    waiting: Sequence[OrderRow], refused: dict[Digest, str], work: UnitOfWork
) -> list[OrderRow]:
    """Note why orders are not sent; returns the others."""
    for each in waiting:
        if each.digest in refused:
            await work[OrderRow].put(replace(each, refusal=refused[each.digest]))
    return [each for each in waiting if each.digest not in refused]


async def _waiting(job: JobId, work: UnitOfWork) -> list[OrderRow]:
    return await work[OrderRow].where(job=job, transaction=None, refusal=None, order="asked_at")
