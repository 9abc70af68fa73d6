"""The operations of `/v1`: from this table follow server, client, OpenAPI and command line.

A name in braces is a part of the path: bytes travel as hex. Whatever else a call names becomes the
query. `refuses` are errors of the operation itself; those that follow from its form (no such field,
not signed, asked too often, a store that does not answer) any operation may give.
"""

from dataclasses import dataclass, field
from string import Formatter
from typing import Generic, TypeVar, get_args
from urllib.parse import quote, urlencode

from contracts.terms.errors import (
    BadSignature,
    ChainForgot,
    ChainUnreachable,
    Conflict,
    ContractRefused,
    DeadlineExceeded,
    Equivocation,
    Expired,
    Forbidden,
    InsufficientStake,
    InvalidSeal,
    Malformed,
    NoMatch,
    NotFound,
    Refused,
    RpcFailed,
    TallystickError,
    TooLarge,
    Unaffordable,
    Unavailable,
    UnknownVersion,
    WrongBytes,
    WrongConfiguration,
)
from market.bodies import anchors, earnings, events, jobs, market, money, offers, slashes, tracing
from market.bodies.base import Body, SignedBody, Stored

V = TypeVar("V", covariant=True)


@dataclass(frozen=True)
class Route(Generic[V]):
    """One operation; `path` lies under `API_PREFIX`, `answers` is a body, bytes or nothing."""

    method: str
    path: str
    answers: type[V]
    takes: type[Body] | type[bytes] | None = None
    refuses: tuple[type[TallystickError], ...] = field(default=(), kw_only=True)
    status: int = field(default=200, kw_only=True)
    media: str = field(default="application/msgpack", kw_only=True)  # of bytes
    tells: tuple[type[Body], ...] = field(default=(), kw_only=True)  # events in a stream

    @property
    def names(self) -> tuple[str, ...]:
        """The parts of the path that a caller names."""
        return tuple(name for _, name, _, _ in Formatter().parse(self.path) if name)

    def target(self, **named: object) -> str:
        """The path with its query for a call; a name whose value is None is left out."""
        said = {name: _text(value) for name, value in named.items() if value is not None}
        path = self.path.format_map({name: quote(said.pop(name), safe="") for name in self.names})
        return f"{path}?{urlencode(said)}" if said else path


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


_SIGNED = (Malformed, TooLarge, UnknownVersion, BadSignature)  # of a signed message in a body
_CHAIN = (ChainUnreachable, RpcFailed, ChainForgot)
_POSTING = (*_SIGNED, Expired, Forbidden, NotFound, Conflict, Unaffordable, Refused, *_CHAIN)
_WISH = (BadSignature, Forbidden, NotFound, Expired, Conflict)
_NOTHING = type(None)
_STREAM = "text/event-stream"
OCTETS = "application/octet-stream"

GET_HEALTH = Route("GET", "/health", market.HealthView)
GET_NETWORK = Route("GET", "/network", market.NetworkView, refuses=_CHAIN)
GET_STATUS = Route("GET", "/status", market.StatusView)
POST_FAUCET = Route(
    "POST", "/faucet", market.FaucetView, market.FaucetRequest,
    refuses=(WrongConfiguration, Forbidden, Conflict, ContractRefused, DeadlineExceeded, *_CHAIN),
)  # fmt: skip
GET_ACCOUNT = Route("GET", "/accounts/{account}", market.AccountView, refuses=_CHAIN)
GET_EARNINGS = Route(
    "GET", "/accounts/{account}/earnings", earnings.EarningsView, refuses=(NotFound,)
)
POST_COORDINATOR = Route(
    "POST", "/coordinators", market.CoordinatorView, refuses=(NoMatch, Conflict), status=201
)

GET_MARKET = Route("GET", "/market", market.MarketView)
GET_ROUNDS = Route("GET", "/market/rounds", market.ClearingRoundsView)
GET_MARKET_EVENTS = Route(
    "GET", "/market/events", bytes, media=_STREAM, tells=get_args(events.MarketEvent)
)

POST_OFFER = Route(
    "POST", "/offers", offers.OfferStored, SignedBody,
    refuses=(*_SIGNED, Expired, InsufficientStake, *_CHAIN), status=201,
)  # fmt: skip
GET_OFFERS = Route("GET", "/offers", offers.OffersView)
DELETE_OFFER = Route(
    "DELETE", "/offers/{offer}", _NOTHING, offers.Withdrawal,
    refuses=(NotFound, BadSignature), status=204,
)  # fmt: skip
POST_OFFER_HEARTBEAT = Route(
    "POST", "/offers/{offer}/heartbeat", offers.LeasesView, offers.Heartbeat,
    refuses=(NotFound, BadSignature, Expired),
)  # fmt: skip
GET_LEASE = Route("GET", "/leases/{lease}", offers.LeaseView, refuses=(NotFound,))
POST_ACCEPT = Route(
    "POST", "/leases/{lease}/accept", offers.LeaseView, offers.AcceptLease,
    refuses=(*_SIGNED, NotFound, Conflict, Expired, Forbidden, InsufficientStake),
)  # fmt: skip
POST_LEASE_HEARTBEAT = Route(
    "POST", "/leases/{lease}/heartbeat", offers.LeaseHeard, offers.Heartbeat,
    refuses=(NotFound, BadSignature, Conflict, Expired),
)  # fmt: skip
GET_PROVIDER = Route("GET", "/providers/{account}", offers.ProviderView)

POST_AUDITOR = Route(
    "POST", "/auditors", offers.AuditorRegistered, offers.RegisterAuditor,
    refuses=(BadSignature, Expired, InsufficientStake, Refused, *_CHAIN),
)  # fmt: skip
POST_AUDITOR_HEARTBEAT = Route(
    "POST", "/auditors/{account}/heartbeat", offers.AuditorJobs, offers.Heartbeat,
    refuses=(NotFound, BadSignature, Expired),
)  # fmt: skip
POST_AUDITOR_BOND = Route(
    "POST", "/auditors/{account}/bonds", offers.BondView, offers.PostBond,
    refuses=(*_SIGNED, NotFound, Conflict, Forbidden, Expired),
)  # fmt: skip

POST_JOB = Route("POST", "/jobs", jobs.JobPosted, jobs.PostJob, refuses=_POSTING, status=202)
POST_QUOTE = Route(
    "POST", "/jobs/quote", jobs.QuoteView, jobs.QuoteRequest, refuses=(UnknownVersion, *_CHAIN)
)
GET_JOBS = Route("GET", "/jobs", jobs.JobsView)
GET_JOB = Route("GET", "/jobs/{job}", jobs.JobView, refuses=(NotFound,))
GET_JOB_EVENTS = Route(
    "GET", "/jobs/{job}/events", bytes,
    refuses=(NotFound,), media=_STREAM, tells=get_args(events.JobEvent),
)  # fmt: skip
POST_MESSAGES = Route(
    "POST", "/jobs/{job}/messages", Stored, bytes,
    refuses=(
        *_SIGNED, NotFound, Conflict, Equivocation, InvalidSeal, WrongBytes, ChainForgot,
        Unavailable,
    ),
)  # fmt: skip
GET_MESSAGES = Route("GET", "/jobs/{job}/messages", bytes, refuses=(NotFound,))
GET_BEACONS = Route("GET", "/jobs/{job}/beacons", anchors.BeaconsView, refuses=(NotFound,))
GET_ANCHOR_CHAIN = Route("GET", "/jobs/{job}/anchor-chain", bytes, refuses=(NotFound, Conflict))
GET_AUDITORS = Route("GET", "/jobs/{job}/auditors", offers.AuditorsView, refuses=(NotFound,))
POST_REPORTS = Route(
    "POST",
    "/jobs/{job}/reports",
    Stored,
    jobs.PostReports,
    refuses=(NotFound, Conflict, BadSignature),
)
GET_REPORTS = Route("GET", "/jobs/{job}/reports", events.ReportsView, refuses=(NotFound,))
POST_CHECKPOINT = Route(
    "POST", "/jobs/{job}/checkpoints", jobs.CheckpointStored, jobs.PostCheckpoint,
    refuses=(NotFound, Conflict, Forbidden, BadSignature),
)  # fmt: skip
GET_CHECKPOINTS = Route("GET", "/jobs/{job}/checkpoints", jobs.CheckpointsView, refuses=(NotFound,))
GET_CHECKS = Route("GET", "/jobs/{job}/checks", offers.ChecksView, refuses=(NotFound,))
GET_SPEND = Route("GET", "/jobs/{job}/spend", earnings.SpendView, refuses=(NotFound,))
GET_PEERS = Route("GET", "/jobs/{job}/peers", earnings.PeersView, refuses=(NotFound,))
GET_STEPS = Route("GET", "/jobs/{job}/steps", tracing.StepsView, refuses=(NotFound,))
GET_STEP = Route("GET", "/jobs/{job}/steps/{step}", tracing.StepLinesView, refuses=(NotFound,))
GET_WORK = Route(
    "GET", "/jobs/{job}/steps/{step}/work/{peer}", tracing.WorkTraceView, refuses=(NotFound,)
)

POST_PAUSE, POST_RESUME, POST_CANCEL = (
    Route("POST", path, jobs.OperationView, jobs.AskJob, refuses=_WISH, status=202)
    for path in ("/jobs/{job}/pause", "/jobs/{job}/resume", "/jobs/{job}/cancel")
)
GET_OPERATION = Route("GET", "/operations/{operation}", jobs.OperationView, refuses=(NotFound,))
POST_TYPED_DATA = Route(
    "POST", "/jobs/typed-data", jobs.TypedJob, jobs.CloneJob,
    refuses=(NotFound, NoMatch, Unaffordable, Conflict, *_CHAIN),
)  # fmt: skip
POST_TYPED_JOB = Route(
    "POST", "/jobs/typed", jobs.JobPosted, jobs.PostTypedJob, refuses=_POSTING, status=202
)

POST_ORDER = Route(
    "POST", "/jobs/{job}/orders", money.OrderView, money.PostOrder,
    refuses=(*_SIGNED, Expired, Forbidden, NotFound, Conflict), status=202,
)  # fmt: skip
GET_MONEY = Route("GET", "/jobs/{job}/money", money.JobMoney, refuses=(NotFound, *_CHAIN))
GET_PAY = Route("GET", "/jobs/{job}/pay", money.PayView, refuses=(NotFound,))

PUT_BLOB = Route(
    "PUT", "/blobs/{blob}", _NOTHING, bytes,
    refuses=(WrongBytes, DeadlineExceeded), status=204, media=OCTETS,
)  # fmt: skip
GET_BLOB = Route("GET", "/blobs/{blob}", bytes, refuses=(NotFound,), media=OCTETS)
HEAD_BLOB = Route("HEAD", "/blobs/{blob}", _NOTHING, refuses=(NotFound,))

POST_HOST = Route(
    "POST", "/hosting/register", jobs.HostRegistered, jobs.RegisterHost, refuses=(BadSignature,)
)
POST_CLAIM = Route("POST", "/hosting/claim", jobs.HostedJobs)
POST_HOST_HEARTBEAT = Route("POST", "/hosting/heartbeat", jobs.HostedJobs, jobs.HostHeartbeat)

GET_CONVICTIONS = Route(
    "GET", "/jobs/{job}/convictions", slashes.ConvictionsView, refuses=(NotFound,)
)
GET_CONVICTIONS_OF = Route("GET", "/accounts/{account}/convictions", slashes.ConvictionsView)
GET_SLASHES = Route("GET", "/jobs/{job}/slashes", slashes.SlashesView, refuses=(NotFound,))
GET_SLASH = Route("GET", "/slashes/{evidence}", slashes.SlashView, refuses=(NotFound,))
POST_EVIDENCE = Route(
    "POST", "/jobs/{job}/evidence", slashes.SlashView, slashes.PostEvidence,
    refuses=(NotFound, BadSignature, Forbidden, Conflict, Malformed),
)  # fmt: skip
POST_ANSWER = Route(
    "POST", "/slashes/{evidence}/answer", slashes.SlashView, slashes.AnswerSlash,
    refuses=(NotFound, BadSignature, Conflict),
)  # fmt: skip

GET_BATCH = Route("GET", "/batches/{root}", anchors.BatchView, refuses=(NotFound,))

TABLE = {name: route for name, route in globals().items() if isinstance(route, Route)}
"""All of them, by what they are called here."""
