"""What the market remembers: one frozen row class per table.

A row class names its table, its key and what else must be unique; `adapters.tables` makes the
table from it. Rows are facts or the newest state of a thing; nothing in them is a decision. `None`
in a unique column counts for nothing, so `LeaseRow.live_offer` holds "one live lease per offer".
Units: amounts in base units, moments in ms since the Unix epoch unless named seconds.
"""

from dataclasses import dataclass
from typing import ClassVar

from contracts.chain.blocks import NO_TIME
from contracts.terms.amounts import NOTHING, BaseUnits, PricePerPflop
from contracts.terms.ids import Address, Digest, JobId, PeerId, SessionKey
from contracts.terms.moments import UnixMillis, UnixSeconds


class Row:
    """A row of a table."""

    TABLE: ClassVar[str]
    KEY: ClassVar[tuple[str, ...]]
    UNIQUE: ClassVar[tuple[tuple[str, ...], ...]] = ()
    INDEX: ClassVar[tuple[tuple[str, ...], ...]] = ()


# --------------------------------------------------------------------------------- offers, leases


@dataclass(frozen=True)
class OfferRow(Row):
    """A signed offer."""

    TABLE = "offers"
    KEY = ("offer",)
    INDEX = (("withdrawn", "expires_at"),)

    offer: Digest
    signed: bytes
    account: Address
    session_key: SessionKey
    price: PricePerPflop
    device_class: str
    memory_bytes: int
    flops_per_second: int
    available_from: UnixSeconds
    expires_at: UnixSeconds
    posted_at: UnixMillis
    withdrawn: bool = False
    lease: Digest | None = None
    blocked_until: int = 0  # after a lease that it let lapse


@dataclass(frozen=True)
class HeartbeatRow(Row):
    """When an offer or a lease was heard last; a row of its own, so that it locks nothing."""

    TABLE = "offer_heartbeats"
    KEY = ("subject",)

    subject: Digest
    at: UnixMillis  # the sender's clock; grows
    heard_at: UnixMillis  # ours


@dataclass(frozen=True)
class LeaseRow(Row):
    """An offer bound to a job."""

    TABLE = "leases"
    KEY = ("lease",)
    UNIQUE = (("live_offer",), ("session_key",))
    INDEX = (("job",), ("state",), ("account",))

    lease: Digest
    offer: Digest
    live_offer: Digest | None  # the offer, until the lease is over
    job: JobId
    account: Address
    stage: int
    price: PricePerPflop
    stake: BaseUnits  # that its account bonds in the job; of all its leases there the largest
    state: str  # reserved, accepted, active, silent, ended, lapsed
    reserved_at: UnixMillis
    accept_ends: UnixMillis
    accept: bytes | None = None
    accept_digest: Digest | None = None
    session_key: SessionKey | None = None


@dataclass(frozen=True)
class RoundRow(Row):
    """What a clearing round decided for a job: whom it bought, or why it bought nobody."""

    TABLE = "clearing_rounds"
    KEY = ("number",)
    INDEX = (("job",), ("is_bought",))

    number: int
    job: JobId
    at: UnixMillis
    slots: int  # that were missing
    spares: int
    reserve: PricePerPflop  # the job's ceiling
    asks: int  # feasible ones
    is_bought: bool
    price: PricePerPflop | None  # of those who were bought
    winners: bytes  # `coding.WINNERS`
    excluded: bytes  # `coding.WHY_NOT`


@dataclass(frozen=True)
class ReputationRow(Row):
    """What audits and duties have shown of an account; see `market.domain.reputation`."""

    TABLE = "reputations"
    KEY = ("account",)

    account: Address
    matches: int
    mismatches: int
    kept: int
    missed: int
    liveness: int  # 1e-6


# ----------------------------------------------------------------------------------- jobs, hosting


@dataclass(frozen=True)
class JobRow(Row):
    """A job and where it is in its life."""

    TABLE = "jobs"
    KEY = ("job",)
    INDEX = (("state",), ("posted_at",), ("poster",))

    job: JobId
    signed: bytes
    poster: Address
    coordinator: Address
    name: str
    budget: BaseUnits
    deadline: UnixSeconds
    steps: int
    state: str
    posted_at: UnixMillis
    permit: bytes  # EIP-2612, of its poster's tokens
    permit_deadline: UnixSeconds
    failure: str | None = None
    opening: bytes | None = None
    opening_block: int | None = None
    num_messages: int = 0
    step: int = 0  # the last sealed one
    trained: int = 0  # steps of the order whose items are sealed
    is_sealed: bool = False  # the last seal is here
    num_compared: int = 0  # shards of its corpus whose bytes are what it names
    is_compared: bool = False  # all of them are
    not_matched: bytes = b"{}"  # `coding.WHY_NOT`
    wanted: str = "running"  # by its poster: paused, cancelled
    wish: int = 0  # number of what is wanted: grows with every change
    heeded: int = 0  # number of the newest wish that its coordinator is known to follow
    wished_at: UnixMillis | None = None  # as the poster said; grows
    ended_at: UnixMillis | None = None  # nobody works for it since; 0: it was never paid for


@dataclass(frozen=True)
class OperationRow(Row):
    """What a poster asked of its job; what became of it follows from the job."""

    TABLE = "operations"
    KEY = ("operation",)
    INDEX = (("job",),)

    operation: Digest
    job: JobId
    action: str
    wish: int  # the job's number for it
    asked_at: UnixMillis
    superseded: bool = False  # another wish came before it was heeded


@dataclass(frozen=True)
class HostRow(Row):
    """A process that runs coordinators."""

    TABLE = "hosts"
    KEY = ("host",)

    host: str
    heard_at: UnixMillis


@dataclass(frozen=True)
class CoordinatorRow(Row):
    """A wallet whose key a host holds."""

    TABLE = "coordinators"
    KEY = ("address",)
    INDEX = (("host",), ("job",))

    address: Address
    host: str
    allocated_at: UnixMillis | None = None
    allocated_to: Address | None = None
    job: JobId | None = None  # the first one in escrow that names it


@dataclass(frozen=True)
class HostedJobRow(Row):
    """A job leased to a host, and where its coordinator listens."""

    TABLE = "hosted_jobs"
    KEY = ("job",)
    INDEX = (("host",),)

    job: JobId
    host: str
    until: UnixMillis
    address: str | None = None


# ---------------------------------------------------------------------------- auditors, slashing


@dataclass(frozen=True)
class AuditorRow(Row):
    """An account's audit key, as its wallet signed last."""

    TABLE = "auditors"
    KEY = ("account",)
    UNIQUE = (("session_key",),)

    account: Address
    session_key: SessionKey
    device_class: str
    signed_at: UnixMillis
    signature: bytes


@dataclass(frozen=True)
class AuditBondRow(Row):
    """What an outside auditor is asked to bond in a job before the job's list names it."""

    TABLE = "audit_bonds"
    KEY = ("job", "account")
    INDEX = (("account",), ("session_key",), ("state",))

    job: JobId
    account: Address
    session_key: SessionKey
    device_class: str
    price: PricePerPflop
    stake: BaseUnits
    asked_at: UnixMillis
    state: str = "asked"  # accepted: it signed a bond; bonded; refused: too late, or never
    listed: BaseUnits | None = None  # what the job's list says that it has bonded


@dataclass(frozen=True)
class AuditorListRow(Row):
    """The list of outside auditors that a job's opening has to name."""

    TABLE = "auditor_lists"
    KEY = ("job",)

    job: JobId
    block: int  # as of which bonds are; the opening block
    digest: Digest


@dataclass(frozen=True)
class ConvictionRow(Row):
    """Something that a job's seals made slashable, and the bundle that shows it, once published."""

    TABLE = "convictions"
    KEY = ("job", "subject")
    UNIQUE = (("evidence",),)

    job: JobId
    subject: Digest  # the message that was found wrong
    step: int  # of the seal that said so
    account: Address
    wanted: BaseUnits
    auditors: bytes  # canonical msgpack of peer ids: who may name the bundle
    reports: bytes  # the same of their reports that seals hold, in the same order
    evidence: Digest | None = None  # the bundle that it is slashed by now, if any was shown


@dataclass(frozen=True)
class EvidenceRow(Row):
    """A bundle that an auditor has shown of a conviction; they are tried in order."""

    TABLE = "evidence"
    KEY = ("job", "subject", "auditor")
    UNIQUE = (("bundle",),)

    job: JobId
    subject: Digest
    auditor: PeerId
    bundle: Digest  # blob
    number: int  # of the subject, in the order in which they came


@dataclass(frozen=True)
class SlashRow(Row):
    """A conviction and what becomes of the stake behind it; see `market.service.slash`."""

    TABLE = "slashes"
    KEY = ("evidence",)
    INDEX = (("state",), ("job", "account"), ("account",), ("answer",))

    evidence: Digest  # blob: the bundle that anyone can run again
    job: JobId
    account: Address
    wanted: BaseUnits  # of the stake
    convicted_at: UnixMillis
    state: str = "convicted"  # announcing, announced, burned, dropped, lapsed, nothing
    amount: BaseUnits = NOTHING  # announced; once burned, what the chain took
    burns_from: UnixSeconds | None = None  # of the announcement
    answer: Digest | None = None  # blob that its account shows beside it
    announced_by: Digest | None = None  # transaction
    ended_by: Digest | None = None  # transaction


# ---------------------------------------------------------------------------------------- messages


@dataclass(frozen=True)
class MessageRow(Row):
    """A kept item: the only source of pay, live events and audit file."""

    TABLE = "messages"
    KEY = ("job", "sequence")
    UNIQUE = (("job", "digest"), ("job", "name"))

    job: JobId
    sequence: int
    digest: Digest
    name: Digest | None  # what one item is stored of: `coding.stored_name`
    kind: str
    data: bytes


@dataclass(frozen=True)
class SealRow(Row):
    """A valid seal and the pay behind its root."""

    TABLE = "seals"
    KEY = ("job", "step")
    INDEX = (("batch",),)

    job: JobId
    step: int
    digest: Digest
    signed: bytes
    under: bytes  # canonical msgpack of the digests that it covers, in the order of its root
    pay: bytes  # canonical msgpack of [account, earned, vested]
    earned: BaseUnits
    vested: BaseUnits
    last: bool
    stored_at: UnixMillis
    batch: Digest | None = None


@dataclass(frozen=True)
class ReportRow(Row):
    """What a coordinator said of a step, for people."""

    TABLE = "step_reports"
    KEY = ("job", "step")

    job: JobId
    step: int
    loss_millionths: int
    tokens_per_second: int
    at: UnixMillis
    validation_millionths: int | None = None


@dataclass(frozen=True)
class CheckpointRow(Row):
    """Which index lists a stage's weights after a step, as a member said last."""

    TABLE = "checkpoints"
    KEY = ("job", "peer", "step")
    INDEX = (("blob",),)

    job: JobId
    peer: PeerId
    stage: int
    step: int
    blob: Digest
    num_bytes: int | None  # None: not all of it was here when the member said it last
    failure: str  # why the member could not upload it; empty: nothing failed

    @property
    def is_here(self) -> bool:
        """Whether all of it was, when the member said it last."""
        return self.num_bytes is not None


# ------------------------------------------------------------------------------------------- blobs


@dataclass(frozen=True)
class BlobOwnerRow(Row):
    """A blob that an account stored, and what it is charged for it; one blob may have several."""

    TABLE = "blob_owners"
    KEY = ("account", "blob")
    INDEX = (("blob",),)

    account: Address
    blob: Digest
    num_bytes: int


@dataclass(frozen=True)
class BlobUploadRow(Row):
    """A blob on its way, which its account is charged for until the upload has ended."""

    TABLE = "blob_uploads"
    KEY = ("number",)

    number: int
    account: Address
    blob: Digest
    num_bytes: int
    began_at: UnixMillis


@dataclass(frozen=True)
class BlobUseRow(Row):
    """What an account is charged for its blobs and uploads, in sum; see `service.store_blob`."""

    TABLE = "blob_uses"
    KEY = ("account",)

    account: Address
    num_bytes: int


@dataclass(frozen=True)
class BlobNameRow(Row):
    """A blob that the spec of a job names."""

    TABLE = "blob_names"
    KEY = ("job", "blob")
    INDEX = (("blob",),)

    job: JobId
    blob: Digest


@dataclass(frozen=True)
class BlobPartRow(Row):
    """A blob that another one lists: of weights an index, of a corpus the manifest."""

    TABLE = "blob_parts"
    KEY = ("whole", "blob")
    INDEX = (("blob",),)

    whole: Digest
    blob: Digest


# ----------------------------------------------------------------------------------------- anchors


@dataclass(frozen=True)
class BatchRow(Row):
    """A batch of seals; block and beacon are the chain's, as far as they are confirmed."""

    TABLE = "batches"
    KEY = ("root",)
    UNIQUE = (("number",),)
    INDEX = (("block",),)

    root: Digest
    number: int
    created_at: UnixMillis
    transaction: Digest | None = None
    block: int | None = None
    beacon: Digest | None = None


@dataclass(frozen=True)
class BatchEntryRow(Row):
    """A leaf of a batch. A (job, step) is in one batch, ever."""

    TABLE = "batch_entries"
    KEY = ("job", "step")
    INDEX = (("root",),)

    job: JobId
    step: int
    root: Digest
    seal: Digest


# --------------------------------------------------------------------------------- chain and money


@dataclass(frozen=True)
class ChainEventRow(Row):
    """An event of one of our contracts, confirmed."""

    TABLE = "chain_events"
    KEY = ("block", "log_index")
    INDEX = (("job",), ("event",))

    block: int
    log_index: int
    transaction: Digest
    contract: str
    event: str
    job: JobId | None
    args: bytes  # canonical msgpack
    at: UnixSeconds = NO_TIME  # of its block, for events of the escrow


@dataclass(frozen=True)
class FreeMoneyRow(Row):
    """What an account has in the escrow and may take out or put at stake."""

    TABLE = "free_money"
    KEY = ("account",)

    account: Address
    amount: BaseUnits


@dataclass(frozen=True)
class BudgetRow(Row):
    """A job's budget; see `contracts.governance.escrow.Budget`."""

    TABLE = "budgets"
    KEY = ("job",)

    job: JobId
    poster: Address
    burst: BaseUnits
    rate: BaseUnits  # an hour
    funded: BaseUnits
    committed: BaseUnits
    closed_at: UnixSeconds
    allowance: BaseUnits
    since: UnixSeconds


@dataclass(frozen=True)
class LimitRow(Row):
    """An account's limit and stake in a job; see `contracts.governance.escrow.Channel`."""

    TABLE = "limits"
    KEY = ("job", "account")
    INDEX = (("account",),)

    job: JobId
    account: Address
    limit: BaseUnits
    claimed: BaseUnits
    earned: BaseUnits
    stake: BaseUnits
    end: UnixSeconds
    slash_amount: BaseUnits
    slash_from: UnixSeconds


@dataclass(frozen=True)
class OrderRow(Row):
    """A signed message for the escrow that was handed in, and what became of it."""

    TABLE = "escrow_orders"
    KEY = ("digest",)
    INDEX = (("job", "transaction"), ("account",))

    digest: Digest
    job: JobId
    account: Address | None  # of a bond or a quit
    kind: str
    signed: bytes
    by: UnixSeconds  # until when it counts
    asked_at: UnixMillis
    transaction: Digest | None = None
    refusal: str | None = None  # why it is not sent; neither: it waits


@dataclass(frozen=True)
class DueRow(Row):
    """A task about a job's money that may have something to do; see `market.service.due`."""

    TABLE = "due_money"
    KEY = ("job", "task")
    INDEX = (("at",),)

    job: JobId
    task: str  # grant, claim, release
    at: UnixMillis  # not before


@dataclass(frozen=True)
class CursorRow(Row):
    """A block up to which events are read; older ones stay, to go back to after a reorg."""

    TABLE = "chain_cursor"
    KEY = ("block",)

    block: int
    hash: Digest


@dataclass(frozen=True)
class TransactionRow(Row):
    """A signed transaction, stored before it is broadcast; one of a nonce for each price."""

    TABLE = "pending_transactions"
    KEY = ("account", "nonce", "attempt")
    INDEX = (("account", "key"),)

    account: Address
    nonce: int
    key: str  # of the intention
    hash: Digest
    raw: bytes
    attempt: int = 0
    failed: bool = False


@dataclass(frozen=True)
class FaucetRow(Row):
    """What an account is given by the faucet, ask by ask."""

    TABLE = "faucet_grants"
    KEY = ("account", "number")
    INDEX = (("state",),)

    account: Address
    number: int
    asked_at: UnixMillis
    gas: int  # wei
    tokens: BaseUnits
    state: str = "asked"  # asked, given, refused
    gas_transaction: Digest | None = None
    token_transaction: Digest | None = None
    refusal: str | None = None


# ------------------------------------------------------------------------------------ bookkeeping


@dataclass(frozen=True)
class FeedRow(Row):
    """How many live events a feed has."""

    TABLE = "feeds"
    KEY = ("feed",)

    feed: bytes  # see `market.service.feeds`
    length: int


@dataclass(frozen=True)
class EventRow(Row):
    """A live event, numbered without gaps in the order in which transactions ended."""

    TABLE = "events"
    KEY = ("feed", "sequence")

    feed: bytes
    sequence: int  # 1, 2, ...
    kind: str
    at: UnixMillis
    data: bytes  # JSON of its body, see `market.bodies.events`


@dataclass(frozen=True)
class BeatRow(Row):
    """When the worker of a queue last went round."""

    TABLE = "beats"
    KEY = ("queue",)

    queue: str
    at: UnixMillis


@dataclass(frozen=True)
class IdempotencyRow(Row):
    """The answer to a request that must not be carried out twice."""

    TABLE = "idempotency_keys"
    KEY = ("route", "owner", "key")

    route: str
    owner: Address  # whose key it is
    key: str
    request: Digest
    status: int
    response: bytes
    at: UnixMillis


ROWS: tuple[type[Row], ...] = tuple(Row.__subclasses__())
"""Every table."""

AUTOMATIC = {
    RoundRow: "number",
    BlobUploadRow: "number",
}
"""Columns that storage numbers itself when they are 0."""
