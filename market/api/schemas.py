"""What crosses HTTP: the bodies of `/v1`, and what a client signs that is no message of a job.

Imports pydantic and contracts.terms only: the SDK, providers, hosts and coordinators use these
same classes (DESIGN section 2). Bytes are lower-case hex without 0x; money is a string of base
units; `signed` is the canonical encoding of a `Signed` message; moments are milliseconds since the
Unix epoch unless a message says otherwise. `signed` and `spec` come back byte for byte.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Ge, Le, Len
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)

from contracts.terms.amounts import UINT64_MAX, UINT96_MAX, BaseUnits, PricePerPflop
from contracts.terms.auditors import MAX_LIST_BYTES
from contracts.terms.digest import digest
from contracts.terms.encoding import encode
from contracts.terms.errors import Malformed
from contracts.terms.ids import (
    MAX_STEPS,
    Address,
    AddressField,
    Digest,
    DigestField,
    JobId,
    JobIdField,
    PeerIdField,
    SessionKey,
    SessionKeyField,
    StageField,
    StepField,
)
from contracts.terms.messages import Count
from contracts.terms.moments import UnixMillis, UnixMillisField, UnixSecondsField

MAX_JSON_BYTES = 2**20
MAX_BLOB_BYTES = 256 * 2**20  # of what is read whole into memory: data, weights
MAX_BUNDLE_BYTES = 2 * 2**30  # of evidence, which is streamed; so of any blob that is put
MAX_MESSAGES_BYTES = 16 * 2**20  # of one post; a single item has the bound of `encoding`
MAX_MESSAGES_POSTED = 10_000
MAX_REPORTS = 10_000
MESSAGES_PAGE = 500
SNAPSHOTS_PAGE = 16
COINS_PAGE = 500
LANE_PAGE = 200  # batches
CLOCK_SKEW_MILLIS = 120_000
API_PREFIX = "/v1"

JobState = Literal[
    "draft", "funded", "matched", "running", "finished", "closed", "refunded", "failed"
]
LeaseState = Literal["reserved", "accepted", "active", "silent", "ended", "lapsed"]
BondState = Literal["asked", "accepted", "reserved", "released", "refused"]
SlashState = Literal[
    "convicted",
    "announcing",
    "announced",
    "contested",
    "dropping",
    "executed",
    "dropped",
    "nothing",
]
EpochState = Literal["planned", "proposed", "final", "rejected"]


def _from_text(value: object, info: ValidationInfo) -> object:
    """JSON numbers lose digits, so an amount is text there and an integer in Python."""
    if info.mode != "json":
        return value
    if not isinstance(value, str) or not value.isascii() or not value.isdecimal():
        raise ValueError("an amount is a string of decimal digits")
    if len(value) > 40:
        raise ValueError("an amount has at most 40 digits")
    return int(value)


_AMOUNT = (
    BeforeValidator(_from_text),
    PlainSerializer(str, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]+$", "description": "decimal integer"}),
)
Money = Annotated[BaseUnits, *_AMOUNT, Ge(0), Le(UINT96_MAX)]
Price = Annotated[PricePerPflop, *_AMOUNT, Ge(0), Le(UINT64_MAX)]
Wide = Annotated[int, *_AMOUNT, Ge(0)]

SignedField = Annotated[bytes, Len(1, MAX_JSON_BYTES // 2)]
SignatureField = Annotated[bytes, Len(64, 65)]
Endpoint = Annotated[str, Field(min_length=3, max_length=256, pattern=r"^[^\s:]+:\d{1,5}$")]
Chance = Annotated[str, Field(min_length=3, pattern=r"^(0x)?[0-9a-f]+/(0x)?[0-9a-f]+$")]
DeviceClass = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\x20-\x7e]+$")]
HostName = Annotated[str, Field(min_length=1, max_length=128)]


class Body(BaseModel):
    """A frozen, strict JSON body."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", ser_json_bytes="hex", val_json_bytes="hex"
    )

    def json_bytes(self) -> bytes:
        """The body as JSON."""
        return self.model_dump_json().encode()


def heartbeat_digest(subject: Digest, at: UnixMillis) -> Digest:
    """What a session key signs to say that the offer or lease `subject` is alive at `at`."""
    return digest("heartbeat", subject + at.to_bytes(8, "big"))


def withdrawal_digest(offer: Digest) -> Digest:
    """What an agent's session key signs to withdraw its offer."""
    return digest("withdrawal", offer)


def hosting_digest(host: str, coordinator: Address) -> Digest:
    """What a coordinator's wallet signs (`Wallet.sign_digest`) to be run by `host`."""
    return digest("hosting", coordinator + host.encode())


def auditor_digest(
    account: Address, session_key: SessionKey, device_class: str, at: UnixMillis
) -> Digest:
    """What a wallet signs (`Wallet.sign_digest`) to audit from outside under a session key."""
    return digest("audit key", encode([account, session_key, device_class, at]))


def auditor_subject(account: Address) -> Digest:
    """What heartbeats of an auditor are about."""
    return digest("auditor", account)


def evidence_digest(job: JobId, subject: Digest, bundle: Digest) -> Digest:
    """What an auditor's session key signs to say which bundle shows that `subject` is wrong."""
    return digest("evidence", job + subject + bundle)


def contest_digest(evidence: Digest, bundle: Digest) -> Digest:
    """What a convicted account's wallet signs (`Wallet.sign_digest`) to contest a slash."""
    return digest("contest", evidence + bundle)


def reports_digest(job: JobId, reports: Sequence["StepReport"]) -> Digest:
    """What a coordinator's session key signs with a batch of step reports."""
    return digest("reports", job + encode([report.model_dump() for report in reports]))


def checkpoint_digest(job: JobId, stage: int, step: int, blob: Digest) -> Digest:
    """What a member's session key signs to say which blob holds its stage's weights."""
    return digest("checkpoint", encode([job, stage, step, blob]))


class Problem(Body):
    """RFC 9457; `code` is stable, `data` holds what a program may act on."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    data: dict[str, Any]


class HealthView(Body):
    """The process answers."""

    status: Literal["ok"] = "ok"


class ContractsView(Body):
    """Addresses of the deployed contracts."""

    token: AddressField
    parameters: AddressField
    escrow: AddressField
    stakes: AddressField
    seals: AddressField
    settlement: AddressField
    vault: AddressField


class TokenView(Body):
    """What a permit (EIP-2612) is signed under, with the token's address and the chain id."""

    name: str
    version: str
    symbol: str
    decimals: int
    domain_separator: DigestField


class NetworkView(Body):
    """All that a newcomer needs (DESIGN section 5.6)."""

    version: str
    chain_id: int
    rpc_url: str
    embedded: bool  # the market runs this chain and has a faucet
    contracts: ContractsView
    deployed_block: int
    token: TokenView
    parameters: dict[str, Wide]
    anchorer: AddressField
    epoch_seconds: int
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


class StakeView(Body):
    """An account in StakeRegistry."""

    active: Money
    reserved: Money
    unbonding: Money


class LedgerEntryView(Body):
    """One line of the ledger: `amount` left `debit` for `credit`."""

    event: str
    debit: str
    credit: str
    amount: Money
    job: JobIdField | None


class AccountView(Body):
    """What an account has, at the head of the chain and in the ledger."""

    account: AddressField
    gas: Wide
    token: Money
    permit_nonce: Wide
    stake: StakeView
    earned: Money
    vested: Money
    claimable: Money
    claimed: Money
    entries: tuple[LedgerEntryView, ...]


class CoordinatorView(Body):
    """A hosted coordinator, allocated to the caller."""

    coordinator: AddressField


class SignedBody(Body):
    """A signed message."""

    signed: SignedField


class OfferStored(Body):
    """The offer's digest, under which it is heard and withdrawn."""

    offer: DigestField
    takes_checked_jobs: bool
    """False: the calibration table does not hold its device class against two others."""


class OfferView(Body):
    """An offer as the market knows it."""

    offer: DigestField
    signed: SignedField
    account: AddressField
    price: Price
    device_class: str
    memory_bytes: int
    flops_per_second: int
    expires_at: UnixSecondsField
    heard_at: UnixMillisField | None
    state: Literal["open", "leased", "withdrawn", "expired"]


class OffersView(Body):
    """Offers, cheapest first."""

    offers: tuple[OfferView, ...]


class ReputationView(Body):
    """What audits and duties have shown of an account; it never changes how often it is audited.

    Honesty is a Beta posterior over its audited peer-steps and repeated reports, prior (1, 1).
    """

    honesty: int  # 1e-4: its 5 % quantile, rounded down; 500 for a stranger
    honesty_mean: int  # 1e-4, rounded down
    matches: int
    mismatches: int
    liveness: int  # 1e-6: moving average of the duties below, the newest weighs 1/16
    kept: int
    missed: int


class ProviderView(Body):
    """An account as who chooses it should know it."""

    account: AddressField
    is_matched: bool  # False: worse than a stranger, so no job is matched with it
    reputation: ReputationView
    offers: tuple[OfferView, ...]  # that stand


class Heartbeat(Body):
    """`signature` by the session key over `heartbeat_digest`; `at` grows."""

    at: UnixMillisField
    signature: SignatureField


class Withdrawal(Body):
    """`signature` by the agent's session key over `withdrawal_digest`."""

    signature: SignatureField


class LeaseView(Body):
    """An offer bound to a job."""

    lease: DigestField
    state: LeaseState
    offer: DigestField
    job: JobIdField
    account: AddressField
    stage: int
    price: Price  # what is paid, at least the ask
    stake: Money  # to be reserved in LeaseAccept
    accept_ends: UnixMillisField
    spec: SignedField  # the signed JobSpec
    accept: SignedField | None  # the signed LeaseAccept
    session_key: SessionKeyField | None
    heard_at: UnixMillisField | None


class LeasesView(Body):
    """Leases of an offer that are not over."""

    leases: tuple[LeaseView, ...]


class AcceptLease(Body):
    """A provider binds itself: the signed LeaseAccept."""

    signed: SignedField


class Permit(Body):
    """EIP-2612 over the token, for JobEscrow and the budget of the job."""

    deadline: UnixSecondsField
    signature: Annotated[bytes, Len(65, 65)]


class PostJob(Body):
    """A signed JobSpec and the permit that pays for it."""

    signed: SignedField
    permit: Permit


class JobPosted(Body):
    """The job's id, at once."""

    job: JobIdField
    state: JobState


class QuoteRequest(Body):
    """A JobSpec that nobody signed yet (`JobSpec.encoded()`)."""

    spec: SignedField


class Excluded(Body):
    """How many offers a constraint excludes, and what it would have to be to admit one."""

    constraint: str
    offers: int
    would_fit: str


class QuoteView(Body):
    """A dry run."""

    fits: bool
    flops: Wide
    cost_at_ceiling: Money
    cost_at_asks: Money | None  # at the price that would clear now; None: nothing matches now
    price_at_asks: Price | None
    seconds: int | None  # at the flops/s that the winning offers claim
    reasons: tuple[str, ...]
    not_matched: tuple[Excluded, ...]


class ProgressView(Body):
    """The newest step report."""

    step: int
    steps: int
    loss_millionths: int | None
    tokens_per_second: int | None


class JobSummary(Body):
    """A job in a list."""

    job: JobIdField
    name: str
    state: JobState
    poster: AddressField
    budget: Money
    paid: Money
    step: int
    steps: int


class JobsView(Body):
    """Jobs, newest first."""

    jobs: tuple[JobSummary, ...]


class JobView(Body):
    """A job with all that its members and its poster ask for."""

    job: JobIdField
    state: JobState
    failure: str | None
    spec: dict[str, Any]  # for people: JSON of the JobSpec
    signed: SignedField  # for programs: the signed JobSpec
    opening: SignedField | None  # the signed JobOpening
    coordinator: AddressField
    coordinator_address: str | None  # host:port
    leases: tuple[LeaseView, ...]
    progress: ProgressView
    reports: tuple["StepReport", ...]
    num_messages: int
    escrowed: Money
    earned: Money
    vested: Money
    debited: Money  # settled into epochs, from the chain
    paid: Money  # claimed
    refunded: Money
    reconciled: bool  # the ledger agrees with the chain's logs
    not_matched: tuple[Excluded, ...]
    transactions: dict[str, DigestField]


class StepReport(Body):
    """What a coordinator says of a step, for people: not paid, not audited."""

    step: Annotated[int, Ge(1), Le(MAX_STEPS)]
    loss_millionths: Annotated[int, Ge(-(2**53)), Le(2**53)]  # 1e-6 nats per token
    tokens_per_second: Count
    at: UnixMillisField
    validation_millionths: Annotated[int, Ge(0), Le(2**53)] | None = None  # mean loss, nats


class PostReports(Body):
    """`signature` by the coordinator's session key over `reports_digest`."""

    reports: Annotated[tuple[StepReport, ...], Len(1, MAX_REPORTS)]
    signature: SignatureField


class PostCheckpoint(Body):
    """A member says which blob holds the weights of its stage after `step`.

    The blob is a safetensors file of fp32 tensors; members of a stage make equal ones. `signature`
    by the member's session key over `checkpoint_digest`.
    """

    stage: StageField
    step: StepField
    blob: DigestField
    session_key: SessionKeyField
    signature: SignatureField


class CheckpointStored(Body):
    """The claim is stored; `wanted` while nobody has uploaded the blob."""

    wanted: bool


class CheckpointView(Body):
    """Weights of a stage as members claim them; `num_bytes` is null until the blob is here."""

    stage: StageField
    step: StepField
    blob: DigestField
    peers: tuple[PeerIdField, ...]
    num_bytes: int | None


class CheckpointsView(Body):
    """All claims of a job, by stage, the newest step first, then by the number of peers."""

    checkpoints: tuple[CheckpointView, ...]


class Stored(Body):
    """How many items were new, and how many were known before."""

    stored: int
    known: int


class CoordinatorClaim(Body):
    """`signature` by the coordinator's wallet over `hosting_digest`."""

    address: AddressField
    signature: Annotated[bytes, Len(65, 65)]


class RegisterHost(Body):
    """A host and the coordinators whose keys it holds."""

    host: HostName
    coordinators: Annotated[tuple[CoordinatorClaim, ...], Len(1, 1000)]


class HostRegistered(Body):
    """How many coordinators of this host no job has been promised yet."""

    coordinators: int


class ClaimJobs(Body):
    """A host that has room."""

    host: HostName


class HostedJob(Body):
    """A job leased to a host until `until`."""

    job: JobIdField
    state: JobState
    spec: SignedField  # the signed JobSpec
    leases: tuple[LeaseView, ...]
    until: UnixMillisField
    opening_block: int | None = None  # that the opening of a checked job has to name
    auditors: Annotated[bytes, Len(1, MAX_LIST_BYTES)] | None = None  # and the list


class HostedJobs(Body):
    """All jobs that the host holds."""

    jobs: tuple[HostedJob, ...]


class JobEndpoint(Body):
    """Where a job's coordinator listens."""

    job: JobIdField
    address: Endpoint


class HostHeartbeat(Body):
    """Renews the rows of `jobs`; `endpoints` of those whose coordinators listen."""

    host: HostName
    jobs: Annotated[tuple[JobIdField, ...], Len(0, 1000)]
    endpoints: Annotated[tuple[JobEndpoint, ...], Len(0, 1000)] = ()


class RegisterAuditor(Body):
    """A staked account offers to audit; `signature` by its wallet over `auditor_digest`."""

    account: AddressField
    session_key: SessionKeyField
    device_class: DeviceClass  # that replays are made on
    at: UnixMillisField
    signature: Annotated[bytes, Len(65, 65)]


class AuditorRegistered(Body):
    """Heard from now on under `subject` of `auditor_subject`; drawn with this weight."""

    stake: Money


class BondAsked(Body):
    """A job lists an auditor that reserves `stake`, by a LeaseAccept of its key and no offer."""

    job: JobIdField
    price: Price
    stake: Money


class AuditorJobs(Body):
    """Jobs whose lists name the auditor's key and that are not over, and those that ask for it."""

    jobs: tuple[JobIdField, ...]
    asked: tuple[BondAsked, ...] = ()


class BondView(Body):
    """What an outside auditor was asked to reserve, and what became of it."""

    job: JobIdField
    account: AddressField
    stake: Money
    state: BondState


class AuditorView(Body):
    """An entry of a job's list of outside auditors."""

    account: AddressField
    stake: Money
    session_key: SessionKeyField
    device_class: str


class AuditorsView(Body):
    """The list that a job's opening names, as of `block`."""

    block: int
    digest: DigestField
    encoded: Annotated[bytes, Len(1, MAX_LIST_BYTES)]  # `contracts.terms.auditors`, for programs
    auditors: tuple[AuditorView, ...]  # the same, for people


class OddsView(Body):
    """P(undetected) of `falsified` peer-steps of one peer, those that are hardest to find.

    A chance is an exact rational, numerator/denominator, each decimal or 0x; before any coin was
    known, from the rates with which the job really drew them.
    """

    falsified: int
    strangers: Chance  # nobody who may audit it is its friend
    largest_owner: Chance  # whoever has most of the weight among them is
    whole_stage: Chance  # everybody in the stage is: only repeats outside see anything


class RatesView(Body):
    """How often a peer's peer-steps were drawn: 1e-6, rounded up."""

    least: int
    mean: int
    greatest: int


class ReceivedView(Body):
    """Audits of what a peer has signed: peer-steps, sums and reports, each once."""

    drawn: int
    open: int
    matched: int
    mismatched: int
    unrepeated: int
    missing: int


class PeerChecksView(Body):
    """What checking has shown of a peer of a job, or of an outside auditor who has reported."""

    peer: PeerIdField
    account: AddressField
    stage: StageField | None  # None: it has left, or works outside
    peer_steps: int
    rates: RatesView | None  # None: it did no peer-step
    reports: int  # of its own that counted
    missed: int  # reports that came too late, or never
    received: ReceivedView
    odds: tuple[OddsView, ...]  # by volume, ascending; the last is of all its peer-steps
    stake: Money  # reserved for the job; of an outside auditor all that was active
    stake_hours: int | None  # 1e-3 hours of its income here so far; None: it has none yet
    convicted_at: int | None  # step of the seal
    reputation: ReputationView


class ChecksView(Body):
    """What checking has shown of a job's peers, by its newest seal; none where nobody checks."""

    job: JobIdField
    checking: Literal["off", "on"]
    step: int
    peers: tuple[PeerChecksView, ...]  # by peer


class SlashView(Body):
    """A conviction and its case on chain."""

    evidence: DigestField  # blob: the bundle that anyone can run again
    job: JobIdField
    account: AddressField
    state: SlashState
    wanted: Money
    amount: Money  # announced: of it the parts below, once executed what the chain took
    restitution: Money
    bounty: Money
    burned: Money
    challenger: AddressField
    convicted_at: UnixMillisField
    case: int | None
    window_ends: UnixSecondsField | None  # of an open case: until then it can be contested
    contest: DigestField | None  # blob: the bundle that speaks against it
    announced_by: DigestField | None  # transaction
    ended_by: DigestField | None  # transaction


class ConvictionView(Body):
    """What a job's seals made slashable; `slash` once an auditor has named the bundle."""

    job: JobIdField
    subject: DigestField  # the message that was found wrong
    step: StepField  # of the seal that ruled so
    account: AddressField
    wanted: Money  # of its stake
    owed: Money  # what the job paid or owes for it: restitution at most
    challenger: AddressField
    auditors: tuple[PeerIdField, ...]  # whose session keys may name the bundle
    slash: SlashView | None


class ConvictionsView(Body):
    """Convictions in the order of their seals, of one job or of one account."""

    convictions: tuple[ConvictionView, ...]


class SlashesView(Body):
    """Slashes of a job, in the order of convictions."""

    slashes: tuple[SlashView, ...]


class PostEvidence(Body):
    """An auditor of `subject` names the bundle; `signature` over `evidence_digest`."""

    subject: DigestField  # the message that was found wrong
    bundle: DigestField  # blob, uploaded before
    session_key: SessionKeyField
    signature: SignatureField


class ContestSlash(Body):
    """`signature` by the convicted account's wallet over `contest_digest`."""

    bundle: DigestField
    signature: Annotated[bytes, Len(65, 65)]


class JudgeContest(Body):
    """What the market's operator found when both bundles were run again."""

    upheld: bool  # the contest: then nothing is slashed


class DebitView(Body):
    """What an epoch takes from a job, and the seal that says so."""

    job: JobIdField
    amount: Money
    step: int
    seal: DigestField


class JobPay(Body):
    """What a job paid an account in total."""

    job: JobIdField
    cumulative: Money


class EpochLeafView(Body):
    """A leaf of an epoch's tree."""

    account: AddressField
    jobs_root: DigestField
    cumulative: Money
    jobs: tuple[JobPay, ...]


class EpochSummary(Body):
    """An epoch in a list."""

    epoch: int
    state: EpochState
    root: DigestField
    sum: Money
    window_ends: UnixSecondsField | None
    transaction: DigestField | None


class EpochsView(Body):
    """Epochs, newest first."""

    epochs: tuple[EpochSummary, ...]


class EpochView(EpochSummary):
    """An epoch with everything that its root is made of."""

    debits: tuple[DebitView, ...]
    leaves: tuple[EpochLeafView, ...]


class ProofStep(Body):
    """A sibling on the path from a leaf to the root."""

    hash: DigestField
    sum: Money
    left: bool  # the sibling is on the left


class ProofView(EpochLeafView):
    """What `PayoutVault.claim` wants for `account`, under a final epoch's root."""

    epoch: int
    state: EpochState
    root: DigestField
    root_sum: Money
    index: int
    siblings: tuple[ProofStep, ...]


class BatchEntryView(Body):
    """One leaf of a batch."""

    job: JobIdField
    step: int
    seal: DigestField


class BatchView(Body):
    """A batch of seals; `coin` once it is recorded with enough confirmations."""

    root: DigestField
    entries: tuple[BatchEntryView, ...]
    transaction: DigestField | None
    block: int | None
    coin: DigestField | None


class AnchoredStepView(Body):
    """A step whose seal is anchored; `coin` once it is recorded with enough confirmations.

    A coin of zeros came too late: then everything of the step is drawn.
    """

    step: StepField
    root: DigestField  # of the first batch that holds it
    block: int  # that anchored the batch
    coin: DigestField | None


class CoinsView(Body):
    """Anchored steps of a job, ascending."""

    steps: tuple[AnchoredStepView, ...]


B = TypeVar("B", bound=Body)


def read_body(cls: type[B], data: bytes) -> B:
    """The body of type `cls` in `data`.

    Raises:
        Malformed: not JSON, or a field is missing, unknown, of another type or out of bounds.
    """
    try:
        return cls.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Malformed(f"{where or 'body'}: {first['msg']}", field=where) from error
