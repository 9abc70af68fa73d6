"""What checking has shown of a job's peers, and what their stakes are worth to them.

A docket knows its newest seal alone, so the tally of all seals is that of `follow_jobs`.
Units: base units, milliseconds, 1e-3 hours.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.governance.job import JobHistory
from contracts.governance.record import JobRecord
from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, JobId, PeerId, SessionKey, StepNumber
from contracts.terms.moments import UnixMillis
from market.bodies.offers import (
    ChecksView,
    OddsView,
    PeerChecksView,
    RatesView,
    ReceivedView,
    ReputationView,
)
from market.service.auditors import is_checked
from market.service.coding import spec_of
from market.service.find_job import find_job
from market.service.follow_jobs import FollowedJobs
from market.service.ports import UnitOfWork
from market.service.reputation import reputation_view, reputations_of
from market.service.rows import LeaseRow, SealRow
from verification.docket import Docket
from verification.draws.economics import Terms
from verification.draws.odds import VOLUMES, spelled
from verification.tallies import Received, Tally, rates_of

_MILLIS_IN_A_THOUSANDTH_HOUR = 3600
_NONE = Received(drawn=0, matched=0, mismatched=0, unrepeated=0, missing=0)


async def checks_of_job(
    job: JobId, work: UnitOfWork, followed: FollowedJobs, volumes: Sequence[int] = VOLUMES
) -> ChecksView:
    """Every peer that has joined, and the outside auditors of which a seal says something.

    Args:
        job: Which.
        work: To read in.
        followed: Folds of jobs.
        volumes: Odds are of so many falsified peer-steps, and of all of each peer.

    Raises:
        NotFound: no such job.
    """
    async with work:
        row = await find_job(job, work)
        checked = is_checked(spec_of(row).message)
        peers = await _peers(job, row.num_messages, work, followed) if checked else None
    # The product of a long job's rates takes seconds; others are answered meanwhile.
    views = () if peers is None else await asyncio.to_thread(peers.views, volumes)
    return ChecksView(job=job, checking="on" if checked else "off", step=row.step, peers=views)


@dataclass(frozen=True)
class _Peers:
    """What a fold and the rows say of a job's peers, before any odds are computed."""

    names: Sequence[PeerId]
    record: JobRecord
    terms: Terms
    tally: Tally
    earned: Mapping[Address, int]
    reserved_at: Mapping[SessionKey, UnixMillis]
    stored_at: Mapping[int, UnixMillis]
    reputations: Mapping[Address, ReputationView]

    def views(self, volumes: Sequence[int]) -> tuple[PeerChecksView, ...]:
        """Each peer with its odds at these volumes, by peer."""
        tally, leases = self.tally, self.record.pay_leases()
        odds, received = tally.odds(self.terms, volumes), tally.received()
        return tuple(
            PeerChecksView(
                peer=peer,
                account=leases[peer].account,
                stage=self.record.members.get(peer),
                peer_steps=len(tally.exposed.get(peer, ())),
                rates=RatesView.of(rates_of(done)) if (done := tally.exposed.get(peer)) else None,
                reports=tally.done[peer],
                missed=tally.missed[peer],
                received=ReceivedView.of(received.get(peer, _NONE)),
                odds=tuple(OddsView(**spelled(stated)) for stated in odds.get(peer, ())),
                stake=leases[peer].stake,
                stake_hours=self._stake_hours(peer, leases[peer].account, leases[peer].stake),
                convicted_at=tally.convicted.get(peer),
                reputation=self.reputations[leases[peer].account],
            )
            for peer in self.names
        )

    def _stake_hours(self, peer: PeerId, account: Address, stake: BaseUnits) -> int | None:
        worked = 0
        if peer in self.tally.worked:
            key = self.record.leases[peer].session_key
            began = self.reserved_at.get(key)
            worked = _millis_worked(self.tally.worked[peer], began, self.stored_at)
        return stake_hours(stake, self.earned.get(account, 0), worked)


async def _peers(
    job: JobId, num_messages: int, work: UnitOfWork, followed: FollowedJobs
) -> _Peers | None:
    """None: the job is not opened yet."""
    found = await followed.load(job, num_messages, work)
    history, record = found.history, found.history.record
    if record is None or not isinstance(record.checking, Docket):
        return None
    tally = found.tally.copy()  # others go on from it meanwhile
    leases = record.pay_leases()
    said_of = {*tally.done, *tally.missed, *tally.convicted, *tally.received()}
    names = sorted({*record.leases, *said_of})
    reputations = await reputations_of((leases[peer].account for peer in names), work)
    return _Peers(
        names,
        record,
        record.checking.rules.terms,
        tally,
        _earned(history),
        await _reserved_at(job, work),
        await _stored_at(job, tally, work),
        {account: reputation_view(each) for account, each in reputations.items()},
    )


def stake_hours(stake: BaseUnits, earned: int, worked_millis: int) -> int | None:
    """Thousandths of an hour in which as much as `stake` is earned at this pace, rounded down."""
    if earned <= 0 or worked_millis <= 0:
        return None
    return stake * worked_millis // (_MILLIS_IN_A_THOUSANDTH_HOUR * earned)


def _earned(history: JobHistory) -> Mapping[Address, int]:
    pay = history.newest.pay if history.newest is not None else ()
    return {leaf.account: leaf.earned for leaf in pay}


async def _reserved_at(job: JobId, work: UnitOfWork) -> dict[SessionKey, UnixMillis]:
    leases = await work[LeaseRow].where(job=job)
    return {each.session_key: each.reserved_at for each in leases if each.session_key is not None}


async def _stored_at(job: JobId, tally: Tally, work: UnitOfWork) -> dict[int, UnixMillis]:
    """When the seals came that anybody's work lies between, by step."""
    steps = {step for first, newest in tally.worked.values() for step in (first - 1, newest)}
    seals = await work[SealRow].where(job=job, step=tuple(sorted(steps)))
    return {seal.step: seal.stored_at for seal in seals}


def _millis_worked(
    steps: tuple[StepNumber, StepNumber],
    reserved_at: UnixMillis | None,
    stored_at: Mapping[int, UnixMillis],
) -> int:
    """From the seal before its first step, or else from its lease, to the seal of its newest."""
    first, newest = steps
    begun, end = stored_at.get(first - 1, reserved_at), stored_at.get(newest)
    return 0 if end is None or begun is None else end - begun
