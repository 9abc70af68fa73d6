"""A job's peers by stage: who serves, who is silent or gone, how much each does and earns.

A seat is a lease; its peer is the one that its session key names. Rates are of the newest steps.
Units: base units, shares 1e-6.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.governance.record import JobRecord
from contracts.terms.digest import peer_id
from contracts.terms.ids import Digest, JobId, PeerId, StageIndex, StepNumber
from contracts.terms.messages import MILLION
from contracts.terms.moments import UnixMillis
from market.bodies.earnings import PEERS_PAGE, PeersView, SeatStateName, SeatView
from market.domain.jobs import HAS_ENDED
from market.domain.offers import is_heard
from market.domain.sizes import item_tokens
from market.service.coding import spec_of
from market.service.find_job import find_job
from market.service.follow_jobs import Followed, FollowedJobs
from market.service.leases import LIVE, SILENT, heard_of
from market.service.ports import UnitOfWork
from market.service.reputation import reputation_view, reputations_of
from market.service.rows import LeaseRow, OfferRow, SealRow

RECENT = 8
"""Steps that a peer's rate is taken of."""
_NOBODY = PeerId(b"")


@dataclass(frozen=True)
class _Work:
    """What a fold says of recent steps, taken before others go on with it."""

    record: JobRecord | None
    newest: StepNumber
    units: Mapping[PeerId, int]
    of_stage: Mapping[StageIndex, int]
    recently: Mapping[PeerId, int]
    steps: tuple[int, int]  # that `recently` is of: beyond the first, up to the last
    stage_of: Mapping[PeerId, StageIndex]  # who has ever worked


async def peers_of(
    job: JobId,
    work: UnitOfWork,
    followed: FollowedJobs,
    *,
    now: UnixMillis,
    after: int = 0,
    limit: int = PEERS_PAGE,
) -> PeersView:
    """Seats of a job beyond the first `after`, at most `limit`.

    Raises:
        NotFound: no such job.
    """
    async with work:
        row = await find_job(job, work)
        leases = [each for each in await work[LeaseRow].where(job=job) if each.state != "lapsed"]
        found = await followed.load(job, row.num_messages, work)
        done = _work_of(found)
        spec = spec_of(row).message
        ordered = sorted(
            leases, key=lambda lease: (_stage(lease, done), lease.account, lease.lease)
        )
        page = ordered[after : after + limit]
        pay = [found.earnings.of_peer(_peer(lease) or _NOBODY) for lease in page]
        devices = await _devices(page, work)
        heard = await heard_of((lease.lease for lease in page), work)
        reputations = await reputations_of((lease.account for lease in page), work)
        millis = await _millis(job, done.steps, work)
        tokens = item_tokens(spec)
        seats = []
        for lease, earned in zip(page, pay, strict=True):
            peer, stage, heard_at = _peer(lease), _stage(lease, done), heard.get(lease.lease)
            units, recently = (
                done.units.get(peer or _NOBODY, 0),
                done.recently.get(peer or _NOBODY, 0),
            )
            is_alive, is_over = is_heard(heard_at, now), row.state in HAS_ENDED
            seats.append(
                SeatView.of(
                    lease,
                    peer=peer,
                    stage=stage,
                    state=_state(lease, peer, done, is_heard=is_alive, is_over=is_over),
                    device_class=devices.get(lease.offer, ""),
                    heard_at=heard_at,
                    units=units,
                    share=units * MILLION // max(1, done.of_stage.get(stage, 0)),
                    tokens_per_second=recently * tokens * 1000 // millis if millis else 0,
                    **earned._asdict(),
                    reputation=reputation_view(reputations[lease.account]),
                )
            )
        end = after + len(seats)
        return PeersView(
            job=job,
            stages=spec.batch.stages,
            step=row.step,
            worked=done.newest,
            num_seats=len(leases),
            seats=tuple(seats),
            next=end if seats and end < len(leases) else None,
        )


def _work_of(found: Followed) -> _Work:
    newest = found.earnings.worked
    units, of_stage, recently = Counter[PeerId](), Counter[StageIndex](), Counter[PeerId]()
    for line in found.work_of(newest):
        units[line.peer] += line.num_items
        of_stage[line.stage] += line.num_items
    first = max(1, newest - RECENT)  # whose seal the clock starts with
    for step in range(first + 1, newest + 1):
        for line in found.work_of(step):
            recently[line.peer] += line.num_items
    record, stage_of = found.history.record, dict(found.earnings.stage_of)
    return _Work(record, newest, units, of_stage, recently, (first, newest), stage_of)


def _state(
    lease: LeaseRow, peer: PeerId | None, done: _Work, *, is_heard: bool, is_over: bool
) -> SeatStateName:
    record = done.record
    is_member = record is not None and peer in record.members
    if record is not None and peer in record.checking.convicts:
        return "convicted" if is_member else "suspended"
    if is_member and is_over:  # it stayed to the end, and need not be heard of any more
        return "finished"
    if is_member:
        return "serving" if is_heard and lease.state != SILENT else "silent"
    if lease.state in LIVE and peer not in done.stage_of:
        return "expected"
    return "silent" if lease.state == SILENT else "left"


def _stage(lease: LeaseRow, done: _Work) -> StageIndex:
    """Where its peer is, or was; before it came, where it was meant to be."""
    peer = _peer(lease)
    if peer is not None and done.record is not None and peer in done.record.members:
        return done.record.members[peer]
    return done.stage_of.get(peer or _NOBODY, StageIndex(lease.stage))


def _peer(lease: LeaseRow) -> PeerId | None:
    return None if lease.session_key is None else peer_id(lease.session_key)


async def _devices(leases: Sequence[LeaseRow], work: UnitOfWork) -> dict[Digest, str]:
    names = tuple(lease.offer for lease in leases)
    offers = await work[OfferRow].where(offer=names)
    return {offer.offer: offer.device_class for offer in offers}


async def _millis(job: JobId, steps: tuple[int, int], work: UnitOfWork) -> int:
    """From the seal before the recent steps to the newest; 0 while there is one seal."""
    rows = await work[SealRow].where(job=job, step=steps, order="step")
    return rows[-1].stored_at - rows[0].stored_at if len(rows) > 1 else 0
