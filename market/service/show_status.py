"""How the market itself is: what it has seen of the chain, what waits, who was heard.

What waits are things that only the market can do, each since when it could be done first.
Units: milliseconds.
"""

import platform
from contextlib import suppress

from contracts.terms.errors import Unavailable
from contracts.terms.moments import UnixMillis
from market.bodies.market import (
    BatchStatusView,
    BeatView,
    ChainActionView,
    ChainStatusView,
    FeedStatusView,
    HostStatusView,
    StatusView,
    UnanchoredView,
)
from market.domain.jobs import JobState
from market.service.host_jobs import HOSTING_MILLIS
from market.service.note_beat import NOTED_EVERY
from market.service.ports import Chain, UnitOfWork
from market.service.rows import (
    BatchRow,
    BeatRow,
    CursorRow,
    FaucetRow,
    HostedJobRow,
    HostRow,
    JobRow,
    OrderRow,
    SealRow,
    SlashRow,
)

MAX_HOSTS = 200
MAX_LOOKED_AT = 500
"""Rows that are looked at for the oldest one that waits."""
_NOTED_MILLIS = round(NOTED_EVERY.total_seconds() * 1000)


async def status_of(
    now: UnixMillis,
    work: UnitOfWork,
    chain: Chain,
    *,
    version: str,
    confirmations: int,
    feed: FeedStatusView,
) -> StatusView:
    """How the market is; without the chain's blocks while no node answers."""
    async with work:
        cursors = await work[CursorRow].where(order="-block", limit=1)
        jobs = {state.value: await work[JobRow].count(state=state.value) for state in JobState}
        actions = await _waiting(now, work)
        batch = await _batch(now, work)
        unanchored = await _unanchored(now, work)
        hosts = await _hosts(now, work)
        beats = sorted(await work[BeatRow].where(), key=lambda row: row.queue)
    return StatusView(
        version=version,
        python=platform.python_version(),
        clock=now,
        chain=await _chain(chain, cursors[0].block if cursors else None, confirmations, now),
        jobs=jobs,
        feed=feed,
        actions=actions,
        batch=batch,
        unanchored=unanchored,
        hosts=hosts,
        beats=tuple(
            BeatView.of(row, lag_millis=max(0, _age(now, row.at) - _NOTED_MILLIS)) for row in beats
        ),
    )


def _age(now: UnixMillis, since: int) -> int:
    return max(0, now - since)


async def _chain(
    chain: Chain, seen: int | None, confirmations: int, now: UnixMillis
) -> ChainStatusView:
    head = settled = None
    with suppress(Unavailable):
        head, settled = await chain.heads()
    return ChainStatusView(
        reachable=head is not None,
        head=None if head is None else head.number,
        head_age_millis=None if head is None else _age(now, head.timestamp * 1000),
        settled=None if settled is None else settled.number,
        seen=seen,
        lag_blocks=None if settled is None or seen is None else max(0, settled.number - seen),
        confirmations=confirmations,
    )


async def _waiting(now: UnixMillis, work: UnitOfWork) -> tuple[ChainActionView, ...]:
    limit = MAX_LOOKED_AT
    drafts = await work[JobRow].where(state=JobState.DRAFT.value, order="posted_at", limit=limit)
    orders = await work[OrderRow].where(
        transaction=None, refusal=None, order="asked_at", limit=limit
    )
    batches = await work[BatchRow].where(block=None, order="number", limit=limit)
    slashes = await work[SlashRow].where(state="convicted", order="convicted_at", limit=limit)
    grants = await work[FaucetRow].where(state="asked", order="asked_at", limit=limit)
    moments = {
        "fund": [row.posted_at for row in drafts],
        "relay": [row.asked_at for row in orders],
        "anchor": [row.created_at for row in batches],
        "announce": [row.convicted_at for row in slashes],
        "faucet": [row.asked_at for row in grants],
    }
    found = (
        ChainActionView(
            what=what, waiting=len(each), since=min(each), age_millis=_age(now, min(each))
        )
        for what, each in moments.items()
        if each
    )
    return tuple(sorted(found, key=lambda each: each.since))


async def _batch(now: UnixMillis, work: UnitOfWork) -> BatchStatusView | None:
    newest = await work[BatchRow].where(order="-number", limit=1)
    views = (BatchStatusView.of(row, age_millis=_age(now, row.created_at)) for row in newest)
    return next(views, None)


async def _unanchored(now: UnixMillis, work: UnitOfWork) -> UnanchoredView | None:
    """The oldest seal in no batch, or in one that is not on chain; and how many there are."""
    batches = await work[BatchRow].where(block=None, order="number", limit=MAX_LOOKED_AT)
    roots = tuple(batch.root for batch in batches)
    fresh = await work[SealRow].where(batch=None, order="stored_at", limit=1)
    sent = await work[SealRow].where(batch=roots, order="stored_at", limit=1)
    num = await work[SealRow].count(batch=None)
    num += await work[SealRow].count(batch=roots) if roots else 0
    oldest = min([*fresh, *sent], key=lambda seal: seal.stored_at, default=None)
    if oldest is None:
        return None
    return UnanchoredView.of(oldest, age_millis=_age(now, oldest.stored_at), seals=num)


async def _hosts(now: UnixMillis, work: UnitOfWork) -> tuple[HostStatusView, ...]:
    rows = await work[HostRow].where(order="-heard_at", limit=MAX_HOSTS)
    return tuple(
        [
            HostStatusView.of(
                row,
                age_millis=_age(now, row.heard_at),
                is_heard=now - row.heard_at <= HOSTING_MILLIS,
                jobs=await work[HostedJobRow].count(host=row.host),
            )
            for row in rows
        ]
    )
