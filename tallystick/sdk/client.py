"""The market's HTTP API from a program: one method a route, typed errors, nothing retried twice.

Every problem that the API reports is raised as the class of `contracts.terms.errors` that its
`code` names; no answer at all and a bug of the market are `ServiceUnreachable`, an answer that no
market gives is `Malformed`, a very long one `TooLarge`. `retrying` repeats what is safe to repeat.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import httpx

from contracts.keys.wallet import Wallet
from contracts.terms.auditors import AuditorList, decode_auditors
from contracts.terms.digest import blob_digest
from contracts.terms.encoding import Value, decode, encode
from contracts.terms.errors import (
    AuditMismatch,
    Expired,
    InvariantBroken,
    Malformed,
    ServiceUnreachable,
    TooLarge,
    Unavailable,
    WrongBytes,
    error_class,
)
from contracts.terms.history import Kept, decode_kept
from contracts.terms.ids import Address, Digest, JobId, PeerId, StepNumber
from market.bodies.auditing import (
    AuditorJobs,
    AuditorRegistered,
    AuditorsView,
    BondView,
    ChecksView,
    RegisterAuditor,
)
from market.bodies.base import (
    API_PREFIX,
    MAX_BLOB_BYTES,
    MAX_BUNDLE_BYTES,
    Body,
    Page,
    Problem,
    SignedBody,
    Stored,
    read_body,
)
from market.bodies.earnings import EARNINGS_PAGE, EarningsView, EarningView
from market.bodies.events import (
    HEARTBEAT_SECONDS,
    REPORTS_PAGE,
    NumberedJobEvent,
    NumberedMarketEvent,
    ReportsView,
    read_job_event,
    read_market_event,
)
from market.bodies.hosting import (
    ClaimJobs,
    HostedJob,
    HostedJobs,
    HostHeartbeat,
    HostRegistered,
    RegisterHost,
)
from market.bodies.jobs import (
    CheckpointStored,
    CheckpointsView,
    JobPosted,
    JobsView,
    JobView,
    PostCheckpoint,
    PostJob,
    PostReports,
    QuoteRequest,
    QuoteView,
    StepReport,
)
from market.bodies.market import ROUNDS_PAGE, ClearingRoundsView, ClearingRoundView, MarketView
from market.bodies.network import (
    AccountView,
    CoordinatorView,
    FaucetRequest,
    FaucetView,
    NetworkView,
)
from market.bodies.offers import (
    AcceptLease,
    Heartbeat,
    LeaseHeard,
    LeasesView,
    LeaseView,
    OfferStored,
    OffersView,
    ProviderView,
    Withdrawal,
)
from market.bodies.operations import AskJob, JobAction, OperationView
from market.bodies.running import PeersView, SpendView
from market.bodies.settlement import (
    AnchoredStepView,
    BatchView,
    CoinsView,
    EpochsView,
    EpochView,
    ProofView,
)
from market.bodies.slashes import (
    ContestSlash,
    ConvictionsView,
    ConvictionView,
    JudgeContest,
    PostEvidence,
    SlashesView,
    SlashView,
)
from market.bodies.status import StatusView
from market.bodies.tracing import StepLinesView, StepsView, StepView, WorkTraceView
from tallystick.sdk.blob_files import measured, pieces, written
from tallystick.sdk.events import followed
from tallystick.sdk.signing import MarketClock, Signer, signed_by
from tallystick.sdk.urls import http_url, is_loopback
from verification.audit.snapshots import Snapshot, decode_snapshots
from verification.draws.lanes import LanePage, decode_page

B = TypeVar("B", bound=Body)
P = TypeVar("P", bound=Page)
R = TypeVar("R")
_Reader = Callable[[httpx.Response], Awaitable[bytes]]

_MSGPACK = {"content-type": "application/msgpack"}
MAX_ANSWER_BYTES = 260 * 2**20  # of any list
_MAX_PAUSE = 60.0  # seconds, whatever a market asks for
_STREAM_TIMEOUT = httpx.Timeout(30.0, read=3.0 * HEARTBEAT_SECONDS)
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)  # seconds between tries; the last one repeats


class _Answer(NamedTuple):
    """What came back, read to its end."""

    url: str
    status: int
    content: bytes
    retry_after: str = ""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class MarketClient:
    """A market at `url`. `async with` closes its connections.

    Args:
        url: For example `http://127.0.0.1:8420`.
        token: A bearer token: of a host, of a session, or a key. What is public needs none.
        timeout: Of one request.
        transport: What carries the requests instead of the network, for tests.

    Raises:
        Malformed: `url` is none.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        timeout: timedelta = timedelta(seconds=30),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = http_url(url, "a market")
        self._http = httpx.AsyncClient(
            base_url=self.url + API_PREFIX,
            timeout=timeout.total_seconds(),
            headers={"authorization": f"Bearer {token}"} if token else {},
            trust_env=not is_loopback(self.url),  # no proxy to oneself
            transport=transport,
        )
        self._clock: MarketClock | None = None  # asked for when something is to be signed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    # ------------------------------------------------------------------------------ the market

    async def network(self) -> NetworkView:
        """Chain, contracts, parameters and clock of this market."""
        return await self._get("/network", NetworkView)

    async def faucet(self, account: Address, *, idempotency_key: str) -> FaucetView:
        """Gas and test tokens, on an embedded chain only."""
        body = FaucetRequest(account=account)
        return await self._post("/faucet", body, FaucetView, key=idempotency_key)

    async def account(self, account: Address) -> AccountView:
        """Balances and ledger lines."""
        return await self._get(f"/accounts/{account.hex()}", AccountView)

    async def market(self) -> MarketView:
        """Offers by device class, the last prices, and the jobs that wait."""
        return await self._get("/market", MarketView)

    async def status(self) -> StatusView:
        """Chain, queues, jobs by state, anchors, hosts and workers, each with its age."""
        return await self._get("/status", StatusView)

    async def rounds(
        self,
        *,
        after: int | None = None,
        before: int | None = None,
        job: JobId | None = None,
        limit: int = ROUNDS_PAGE,
    ) -> tuple[ClearingRoundView, ...]:
        """Clearing rounds beyond `after`, or else the newest ones, ascending; one page."""
        params = {"limit": str(limit)}
        params |= {} if after is None else {"after": str(after)}
        params |= {} if before is None else {"before": str(before)}
        params |= {} if job is None else {"job": job.hex()}
        answer = await self._send("GET", "/market/rounds", params=params)
        return _body(answer, ClearingRoundsView).rounds

    async def earnings(
        self,
        account: Address,
        *,
        job: JobId | None = None,
        after: str | None = None,
        limit: int = EARNINGS_PAGE,
    ) -> EarningsView:
        """What an account earned, line by line beyond a cursor, and why a line waits; one page."""
        params = {"limit": str(limit)}
        params |= {} if job is None else {"job": job.hex()}
        params |= {} if after is None else {"after": after}
        answer = await self._send("GET", f"/accounts/{account.hex()}/earnings", params=params)
        return _body(answer, EarningsView)

    async def all_earnings(
        self, account: Address, *, job: JobId | None = None
    ) -> AsyncIterator[EarningView]:
        """All lines of an account, page by page."""
        after: str | None = None
        while True:
            page = await self.earnings(account, job=job, after=after)
            for line in page.lines:
                yield line
            if page.next is None:
                return
            after = page.next

    # ---------------------------------------------------------------------------------- offers

    async def post_offer(self, signed: bytes) -> OfferStored:
        """Offer a machine; the same offer again is no second one."""
        body = SignedBody(signed=signed)
        return await self._post("/offers", body, OfferStored)

    async def provider(self, account: Address) -> ProviderView:
        """What is known of an account, and what it offers."""
        return await self._get(f"/providers/{account.hex()}", ProviderView)

    async def offers(self) -> OffersView:
        """All offers, cheapest first."""
        parts = [part async for part in self._parts("/offers", OffersView)]
        return OffersView(offers=tuple(each for part in parts for each in part.offers))

    async def heartbeat_offer(
        self, offer: Digest, body: Heartbeat, *, wait_seconds: int = 0
    ) -> LeasesView:
        """Say that the offer's agent is alive; answers with its leases.

        If it has none, the market may take `wait_seconds` to answer, or until the first one comes.
        """
        path = f"/offers/{offer.hex()}/heartbeat"
        if wait_seconds:
            path += f"?wait={wait_seconds}"
        return await self._post(path, body, LeasesView)

    async def withdraw_offer(self, offer: Digest, body: Withdrawal) -> None:
        """Take an offer from the market; its lease, if any, goes on."""
        await self._send("DELETE", f"/offers/{offer.hex()}", content=body.json_bytes())

    async def lease(self, lease: Digest) -> LeaseView:
        """One lease."""
        return await self._get(f"/leases/{lease.hex()}", LeaseView)

    async def accept_lease(self, lease: Digest, body: AcceptLease) -> LeaseView:
        """Bind oneself to a job."""
        return await self._post(f"/leases/{lease.hex()}/accept", body, LeaseView)

    async def heartbeat_lease(self, lease: Digest, body: Heartbeat) -> LeaseHeard:
        """Say that the lease's peer is alive."""
        return await self._post(f"/leases/{lease.hex()}/heartbeat", body, LeaseHeard)

    # -------------------------------------------------------------------------------- auditors

    async def register_auditor(self, body: RegisterAuditor) -> AuditorRegistered:
        """Offer to audit from outside."""
        return await self._post("/auditors", body, AuditorRegistered)

    async def heartbeat_auditor(self, account: Address, body: Heartbeat) -> AuditorJobs:
        """Say that an auditor is alive; answers with jobs that may draw it or ask for stake."""
        return await self._post(f"/auditors/{account.hex()}/heartbeat", body, AuditorJobs)

    async def accept_bond(self, account: Address, body: AcceptLease) -> BondView:
        """Have an auditor's stake reserved for a job that asks for it."""
        return await self._post(f"/auditors/{account.hex()}/bonds", body, BondView)

    async def auditors(self, job: JobId) -> AuditorList:
        """The outside auditors of a job; whoever relies on it compares it with the opening."""
        view = await self._get(f"/jobs/{job.hex()}/auditors", AuditorsView)
        return decode_auditors(view.encoded)

    # --------------------------------------------------------------------------------- slashes

    async def convictions(self, job: JobId) -> tuple[ConvictionView, ...]:
        """What a job's seals made slashable, who may show why, and what became of it."""
        parts = self._parts(f"/jobs/{job.hex()}/convictions", ConvictionsView)
        return tuple([each async for part in parts for each in part.convictions])

    async def convictions_of(self, account: Address) -> tuple[ConvictionView, ...]:
        """The same of an account, in all jobs."""
        parts = self._parts(f"/accounts/{account.hex()}/convictions", ConvictionsView)
        return tuple([each async for part in parts for each in part.convictions])

    async def slash(self, evidence: Digest) -> SlashView:
        """One slash, by its evidence."""
        return await self._get(f"/slashes/{evidence.hex()}", SlashView)

    async def slashes(self, job: JobId) -> tuple[SlashView, ...]:
        """Who was convicted in a job, and where each part of the stake went."""
        parts = self._parts(f"/jobs/{job.hex()}/slashes", SlashesView)
        return tuple([each async for part in parts for each in part.slashes])

    async def post_evidence(self, job: JobId, body: PostEvidence) -> SlashView:
        """Name the bundle that shows what an audit found; an auditor of it only."""
        return await self._post(f"/jobs/{job.hex()}/evidence", body, SlashView)

    async def contest_slash(self, evidence: Digest, body: ContestSlash) -> SlashView:
        """Show a bundle that speaks against a slash; signed by the convicted account."""
        return await self._post(f"/slashes/{evidence.hex()}/contest", body, SlashView)

    async def judge_contest(self, evidence: Digest, *, upheld: bool) -> SlashView:
        """Say what came of running both bundles again; no party to the contest may."""
        path = f"/slashes/{evidence.hex()}/judgement"
        return await self._post(path, JudgeContest(upheld=upheld), SlashView)

    # ------------------------------------------------------------------------------------ jobs

    async def coordinator(self, *, by: Wallet, idempotency_key: str) -> Address:
        """A hosted coordinator for a job that `by` is about to sign."""
        headers = {"idempotency-key": idempotency_key}
        answer = await self._send_signed("POST", "/coordinators", b"", by, headers=headers)
        return _body(answer, CoordinatorView).coordinator

    async def quote(self, spec: bytes) -> QuoteView:
        """What an unsigned JobSpec would cost, and whether it fits."""
        return await self._post("/jobs/quote", QuoteRequest(spec=spec), QuoteView)

    async def post_job(self, body: PostJob, *, idempotency_key: str) -> JobPosted:
        """Order work; the same job again is no second one."""
        return await self._post("/jobs", body, JobPosted, key=idempotency_key)

    async def ask_job(
        self, job: JobId, action: JobAction, body: AskJob, *, idempotency_key: str
    ) -> OperationView:
        """Pause, resume or cancel a job; signed by its poster."""
        path = f"/jobs/{job.hex()}/{action}"
        return await self._post(path, body, OperationView, key=idempotency_key)

    async def operation(self, operation: Digest) -> OperationView:
        """What became of something that was asked of a job."""
        return await self._get(f"/operations/{operation.hex()}", OperationView)

    async def jobs(self, *, cursor: str | None = None) -> JobsView:
        """The newest jobs, or those that follow a part which said `next`."""
        return await self._get(_part("/jobs", cursor), JobsView)

    async def job(self, job: JobId) -> JobView:
        """One job."""
        return await self._get(f"/jobs/{job.hex()}", JobView)

    async def post_messages(self, job: JobId, items: Sequence[bytes], *, by: Wallet) -> Stored:
        """Store kept items (`history.encode_kept`) in their order; known ones are skipped.

        Raises:
            Forbidden: `by` is not the job's coordinator.
        """
        values: list[Value] = list(items)
        answer = await self._send_signed(
            "POST", f"/jobs/{job.hex()}/messages", encode(values), by, headers=_MSGPACK
        )
        return _body(answer, Stored)

    async def messages(self, job: JobId, *, after: int = 0) -> AsyncIterator[tuple[int, Kept]]:
        """All kept items of a job beyond `after` with their sequence numbers, in order."""
        while page := await self._messages_page(job, after):
            for sequence, data in page:
                yield sequence, decode_kept(data)
                after = sequence

    async def snapshots(self, job: JobId) -> list[Snapshot]:
        """All that the market stored of what the chain proved about a job, in order."""
        found: list[Snapshot] = []
        while page := await self._snapshots_page(job, len(found)):
            found += page
        return found

    async def post_reports(self, job: JobId, body: PostReports) -> Stored:
        """Store step reports."""
        return await self._post(f"/jobs/{job.hex()}/reports", body, Stored)

    async def reports(
        self, job: JobId, *, after: int = 0, limit: int = REPORTS_PAGE
    ) -> tuple[StepReport, ...]:
        """Step reports beyond step `after`, by step; one page."""
        params = {"after": after, "limit": limit}
        answer = await self._send("GET", f"/jobs/{job.hex()}/reports", params=params)
        return _body(answer, ReportsView).reports

    async def job_events(
        self, job: JobId, *, after: int = 0, patience: timedelta | None = None
    ) -> AsyncGenerator[NumberedJobEvent, None]:
        """What happens to a job, each event once and in order, until it is refunded.

        Interruptions are nobody's concern, unless the market is away for longer than `patience`.
        """
        path = f"/jobs/{job.hex()}/events"
        found = followed(
            lambda place: self._stream(path, place),
            read_job_event,
            after=after,
            patience=patience,
        )
        async with aclosing(found):
            async for number, event in found:
                yield NumberedJobEvent(number, event)

    async def market_events(
        self, *, after: int, patience: timedelta | None = None
    ) -> AsyncGenerator[NumberedMarketEvent, None]:
        """What happens in the market behind event `after`, for ever; as `job_events`."""
        found = followed(
            lambda place: self._stream("/market/events", place),
            read_market_event,
            after=after,
            patience=patience,
        )
        async with aclosing(found):
            async for number, event in found:
                yield NumberedMarketEvent(number, event)

    async def post_checkpoint(self, job: JobId, body: PostCheckpoint) -> bool:
        """Say which blob holds a stage's weights; answers whether it is still to be uploaded."""
        path = f"/jobs/{job.hex()}/checkpoints"
        return (await self._post(path, body, CheckpointStored)).wanted

    async def checkpoints(self, job: JobId) -> CheckpointsView:
        """Where a job's weights are, by stage, the newest step first, and what failed."""
        return await self._get(f"/jobs/{job.hex()}/checkpoints", CheckpointsView)

    async def checks(self, job: JobId, *, falsified: int | None = None) -> ChecksView:
        """Audits, rates, odds and stakes of a job's peers; odds of so many peer-steps, too."""
        params = {} if falsified is None else {"falsified": falsified}
        answer = await self._send("GET", f"/jobs/{job.hex()}/checks", params=params)
        return _body(answer, ChecksView)

    async def coins(self, job: JobId, *, after: int = 0) -> tuple[AnchoredStepView, ...]:
        """Anchored steps beyond `after` with their coins, as the market says; one page."""
        path = f"/jobs/{job.hex()}/coins"
        answer = await self._send("GET", path, params={"after": after})
        return _body(answer, CoinsView).steps

    async def lane(self, job: JobId, *, first: int | None = None) -> LanePage:
        """Batches of the job's anchorer, to be checked against the chain; one page."""
        params = {} if first is None else {"first": first}
        answer = await self._send("GET", f"/jobs/{job.hex()}/lane", params=params)
        try:
            return decode_page(answer.content)
        except AuditMismatch as error:
            raise Malformed(f"lane: the market answered with none: {error.message}") from error

    async def spend(self, job: JobId, *, after: int = 0) -> SpendView:
        """What a job has spent and how long it lasts; its steps beyond `after`, one page."""
        answer = await self._send("GET", f"/jobs/{job.hex()}/spend", params={"after": after})
        return _body(answer, SpendView)

    async def peers(self, job: JobId, *, after: int = 0) -> PeersView:
        """A job's peers by stage, beyond the first `after`; one page."""
        answer = await self._send("GET", f"/jobs/{job.hex()}/peers", params={"after": after})
        return _body(answer, PeersView)

    async def steps(self, job: JobId, *, after: int = 0) -> tuple[StepView, ...]:
        """Sealed steps beyond `after`, with anchors, coins and what was drawn; one page."""
        answer = await self._send("GET", f"/jobs/{job.hex()}/steps", params={"after": after})
        return _body(answer, StepsView).steps

    async def step(self, job: JobId, step: StepNumber, *, after: int = 0) -> StepLinesView:
        """A sealed step with its peer-steps and paid audits beyond `after`; one page."""
        path = f"/jobs/{job.hex()}/steps/{step}"
        answer = await self._send("GET", path, params={"after": after})
        return _body(answer, StepLinesView)

    async def work_trace(
        self, job: JobId, step: StepNumber, peer: PeerId, *, round_number: int = 0
    ) -> WorkTraceView:
        """A peer-step from its GradCommit to the money, with every Merkle path."""
        path = f"/jobs/{job.hex()}/steps/{step}/work/{peer.hex()}"
        answer = await self._send("GET", path, params={"round": round_number})
        return _body(answer, WorkTraceView)

    async def _snapshots_page(self, job: JobId, after: int) -> tuple[Snapshot, ...]:
        answer = await self._send("GET", f"/jobs/{job.hex()}/snapshots", params={"after": after})
        try:
            return decode_snapshots(answer.content)
        except AuditMismatch as error:
            raise Malformed(f"snapshots: the market answered with none: {error.message}") from error

    async def _messages_page(self, job: JobId, after: int) -> list[tuple[int, bytes]]:
        answer = await self._send("GET", f"/jobs/{job.hex()}/messages", params={"after": after})
        match decode(answer.content, max_bytes=64 * 2**20):
            case list(page):
                return [_numbered(item) for item in page]
        raise Malformed("messages: the market answered with something else than a list")

    # ------------------------------------------------------------------------------------ blobs

    async def put_blob(self, data: bytes, *, by: Signer) -> Digest:
        """Store a blob at the expense of `by`; the same blob again costs one small request.

        Raises:
            TooLarge: the account has no room for it.
        """
        name = blob_digest(data)
        if not await self.has_blob(name):
            await self._send_signed("PUT", f"/blobs/{name.hex()}", data, by)
        return name

    async def has_blob(self, name: Digest) -> bool:
        """Whether the market holds this blob."""
        answer = await self._try("HEAD", f"/blobs/{name.hex()}")
        if answer.status == httpx.codes.NOT_FOUND:
            return False
        _check(answer)
        return True

    async def get_blob(self, name: Digest, *, max_bytes: int = MAX_BLOB_BYTES) -> bytes:
        """A blob, checked against its digest.

        Raises:
            NotFound: the market does not hold it.
            TooLarge: it is of more than `max_bytes`.
            WrongBytes: it answered with other bytes.
        """
        read = partial(_read, most=max_bytes)
        data = (await self._send("GET", f"/blobs/{name.hex()}", read=read)).content
        if (actual := blob_digest(data)) != name:
            raise WrongBytes(f"blob {name.hex()}", expected=name, actual=actual)
        return data

    async def put_file(self, path: Path, *, by: Signer) -> Digest:
        """Store a file as `put_blob` does, a piece at a time.

        Raises:
            TooLarge: no market takes as much, or the account has no room for it.
        """
        size, name = await asyncio.to_thread(measured, path)
        if size > (most := MAX_BUNDLE_BYTES):
            raise TooLarge(f"{path} has {size} bytes, a blob at most {most}", size=size, limit=most)
        if not await self.has_blob(name):
            await self.put_pieces(name, size, lambda: pieces(path), by=by)
        return name

    async def put_pieces(
        self, name: Digest, size: int, content: Callable[[], AsyncIterator[bytes]], *, by: Signer
    ) -> None:
        """Store a blob of `size` bytes that `content` makes; may be asked for twice.

        Raises:
            WrongBytes: they are not `name`. TooLarge: as `put_blob`.
        """
        path, headers = f"/blobs/{name.hex()}", {"content-length": str(size)}
        await self._send_signed("PUT", path, content, by, body=name, headers=headers)

    async def save_blob(self, name: Digest, path: Path) -> None:
        """Write a blob to a file, which is there whole and checked, or not at all.

        Raises:
            NotFound: the market does not hold it.
            WrongBytes: it answered with other bytes.
        """
        with written(path, name, max_bytes=MAX_BUNDLE_BYTES) as append:

            async def keep(response: httpx.Response) -> bytes:
                if not response.is_success:
                    return await _read(response)
                async for chunk in response.aiter_bytes():
                    append(chunk)
                return b""

            _check(await self._try("GET", f"/blobs/{name.hex()}", read=keep))

    # ---------------------------------------------------------------------------------- hosting

    async def register_host(self, body: RegisterHost) -> int:
        """Name the coordinators that a host runs; answers how many are known."""
        answer = await self._post("/hosting/register", body, HostRegistered)
        return answer.coordinators

    async def claim_jobs(self, host: str, *, wait_seconds: int = 0) -> tuple[HostedJob, ...]:
        """Lease jobs to `host`; answers with all that it holds.

        If it has none, the market may take `wait_seconds` to answer, or until one may be there.
        """
        path, body = "/hosting/claim", ClaimJobs(host=host)
        if wait_seconds:
            path += f"?wait={wait_seconds}"
        return (await self._post(path, body, HostedJobs)).jobs

    async def heartbeat_host(self, body: HostHeartbeat) -> tuple[HostedJob, ...]:
        """Renew a host's rows."""
        return (await self._post("/hosting/heartbeat", body, HostedJobs)).jobs

    # --------------------------------------------------------------------------------- epochs

    async def epochs(self, *, cursor: str | None = None) -> EpochsView:
        """The newest settlements, or those that follow a part which said `next`."""
        return await self._get(_part("/epochs", cursor), EpochsView)

    async def epoch(self, number: int) -> EpochView:
        """One settlement with its leaves."""
        return await self._get(f"/epochs/{number}", EpochView)

    async def proof(self, number: int, account: Address) -> ProofView:
        """What a claim of `account` under this epoch's root needs."""
        return await self._get(f"/epochs/{number}/proofs/{account.hex()}", ProofView)

    async def batch(self, root: Digest) -> BatchView:
        """An anchored batch of seals."""
        return await self._get(f"/batches/{root.hex()}", BatchView)

    # ---------------------------------------------------------------------------------- wiring

    async def _get(self, path: str, cls: type[B]) -> B:
        return _body(await self._send("GET", path), cls)

    async def _parts(self, path: str, cls: type[P]) -> AsyncIterator[P]:
        part = await self._get(path, cls)
        yield part
        while part.next is not None:
            part = await self._get(_part(path, part.next), cls)
            yield part

    async def _post(self, path: str, body: Body | None, cls: type[B], *, key: str = "") -> B:
        headers = {"content-type": "application/json"}
        if key:
            headers["idempotency-key"] = key
        content = body.json_bytes() if body else b""
        return _body(await self._send("POST", path, content=content, headers=headers), cls)

    async def _send(self, method: str, path: str, **options: Any) -> _Answer:
        answer = await self._try(method, path, **options)
        _check(answer)
        return answer

    async def _send_signed(
        self,
        method: str,
        path: str,
        content: bytes | Callable[[], AsyncIterator[bytes]],
        by: Signer,
        *,
        body: Digest | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> _Answer:
        """Send what `by` signs; once more by the market's clock, if that was what was wrong.

        Args:
            method: In capitals.
            path: Without `/v1` and without a query.
            content: The body, or what makes its pieces.
            by: Signs it.
            body: Digest of the body, where `content` makes it.
            headers: Of the request.
        """
        name = blob_digest(content) if isinstance(content, bytes) else body
        assert name is not None
        for is_last in (False, True):
            clock = await self._market_clock(again=is_last)
            key, target = headers.get("idempotency-key", ""), API_PREFIX + path
            shown = signed_by(by, clock.domain, method, target, name, clock.now(), key=key)
            pieces = content if isinstance(content, bytes) else content()
            try:
                return await self._send(
                    method, path, content=pieces, headers={**headers, "authorization": shown}
                )
            except Expired:
                if is_last:
                    raise
        raise AssertionError("one of the two tries has ended this")

    async def _market_clock(self, *, again: bool) -> MarketClock:
        if self._clock is None or again:
            self._clock = MarketClock.of(await self.network())
        return self._clock

    @asynccontextmanager
    async def _stream(self, path: str, after: int) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes of a stream of events behind a number."""
        try:
            async with self._http.stream(
                "GET", path, params={"after": after}, timeout=_STREAM_TIMEOUT
            ) as response:
                url = str(response.request.url)
                if not response.is_success:
                    _check(_Answer(url, response.status_code, await _read(response)))
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    raise Malformed(f"{url} does not answer as a market does: no stream of events")
                yield response.aiter_bytes()
        except httpx.HTTPError as error:
            raise _no_answer(self.url, error) from error

    async def _try(
        self, method: str, path: str, *, read: _Reader | None = None, **options: Any
    ) -> _Answer:
        try:
            async with self._http.stream(method, path, **options) as response:
                content = await (read or _read)(response)
            pause = response.headers.get("retry-after", "")
            return _Answer(str(response.request.url), response.status_code, content, pause)
        except httpx.InvalidURL as error:
            raise Malformed(f"{self.url} is no URL of a market: {error}") from error
        except httpx.HTTPError as error:
            raise _no_answer(self.url, error) from error


def _no_answer(url: str, error: httpx.HTTPError) -> ServiceUnreachable:
    return ServiceUnreachable(f"no market answers at {url} ({type(error).__name__}); is it up?")


async def _read(response: httpx.Response, *, most: int | None = None) -> bytes:
    content, most = bytearray(), MAX_ANSWER_BYTES if most is None else most
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > most:
            raise TooLarge(
                f"{response.request.url}: an answer of more than {most} bytes",
                size=len(content),
                limit=most,
            )
    return bytes(content)


async def retrying(
    attempt: Callable[[], Awaitable[R]],
    *,
    patience: timedelta | None = None,
    on_error: Callable[[Unavailable], None] = lambda error: None,
) -> R:
    """Repeat `attempt` while the environment does not answer.

    Args:
        attempt: Something that is safe to repeat.
        patience: Stop and raise after this long; None never stops.
        on_error: Told of each failure, for the log.
    """
    loop = asyncio.get_running_loop()
    ends = None if patience is None else loop.time() + patience.total_seconds()
    tries = 0
    while True:
        try:
            return await attempt()
        except Unavailable as error:
            pause = max(_PAUSES[min(tries, len(_PAUSES) - 1)], _wanted_pause(error))
            if ends is not None and loop.time() + pause > ends:
                raise
            on_error(error)
            await asyncio.sleep(pause)
            tries += 1


def _wanted_pause(error: Unavailable) -> float:
    """Seconds that a market asked to be left alone, and no longer than we believe."""
    text = str(error.data.get("retry_after", ""))
    return min(float(text), _MAX_PAUSE) if text.isdecimal() and len(text) < 10 else 0.0


def _part(path: str, cursor: str | None) -> str:
    return path if cursor is None else f"{path}?cursor={cursor}"


def _check(answer: _Answer) -> None:
    if answer.is_success:
        return
    try:
        problem = read_body(Problem, answer.content)
    except Malformed:
        if answer.status >= httpx.codes.INTERNAL_SERVER_ERROR:  # of a proxy before it
            raise ServiceUnreachable(f"{answer.url}: HTTP {answer.status}") from None
        raise Malformed(
            f"{answer.url} does not answer as a market does (HTTP {answer.status})"
        ) from None
    cls = error_class(problem.code)
    if issubclass(cls, InvariantBroken):  # the market's bug, not this program's
        raise ServiceUnreachable(f"{answer.url}: {problem.detail}")
    error = cls(problem.detail)
    if answer.retry_after:
        error.data["retry_after"] = answer.retry_after
    error.data |= problem.data  # names are the market's, so they are no arguments here
    raise error


def _body(answer: _Answer, cls: type[B]) -> B:
    try:
        return read_body(cls, answer.content)
    except Malformed as error:
        raise Malformed(
            f"{answer.url} does not answer as a market does ({error.message})"
        ) from error


def _numbered(item: Value) -> tuple[int, bytes]:
    match item:
        case [int(sequence), bytes(data)]:
            return sequence, data
    raise Malformed("messages: an entry is no pair of a number and an item")
