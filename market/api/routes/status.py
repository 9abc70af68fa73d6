"""How the market itself is; answers while the chain does not."""

import platform
from typing import cast

from fastapi import APIRouter, Response

from contracts.terms.errors import Unavailable
from contracts.terms.moments import UnixMillis
from market.api.context import Api, ApiDep, WorkDep, answer
from market.api.watching import FeedStanding
from market.bodies import (
    BatchStatusView,
    BeatView,
    ChainActionView,
    ChainStatusView,
    EpochState,
    EpochStatusView,
    FeedStatusView,
    HostStatusView,
    StatusView,
    UnanchoredView,
)
from market.service.note_beat import NOTED_EVERY
from market.service.ports import UnitOfWork
from market.service.show_status import Status, status_of

router = APIRouter(tags=["status"])

_NOTED_MILLIS = round(NOTED_EVERY.total_seconds() * 1000)


@router.get("/status", response_model=StatusView)
async def get_status(api: ApiDep, work: WorkDep) -> Response:
    """Chain, queues, jobs by state, anchors, hosts, workers and feeds, each with its age."""
    return answer(await status_view(api, work))


async def status_view(api: Api, work: UnitOfWork) -> StatusView:
    """How the market is now."""
    now = api.market.clock()
    async with work:
        found = await status_of(now, work)
    return StatusView(
        version=api.version,
        python=platform.python_version(),
        clock=now,
        chain=await _chain(api, found, now),
        jobs=found.jobs,
        outbox=found.outbox,
        feed=_feed(api.watching.standing()),
        actions=tuple(
            ChainActionView(
                what=each.what,
                waiting=each.num,
                since=each.since,
                age_millis=_age(now, each.since),
            )
            for each in found.waiting
        ),
        batch=_batch(found, now),
        unanchored=_unanchored(found, now),
        epoch=_epoch(found),
        hosts=tuple(
            HostStatusView(
                host=each.host,
                heard_at=each.heard_at,
                age_millis=_age(now, each.heard_at),
                is_heard=each.is_heard,
                jobs=each.jobs,
            )
            for each in found.hosts
        ),
        beats=tuple(
            BeatView(queue=queue, at=at, lag_millis=max(0, _age(now, at) - _NOTED_MILLIS))
            for queue, at in sorted(found.beats.items())
        ),
    )


def _age(now: UnixMillis, since: int) -> int:
    return max(0, now - since)


async def _chain(api: Api, found: Status, now: UnixMillis) -> ChainStatusView:
    try:
        head, settled = await api.market.chain.heads()
    except Unavailable:
        return ChainStatusView(
            reachable=False,
            head=None,
            head_at=None,
            head_age_millis=None,
            settled=None,
            seen=found.seen,
            lag_blocks=None,
            confirmations=api.confirmations,
        )
    return ChainStatusView(
        reachable=True,
        head=head.number,
        head_at=head.timestamp,
        head_age_millis=_age(now, head.timestamp * 1000),
        settled=settled.number,
        seen=found.seen,
        lag_blocks=None if found.seen is None else max(0, settled.number - found.seen),
        confirmations=api.confirmations,
    )


def _feed(found: FeedStanding) -> FeedStatusView:
    return FeedStatusView(streams=found.streams, hears=found.hears, lag_millis=found.lag_millis)


def _batch(found: Status, now: UnixMillis) -> BatchStatusView | None:
    batch = found.batch
    if batch is None:
        return None
    return BatchStatusView(
        number=batch.number,
        root=batch.root,
        created_at=batch.created_at,
        age_millis=_age(now, batch.created_at),
        block=batch.block,
        coin=batch.coin,
    )


def _unanchored(found: Status, now: UnixMillis) -> UnanchoredView | None:
    seal = found.unanchored
    if seal is None:
        return None
    return UnanchoredView(
        job=seal.job,
        step=seal.step,
        stored_at=seal.stored_at,
        age_millis=_age(now, seal.stored_at),
        seals=found.num_unanchored,
    )


def _epoch(found: Status) -> EpochStatusView | None:
    if found.epoch is None:
        return None
    return EpochStatusView(
        epoch=found.epoch.epoch,
        state=cast(EpochState, found.epoch.state),
        planned_at=found.epoch.planned_at,
        window_ends=found.epoch.window_ends,
    )
