"""The market itself: depth, demand, rounds; its chain, faucet, accounts; and whether it is well."""

from typing import Annotated, Literal

from pydantic import Field

from contracts.terms.ids import AddressField, DigestField, JobIdField
from contracts.terms.moments import UnixMillisField
from market.bodies.base import Body, Money, Price, Wide
from market.bodies.jobs import Excluded

# -------------------------------------- for people: depth by device class, demand, clearing rounds

ROUNDS_PAGE = 200

SignedPrice = Annotated[str, Field(max_length=21, pattern=r"^-?[0-9]+$")]


class LevelView(Body):
    """All that can be bought up to a price."""

    price: Price
    offers: int  # at this price
    peers: int  # accounts up to it: an account sells one slot of a job
    flops_per_second: Wide  # of all offers up to it, as they claim


class ClearedView(Body):
    """The newest round that bought a machine of a class."""

    number: int
    job: JobIdField
    price: Price
    at: UnixMillisField


class ClassView(Body):
    """A device class; prices are asks of offers that could be matched now."""

    device_class: str
    offers: int  # that stand
    leased: int
    open: int  # that could be matched now
    quartiles: tuple[Price, ...]  # least, 1/4, 1/2, 3/4, greatest; none without an open offer
    levels: tuple[LevelView, ...]  # ascending; of many, the first, the last and some between
    cleared: ClearedView | None
    spread: SignedPrice | None  # least ask less the highest ceiling that waits; None: one lacks


class DemandView(Body):
    """A job that waits for leases, and why it has none yet."""

    job: JobIdField
    slots: int
    spares: int
    ceiling: Price
    since: UnixMillisField
    checked: bool
    not_matched: tuple[Excluded, ...]


class MarketView(Body):
    """Offers and demand now."""

    clock: UnixMillisField
    num_classes: int
    classes: tuple[ClassView, ...]  # those with most offers
    demand: tuple[DemandView, ...]  # jobs of the next round, the oldest first


class WinnerView(Body):
    """An offer that a round bought."""

    offer: DigestField
    account: AddressField
    ask: Price
    stage: int
    device_class: str


class ClearingRoundView(Body):
    """What a clearing round decided for a job: whom it bought, or why nobody."""

    columns = ("number", "at", "job", "asks", "price")

    number: int
    job: JobIdField
    at: UnixMillisField
    slots: int  # that were missing
    spares: int
    ceiling: Price
    asks: int  # that were feasible
    price: Price | None  # paid to all who were bought; None: nobody was
    winners: tuple[WinnerView, ...]
    not_matched: tuple[Excluded, ...]


class ClearingRoundsView(Body):
    """Rounds, ascending."""

    rounds: tuple[ClearingRoundView, ...]


# -------------------------------------------------------------- its chain, the faucet and accounts


class HealthView(Body):
    """The process answers."""

    status: Literal["ok"] = "ok"


class ContractsView(Body):
    """Addresses of the deployed contracts."""

    token: AddressField
    parameters: AddressField
    escrow: AddressField
    seals: AddressField


class EscrowTimesView(Body):
    """Times of JobEscrow in seconds; see `contracts.governance.escrow.EscrowTimes`."""

    margin: int
    announce: int
    execute: int
    tail: int


class TokenView(Body):
    """What a permit (EIP-2612) is signed under, with the token's address and the chain id."""

    name: str
    version: str
    symbol: str
    decimals: int
    domain_separator: DigestField


class NetworkView(Body):
    """All that a newcomer needs (docs/architecture.md 5)."""

    version: str
    chain_id: int
    genesis: DigestField  # of the chain's first block: ids are shared
    rpc_url: str
    embedded: bool  # the market runs this chain and has a faucet
    contracts: ContractsView
    deployed_block: int
    token: TokenView
    times: EscrowTimesView
    parameters: dict[str, Wide]
    anchorer: AddressField
    confirmations: int
    block: int = 0  # head of the chain, as the market last saw it
    clock: UnixMillisField


class FaucetRequest(Body):
    """Who wants to start."""

    account: AddressField


class FaucetView(Body):
    """What was sent; zero where the account has had its share."""

    gas: Wide  # wei
    tokens: Money
    transactions: tuple[DigestField, ...]


class AccountView(Body):
    """What an account has at the head of the chain, and in its jobs by confirmed events."""

    account: AddressField
    gas: Wide  # wei
    token: Money  # in its own wallet
    permit_nonce: Wide
    free: Money  # in the escrow: may be taken out, or bonded
    bonded: Money  # stakes in all jobs
    earned: Money  # in all jobs, by their newest seals
    vested: Money
    due: Money  # vested, within the limits and not claimed
    claimed: Money


class CoordinatorView(Body):
    """A hosted coordinator, allocated to the caller."""

    coordinator: AddressField


# -------------------------------------------------------- how it is: chain, queues, anchors, hosts


class ChainStatusView(Body):
    """How far the market has read the chain."""

    reachable: bool
    head: int | None  # None: no node answers
    head_age_millis: int | None
    settled: int | None  # the newest block that counts as confirmed
    seen: int | None  # up to which events are in rows
    lag_blocks: int | None  # confirmed, and not in rows yet; None: nobody knows
    confirmations: int


class ChainActionView(Body):
    """A kind of chain action that waits to be done by the market."""

    what: str  # fund, relay, claim, anchor, announce, faucet
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
    beacon: DigestField | None


class UnanchoredView(Body):
    """The oldest seal that no batch on chain holds."""

    job: JobIdField
    step: int
    stored_at: UnixMillisField
    age_millis: int
    seals: int  # that wait, this one included


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
    feed: FeedStatusView
    actions: tuple[ChainActionView, ...]  # the oldest first
    batch: BatchStatusView | None
    unanchored: UnanchoredView | None
    hosts: tuple[HostStatusView, ...]
    beats: tuple[BeatView, ...]
