"""How the market itself is: chain, queues, anchors, hosts."""

from contracts.terms.ids import DigestField, JobIdField
from contracts.terms.moments import UnixMillisField, UnixSecondsField
from market.api.schemas.base import Body
from market.api.schemas.settlement import EpochState


class ChainStatusView(Body):
    """How far the market has read the chain."""

    reachable: bool
    head: int | None  # None: no node answers
    head_at: UnixSecondsField | None
    head_age_millis: int | None
    settled: int | None  # the newest block that counts as confirmed
    seen: int | None  # up to which events are in rows
    confirmations: int


class ChainActionView(Body):
    """A kind of chain action that waits to be done by the market."""

    what: str  # fund, reserve, anchor, propose, finalize, announce, faucet
    waiting: int
    since: UnixMillisField  # of the oldest
    age_millis: int


class BatchStatusView(Body):
    """The newest batch of seals."""

    number: int
    root: DigestField
    created_at: UnixMillisField
    age_millis: int
    block: int | None  # None: not confirmed yet
    coin: DigestField | None


class UnanchoredView(Body):
    """The oldest seal that no batch on chain holds."""

    job: JobIdField
    step: int
    stored_at: UnixMillisField
    age_millis: int
    seals: int  # that wait, this one included


class EpochStatusView(Body):
    """The newest epoch."""

    epoch: int
    state: EpochState
    planned_at: UnixMillisField
    window_ends: UnixSecondsField | None


class HostStatusView(Body):
    """A process that runs coordinators."""

    host: str
    heard_at: UnixMillisField
    age_millis: int
    is_heard: bool  # else its jobs go to another
    jobs: int


class BeatView(Body):
    """The worker of a queue; `lag_millis` is how much later than due it was noted last."""

    queue: str
    at: UnixMillisField
    lag_millis: int


class StatusView(Body):
    """How the market is."""

    version: str
    python: str
    clock: UnixMillisField
    chain: ChainStatusView
    jobs: dict[str, int]  # by state
    outbox: int  # things that were not told yet
    actions: tuple[ChainActionView, ...]  # the oldest first
    batch: BatchStatusView | None
    unanchored: UnanchoredView | None
    epoch: EpochStatusView | None
    hosts: tuple[HostStatusView, ...]
    beats: tuple[BeatView, ...]
