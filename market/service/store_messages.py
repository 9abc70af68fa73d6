"""Kept items of a job arrive: each checked, stored once and in order.

Only the coordinator that the spec names adds to a job's stream: what its feed does not know would
stand between it and every later seal. What may come next is decided by
`contracts.governance.job.follow`, as for coordinator, members and audit. A post is stored whole or
not at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from contracts.governance.job import JobHistory, follow
from contracts.governance.record import check_signature
from contracts.terms import errors
from contracts.terms.auditors import AuditorList
from contracts.terms.encoding import encode
from contracts.terms.history import Kept, decode_kept, encode_kept, kept_digest, names_under
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.messages import JobOpening, LeaseAccept, Seal
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed, expect
from contracts.terms.targets import TargetCounts
from contracts.terms.work import UNDER_A_SEAL
from market.bodies.base import Stored
from market.domain.jobs import HAS_ENDED, JobState, takes_messages, trained_steps
from market.service.auditors import check_opening
from market.service.claims import PAUSE_MILLIS
from market.service.coding import encode_pay, stored_name
from market.service.convictions import note_convictions
from market.service.due import note_due
from market.service.feeds import tell_job
from market.service.find_job import find_job
from market.service.histories import Histories
from market.service.leases import SILENT
from market.service.life import happen
from market.service.message_events import events_of
from market.service.ports import Chain, UnitOfWork
from market.service.reputation import note_outcomes
from market.service.rows import JobRow, LeaseRow, MessageRow, SealRow


async def store_messages(
    job: JobId,
    encoded: Sequence[bytes],
    *,
    by: Address,
    now: UnixMillis,
    work: UnitOfWork,
    chain: Chain,
    histories: Histories,
) -> Stored:
    """Store what is new of a post by the account `by`. Safe to repeat: known items are skipped.

    Raises:
        NotFound: no such job.
        Forbidden: `by` is not its coordinator.
        BadSignature, Malformed, UnknownVersion, Conflict: an item may not stand where it stands.
        Equivocation, InvalidSeal: its signer broke the protocol; nothing of the post is stored.
        Unavailable: the job has to be matched again.
    """
    items = [(decode_kept(data), data) for data in encoded]
    async with work:
        row = await find_job(job, work, lock=True)
        if row.coordinator != by:
            raise errors.Forbidden(
                "only its coordinator adds to a job's messages", coordinator=row.coordinator.hex()
            )
        new = await _unknown(row, items, work)
        if new and row.state == JobState.FUNDED:
            raise errors.Unavailable(
                "a lease lapsed: the job takes messages when it is matched again"
            )
        if new and not takes_messages(JobState(row.state), is_open=row.opening is not None):
            raise errors.Conflict(f"a job that is {row.state} takes no messages", state=row.state)
        history = await histories.load(job, row.num_messages, work)
        post = _Post(row, history, await _stored_under_names_of(row, new, work))
        for item, data in new:
            await _take(post, item, data, now, work, chain)
        if new:
            await _write(post, work)
            await work[JobRow].put(post.row)
    histories.remember(job, post.row.num_messages, post.history)
    return Stored(stored=len(new), known=len(items) - len(new))


@dataclass
class _Post:
    """A job as a post changes it; its messages are written before the row of a seal."""

    row: JobRow
    history: JobHistory
    named: dict[Digest, bytes]  # what bears a name: stored, or earlier in this post
    unwritten: list[MessageRow] = field(default_factory=list)


async def _write(post: _Post, work: UnitOfWork) -> None:
    await work[MessageRow].add_all(post.unwritten)
    post.unwritten.clear()


async def _unknown(
    row: JobRow, items: Sequence[tuple[Kept, bytes]], work: UnitOfWork
) -> list[tuple[Kept, bytes]]:
    """Items that are not stored, each once, in order."""
    named = {kept_digest(item): (item, data) for item, data in items}
    stored = await work[MessageRow].where(job=row.job, digest=tuple(named))
    known = {each.digest for each in stored}
    return [pair for name, pair in named.items() if name not in known]


async def _stored_under_names_of(
    row: JobRow, new: Sequence[tuple[Kept, bytes]], work: UnitOfWork
) -> dict[Digest, bytes]:
    """What is stored under a name that a new item bears."""
    names = tuple(name for item, _ in new if (name := stored_name(item)) is not None)
    stored = await work[MessageRow].where(job=row.job, name=names)
    return {each.name: each.data for each in stored if each.name is not None}


async def _take(
    post: _Post, item: Kept, data: bytes, now: UnixMillis, work: UnitOfWork, chain: Chain
) -> None:
    _check_name(post, item)
    earlier = post.history
    post.history = follow(earlier, item)
    post.row = replace(post.row, num_messages=post.row.num_messages + 1)
    message = _message(post.row, item, data)
    post.unwritten.append(message)
    if message.name is not None:
        post.named[message.name] = data
    if isinstance(item, Signed):
        match item.message:
            case JobOpening():
                post.row = await _opened(post.row, expect(item, JobOpening), now, work, chain)
            case LeaseAccept():
                await _check_lease(item.message, work)
            case Seal():
                await _write(post, work)
                post.row = await _sealed(post, earlier, expect(item, Seal), now, work)
    for event in events_of(earlier, post.history, item, now):
        tell_job(post.row.job, event, work)


def _check_name(post: _Post, item: Kept) -> None:
    """Two values under one name by one signer, in any step (`follow` sees the open step only)."""
    name = stored_name(item)
    if name is None or not isinstance(item, Signed) or post.history.record is None:
        return
    if not isinstance(item.message, (*UNDER_A_SEAL, Seal)):
        return  # openings and leases: `follow` compares them with all that came before
    other = post.named.get(name)
    if other is None:
        return
    known = decode_kept(other)
    check_signature(post.history.record, item)
    if not isinstance(known, Signed) or known.message == item.message:
        raise errors.Conflict(f"this {item.message.kind} is known with another signature")
    raise errors.Equivocation(
        f"two values of one {item.message.kind}",
        first=known.message.digest().hex(),
        second=item.message.digest().hex(),
    )


def _message(row: JobRow, item: Kept, data: bytes) -> MessageRow:
    if encode_kept(item) != data:
        raise errors.WrongBytes("an item that is not in canonical form")
    kind = "leaves"
    if isinstance(item, Signed):
        kind = item.message.kind
    elif isinstance(item, AuditorList | TargetCounts):
        kind = item.kind
    return MessageRow(
        job=row.job,
        sequence=row.num_messages,
        digest=kept_digest(item),
        name=stored_name(item),
        kind=kind,
        data=data,
    )


async def _opened(
    row: JobRow, opening: Signed[JobOpening], now: UnixMillis, work: UnitOfWork, chain: Chain
) -> JobRow:
    if opening.message.anchorer != chain.anchorer:
        raise errors.Conflict(
            "the opening names an anchorer that is not of this market",
            would_fit=chain.anchorer.hex(),
        )
    await check_opening(row, opening.message, work)
    block = opening.message.opening_block
    row = replace(row, opening=opening.encoded(), opening_block=block)
    return await happen(row, "opened", now, work)


async def _check_lease(accept: LeaseAccept, work: UnitOfWork) -> None:
    for lease in await work[LeaseRow].where(session_key=accept.session_key):
        if lease.accept_digest == accept.digest() and lease.state in ("active", SILENT, "ended"):
            return
    raise errors.Conflict("the LeaseAccept is of no active lease of this market")


async def _sealed(
    post: _Post, earlier: JobHistory, seal: Signed[Seal], now: UnixMillis, work: UnitOfWork
) -> JobRow:
    row, record, newest = post.row, post.history.record, post.history.newest
    if record is None or newest is None:
        raise errors.InvariantBroken("a seal was followed and is not the newest")
    message = seal.message
    stored = SealRow(
        job=row.job,
        step=message.step,
        digest=message.digest(),
        signed=seal.encoded(),
        under=encode([*names_under(earlier.pending_of(newest.names))]),
        pay=encode_pay(newest.pay),
        earned=message.earned,
        vested=message.vested,
        last=message.last,
        stored_at=now,
    )
    await work[SealRow].add(stored)
    trained = trained_steps(message, record.spec.batch)
    row = replace(row, step=int(message.step), trained=trained, is_sealed=message.last)
    await work[JobRow].put(row)
    await note_convictions(record, work)
    await note_outcomes(record, work)
    if message.last:
        row = await happen(row, "last_sealed", now, work)
    if JobState(row.state) in HAS_ENDED:
        await note_due(row.job, "claim", now if message.last else now + PAUSE_MILLIS, work)
    return row
