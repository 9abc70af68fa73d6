"""How the market itself is: chain, queues, anchors, hosts."""

from contracts.terms.ids import DigestField, JobIdField
from contracts.terms.moments import UnixMillisField, UnixSecondsField
from market.bodies.base import Body
from market.bodies.settlement import EpochState


class ChainStatusView(Body):
    """How far the market has read the chain."""

    reachable: bool
    head: int | None  # None: no node answers
    head_at: UnixSecondsField | None
    head_age_millis: int | None
    settled: int | None  # the newest block that counts as confirmed
    seen: int | None  # up to which events are in rows
    lag_blocks: int | None  # confirmed, and not in rows yet; None: nobody knows
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
    """The worker of a queue, noted by a task of that queue every few seconds.

    `lag_millis` is how much later than due that was last: so long its oldest task waits.
    """

    queue: str
    at: UnixMillisField
    lag_millis: int


class FeedStatusView(Body):
    """How live events come through in the process that answers."""

    streams: int  # open now
    hears: bool | None  # whether readers are woken, else they poll; None: nobody has watched yet
    lag_millis: int | None  # greatest of the newest events; None: nobody has watched one yet


class StatusView(Body):
    """How the market is."""

    version: str
    python: str
    clock: UnixMillisField
    chain: ChainStatusView
    jobs: dict[str, int]  # by state
    outbox: int  # things that were not told yet
    feed: FeedStatusView
    actions: tuple[ChainActionView, ...]  # the oldest first
    batch: BatchStatusView | None
    unanchored: UnanchoredView | None
    epoch: EpochStatusView | None
    hosts: tuple[HostStatusView, ...]
    beats: tuple[BeatView, ...]
