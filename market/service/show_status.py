"""How the market itself is: what it has seen of the chain, what waits, who was heard.

What waits are things that only the market can do, each since when it could be done first.
The caller is in a transaction. Units: milliseconds.
"""

from dataclasses import dataclass

from contracts.terms.ids import Digest, JobId
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.domain.jobs import JobState
from market.service.host_jobs import HOSTING_MILLIS
from market.service.ports import UnitOfWork
from market.service.rows import (
    BatchRow,
    BeatRow,
    CursorRow,
    EpochRow,
    FaucetRow,
    HostedJobRow,
    HostRow,
    JobRow,
    LeaseRow,
    OutboxRow,
    SealRow,
    SlashRow,
)

MAX_HOSTS = 200
MAX_LOOKED_AT = 500
"""Rows that are looked at for the oldest one that waits."""


@dataclass(frozen=True)
class Waiting:
    """A kind of chain action that waits: how many, and since when the oldest one does."""

    what: str  # fund, reserve, anchor, propose, finalize, announce, faucet
    num: int
    since: UnixMillis


@dataclass(frozen=True)
class HostStatus:
    """A host and how many jobs it holds."""

    host: str
    heard_at: UnixMillis
    jobs: int
    is_heard: bool


@dataclass(frozen=True)
class NewestBatch:
    """The last batch of seals that was made."""

    number: int
    root: Digest
    created_at: UnixMillis
    block: int | None
    coin: Digest | None


@dataclass(frozen=True)
class Unanchored:
    """The oldest seal that no batch on chain holds."""

    job: JobId
    step: int
    stored_at: UnixMillis


@dataclass(frozen=True)
class Status:
    """All of it, as rows say."""

    seen: int | None  # block up to which events are read
    jobs: dict[str, int]  # by state; all states
    outbox: int  # things that were not told yet
    waiting: tuple[Waiting, ...]  # the oldest first
    batch: NewestBatch | None
    unanchored: Unanchored | None
    num_unanchored: int
    epoch: EpochRow | None  # the newest one
    hosts: tuple[HostStatus, ...]
    beats: dict[str, UnixMillis]  # by queue


async def status_of(now: UnixMillis, work: UnitOfWork) -> Status:
    """How the market is."""
    cursors = await work[CursorRow].where(order="-block", limit=1)
    epochs = await work[EpochRow].where(order="-epoch", limit=1)
    unanchored, num_unanchored = await _unanchored(work)
    return Status(
        seen=cursors[0].block if cursors else None,
        jobs={state.value: await work[JobRow].count(state=state.value) for state in JobState},
        outbox=await work[OutboxRow].count(),
        waiting=await _waiting(now, work),
        batch=await _batch(work),
        unanchored=unanchored,
        num_unanchored=num_unanchored,
        epoch=epochs[0] if epochs else None,
        hosts=await _hosts(now, work),
        beats={row.queue: row.at for row in await work[BeatRow].where()},
    )


async def _waiting(now: UnixMillis, work: UnitOfWork) -> tuple[Waiting, ...]:
    limit = MAX_LOOKED_AT
    drafts = await work[JobRow].where(state=JobState.DRAFT.value, order="posted_at", limit=limit)
    leases = await work[LeaseRow].where(state="accepted", order="reserved_at", limit=limit)
    batches = await work[BatchRow].where(block=None, order="number", limit=limit)
    planned = await work[EpochRow].where(state="planned", limit=limit)
    proposed = await work[EpochRow].where(state="proposed", limit=limit)
    slashes = await work[SlashRow].where(state="convicted", order="convicted_at", limit=limit)
    grants = await work[FaucetRow].where(state="asked", order="asked_at", limit=limit)
    moments = {
        "fund": [row.posted_at for row in drafts],
        "reserve": [row.reserved_at for row in leases],
        "anchor": [row.created_at for row in batches],
        "propose": [row.planned_at for row in planned],
        "finalize": [ends for row in proposed if (ends := _millis(row.window_ends)) <= now],
        "announce": [row.convicted_at for row in slashes],
        "faucet": [row.asked_at for row in grants],
    }
    found = [Waiting(what, len(each), min(each)) for what, each in moments.items() if each]
    return tuple(sorted(found, key=lambda each: each.since))


def _millis(moment: UnixSeconds | None) -> UnixMillis:
    return UnixMillis((moment or 0) * 1000)


async def _batch(work: UnitOfWork) -> NewestBatch | None:
    newest = await work[BatchRow].where(order="-number", limit=1)
    return next(
        (NewestBatch(b.number, b.root, b.created_at, b.block, b.coin) for b in newest), None
    )


async def _unanchored(work: UnitOfWork) -> tuple[Unanchored | None, int]:
    """The oldest seal in no batch, or in one that is not on chain; and how many there are."""
    batches = await work[BatchRow].where(block=None, order="number", limit=MAX_LOOKED_AT)
    roots = tuple(batch.root for batch in batches)
    fresh = await work[SealRow].where(batch=None, order="stored_at", limit=1)
    sent = await work[SealRow].where(batch=roots, order="stored_at", limit=1) if roots else []
    num = await work[SealRow].count(batch=None)
    num += await work[SealRow].count(batch=roots) if roots else 0
    oldest = min([*fresh, *sent], key=lambda seal: seal.stored_at, default=None)
    if oldest is None:
        return None, 0
    return Unanchored(oldest.job, oldest.step, oldest.stored_at), num


async def _hosts(now: UnixMillis, work: UnitOfWork) -> tuple[HostStatus, ...]:
    rows = await work[HostRow].where(order="-heard_at", limit=MAX_HOSTS)
    return tuple(
        [
            HostStatus(
                row.host,
                row.heard_at,
                await work[HostedJobRow].count(host=row.host),
                now - row.heard_at <= HOSTING_MILLIS,
            )
            for row in rows
        ]
    )
