"""A job as it is now, folded from its live events, and asking it to pause, to resume or to end.

`fold` is pure, so a page, a terminal and a test say the same of the same events; `watch` follows
the market. What is asked is signed once, asked until answered, watched to its end. Nothing of it is
kept on disk: what is asked twice is wanted once, so a call that was interrupted is made again as it
was. Units: base units, 1e-6 nats, milliseconds unless named seconds.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import timedelta

from contracts.keys.wallet import Wallet
from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.errors import DeadlineExceeded
from contracts.terms.ids import Address, Digest, JobId, PeerId, StageIndex, StepNumber
from contracts.terms.moments import UnixMillis
from market.bodies.events import (
    AnchoredEvent,
    AuditedEvent,
    BeaconEvent,
    CheckpointEvent,
    ClaimedEvent,
    EndEvent,
    FundedEvent,
    JobEvent,
    LeaseEvent,
    LimitEvent,
    PeerEvent,
    PostedEvent,
    ReclaimedEvent,
    ReportedEvent,
    RuledEvent,
    SealedEvent,
    SlashEvent,
    StateEvent,
    UnmatchedEvent,
    UnpublishedEvent,
)
from market.bodies.jobs import AskJob, Excluded, JobAction, JobState, OperationView
from market.bodies.offers import LeaseState
from market.bodies.routes import GET_OPERATION, POST_CANCEL, POST_PAUSE, POST_RESUME, Route
from tallystick.sdk.client import MarketClient, retrying

PACE_STEPS = 20
"""Steps whose pace tells when the job will be done."""
DONE_STATES = ("finished", "closed", "failed")
"""States in which nothing is trained any more."""
NOTHING = BaseUnits(0)


@dataclass(frozen=True)
class LeaseLive:
    """A provider's lease."""

    account: Address
    stage: int
    price: PricePerPflop
    state: LeaseState


@dataclass(frozen=True)
class PeerLive:
    """A worker, by the coordinator's Notices."""

    stage: StageIndex
    account: Address | None
    is_member: bool
    is_suspended: bool = False


@dataclass(frozen=True)
class AuditsLive:
    """Draws and what became of them, as `job checks` counts them."""

    drawn: int = 0
    matched: int = 0
    mismatched: int = 0  # who did the work was convicted
    unrepeated: int = 0
    missing: int = 0
    reports: int = 0  # that arrived
    missed: int = 0  # that came too late
    open: Mapping[Digest, PeerId] = field(default_factory=dict)  # subject to who did it
    convicted: frozenset[PeerId] = frozenset()
    slashes: Mapping[Digest, SlashEvent] = field(default_factory=dict)  # newest of each


@dataclass(frozen=True)
class CheckpointLive:
    """Where a stage's weights are."""

    step: StepNumber
    blob: Digest
    is_here: bool


@dataclass(frozen=True)
class JobLive:
    """A job after event `number`. Begin with `JobLive(job)`."""

    job: JobId
    number: int = 0
    at: UnixMillis | None = None  # of the newest event
    posted: PostedEvent | None = None
    state: JobState | None = None
    failure: str | None = None
    not_matched: tuple[Excluded, ...] = ()
    leases: Mapping[Digest, LeaseLive] = field(default_factory=dict)
    peers: Mapping[PeerId, PeerLive] = field(default_factory=dict)
    step: int = 0  # the last sealed one
    loss_millionths: int | None = None
    validation_millionths: int | None = None
    tokens_per_second: int | None = None
    sealed: tuple[tuple[int, UnixMillis], ...] = ()  # the newest steps, for the pace
    is_last_sealed: bool = False
    audits: AuditsLive = AuditsLive()
    anchored_step: int = 0
    beacon_step: int = 0
    checkpoints: Mapping[StageIndex, CheckpointLive] = field(default_factory=dict)
    unpublished: Mapping[StageIndex, str] = field(default_factory=dict)  # why, of the newest
    funded: BaseUnits = NOTHING  # brought less what the poster took back
    limits: Mapping[Address, BaseUnits] = field(default_factory=dict)
    earned: BaseUnits = NOTHING  # what the job owes, vested or not
    vested: BaseUnits = NOTHING
    claimed: BaseUnits = NOTHING
    is_ended: bool = False  # nothing more is to come

    @property
    def is_done(self) -> bool:
        """Whether nothing is trained any more."""
        return self.state in DONE_STATES

    @property
    def is_over(self) -> bool:
        """Whether nothing is trained any more, and all that was is in here."""
        # `finished` is told before the seal that it follows from.
        return self.is_done and (self.state != "finished" or self.is_last_sealed)

    @property
    def committed(self) -> BaseUnits:
        """The sum of all limits: what is set aside for workers."""
        return BaseUnits(sum(self.limits.values()))

    @property
    def num_members(self) -> int:
        """Peers that work."""
        return sum(peer.is_member for peer in self.peers.values())

    @property
    def seconds_left(self) -> int | None:
        """Until the last step at the present pace; None while there is none."""
        if self.posted is None or self.is_done or len(self.sealed) < 2:
            return None
        (first, begun), (last, ended) = self.sealed[0], self.sealed[-1]
        left = max(0, self.posted.steps - self.step)
        return left * (ended - begun) // (1000 * (last - first))


async def watch(
    client: MarketClient, job: JobId, *, patience: timedelta | None = None
) -> AsyncGenerator[JobLive, None]:
    """The job after each of its events, from the first on; ends when nothing more is to come.

    Raises:
        NotFound: no such job.
        Unavailable: no market answers, beyond `patience`; None waits for ever.
    """
    live = JobLive(job)
    async with aclosing(client.job_events(job, patience=patience)) as events:
        async for number, event in events:
            live = fold(live, number, event)
            yield live


def fold(live: JobLive, number: int, event: JobEvent) -> JobLive:
    """The job after one more event."""
    live = replace(live, number=number, at=event.at)
    match event:
        case PostedEvent():
            return replace(live, posted=event)
        case StateEvent():
            return replace(live, state=event.state, failure=event.failure)
        case UnmatchedEvent():
            return replace(live, not_matched=event.not_matched)
        case LeaseEvent():
            return _with_lease(live, event)
        case PeerEvent():
            return _with_peer(live, event)
        case SealedEvent():
            return _with_seal(live, event)
        case ReportedEvent():
            return _with_report(live, event)
        case AuditedEvent():
            audits = replace(live.audits, reports=live.audits.reports + 1)
            return replace(live, audits=audits)
        case RuledEvent():
            return replace(live, audits=_with_ruling(live.audits, event))
        case SlashEvent():
            slashes = {**live.audits.slashes, event.evidence: event}
            return replace(live, audits=replace(live.audits, slashes=slashes))
        case CheckpointEvent():
            return _with_checkpoint(live, event)
        case UnpublishedEvent():
            return _with_unpublished(live, event)
        case AnchoredEvent():
            return replace(live, anchored_step=max(live.anchored_step, *event.steps))
        case BeaconEvent():
            return replace(live, beacon_step=max(live.beacon_step, *event.steps))
        case EndEvent():
            return replace(live, is_ended=True)
        case FundedEvent():
            return replace(live, funded=BaseUnits(live.funded + event.amount))
        case ReclaimedEvent():
            return replace(live, funded=BaseUnits(live.funded - event.amount))
        case LimitEvent():
            return replace(live, limits={**live.limits, event.account: event.limit})
        case ClaimedEvent():
            return replace(live, claimed=BaseUnits(live.claimed + event.amount))
    return live


def _with_lease(live: JobLive, event: LeaseEvent) -> JobLive:
    lease = LeaseLive(event.account, event.stage, event.price, event.state)
    return replace(live, leases={**live.leases, event.lease: lease}, not_matched=())


def _with_peer(live: JobLive, event: PeerEvent) -> JobLive:
    before = live.peers.get(event.peer)
    match event.what:
        case "join":
            after = PeerLive(event.stage, event.account, is_member=True)
        case "leave" if before is not None:
            after = replace(before, is_member=False)
        case "suspension" if before is not None:
            after = replace(before, is_member=False, is_suspended=True)
        case _:
            return live  # of data or a report that did not come: the peer stays what it is
    return replace(live, peers={**live.peers, event.peer: after})


def _with_seal(live: JobLive, event: SealedEvent) -> JobLive:
    loss = live.loss_millionths if event.loss_millionths is None else event.loss_millionths
    return replace(
        live,
        step=event.step,
        loss_millionths=loss,
        earned=event.earned,
        vested=event.vested,
        sealed=(*live.sealed, (event.step, event.at))[-PACE_STEPS:],
        is_last_sealed=event.last,
    )


def _with_report(live: JobLive, event: ReportedEvent) -> JobLive:
    validation = event.validation_millionths
    return replace(
        live,
        tokens_per_second=event.tokens_per_second,
        validation_millionths=live.validation_millionths if validation is None else validation,
    )


def _with_ruling(audits: AuditsLive, event: RuledEvent) -> AuditsLive:
    if event.what == "missed":
        return replace(audits, missed=audits.missed + 1)
    if event.what == "drawn" and event.subject not in audits.open:
        opened = {**audits.open, event.subject: event.peer}
        return replace(audits, drawn=audits.drawn + 1, open=opened)
    if event.what == "convicted":
        audits = replace(audits, convicted=audits.convicted | {event.peer})
    doer = audits.open.get(event.subject)
    if doer is None:
        return audits  # it is settled: what follows is about stake
    left = {subject: peer for subject, peer in audits.open.items() if subject != event.subject}
    match event.what:
        case "settled":
            return replace(audits, open=left, matched=audits.matched + 1)
        case "unrepeated":
            return replace(audits, open=left, unrepeated=audits.unrepeated + 1)
        case "missing":
            return replace(audits, open=left, missing=audits.missing + 1)
        case "convicted" if event.peer == doer:
            return replace(audits, open=left, mismatched=audits.mismatched + 1)
        case "convicted":  # who accused it
            return replace(audits, open=left, matched=audits.matched + 1)
    return audits


def _with_checkpoint(live: JobLive, event: CheckpointEvent) -> JobLive:
    known = live.checkpoints.get(event.stage)
    if known is not None and known.step > event.step:
        return live
    if known is not None and known.step == event.step and known.is_here:
        return live
    found = CheckpointLive(event.step, event.blob, event.is_here)
    failed = {
        stage: reason
        for stage, reason in live.unpublished.items()
        if not (event.is_here and stage == event.stage)
    }
    checkpoints = {**live.checkpoints, event.stage: found}
    return replace(live, checkpoints=checkpoints, unpublished=failed)


def _with_unpublished(live: JobLive, event: UnpublishedEvent) -> JobLive:
    known = live.checkpoints.get(event.stage)
    if known is not None and known.is_here and known.step >= event.step:
        return live
    return replace(live, unpublished={**live.unpublished, event.stage: event.reason})


# --------------------------------------------------------------------------- pause, resume, cancel

LOOK_EVERY = 0.5  # seconds
_ROUTES: dict[JobAction, Route[OperationView]] = {
    "pause": POST_PAUSE,
    "resume": POST_RESUME,
    "cancel": POST_CANCEL,
}


async def ask_job(
    client: MarketClient,
    wallet: Wallet,
    job: JobId,
    action: JobAction,
    *,
    at: UnixMillis,
    patience: timedelta = timedelta(seconds=30),
) -> OperationView:
    """Ask the market to pause, resume or cancel `job`.

    Args:
        client: The market.
        wallet: The job's poster.
        job: Which.
        action: What is wanted from now on.
        at: This machine's clock; within two minutes of the market's, and later than at any call
            before, or it is a replay.
        patience: How long a market that does not answer is asked again.

    Raises:
        Forbidden: another wallet posted the job.
        Expired: the clocks differ, or something was asked at this moment or a later one.
        Conflict: the job is over, or was cancelled.
        NotFound, Unavailable: as the market answers.
    """
    body = AskJob(at=at)
    key = hashlib.sha256(action.encode() + body.json_bytes()).hexdigest()
    return await retrying(
        lambda: client.call(_ROUTES[action], body, key=key, by=wallet, job=job), patience=patience
    )


async def until_over(
    client: MarketClient,
    operation: Digest,
    *,
    within: timedelta,
    on_change: Callable[[OperationView], None] = lambda view: None,
) -> OperationView:
    """Wait until an operation is done or has failed.

    Args:
        client: The market.
        operation: As `ask_job` answered.
        within: How long; a cancel lasts until the last seal.
        on_change: Told whenever it waits for something else, and at last.

    Raises:
        DeadlineExceeded: it still waits; data: `waits_for`.
    """
    loop, seen = asyncio.get_running_loop(), None
    ends = loop.time() + within.total_seconds()
    while True:
        left = timedelta(seconds=max(0.0, ends - loop.time()))
        view = await retrying(
            lambda: client.call(GET_OPERATION, operation=operation), patience=left
        )
        if (view.state, view.waits_for) != seen:
            seen = view.state, view.waits_for
            on_change(view)
        if view.state != "pending":
            return view
        if loop.time() >= ends:
            raise DeadlineExceeded(f"it waits for: {view.waits_for}", waits_for=view.waits_for)
        await asyncio.sleep(LOOK_EVERY)
