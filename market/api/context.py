"""What routes are given: the market, a bounded body, parsed names, the host's token, one answer.

Bodies are read here and nowhere else, so that none is longer than its bound, and parsed by the
strict classes of `market.bodies`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Path, Query, Request
from fastapi.security import HTTPBearer
from pydantic import BeforeValidator, WithJsonSchema
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from contracts.terms import errors
from contracts.terms.digest import BlobHasher, digest
from contracts.terms.ids import Address, Digest, JobId, PeerId
from contracts.terms.moments import UnixMillis
from contracts.terms.typed_names import parse_name
from market.api.arrivals import Arrivals
from market.api.kept_market import KeptMarket
from market.api.watching import Watching
from market.bodies.base import MAX_JSON_BYTES, Body, read_body
from market.bodies.market import NetworkView
from market.bodies.signing import host_credential, signed_call
from market.bootstrap import Market
from market.domain.limits import BlobBounds, Rate
from market.service.follow_jobs import FollowedJobs
from market.service.ports import UnitOfWork
from market.service.rows import IdempotencyRow
from market.service.show_market import shown_market
from market.service.store_blob import Uploads

B = TypeVar("B", bound=Body)

SAFE = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing (RFC 9110, 9.2.1)."""
NETWORK_MILLIS = 10_000  # parameters change with notice; nobody needs them fresher
_DIGITS = 19  # of a length that any disk has
GENEROUS = Rate(per_second=300, burst=3000)
USUAL = BlobBounds()


@dataclass
class Api:
    """What the application holds."""

    market: Market
    host_token: str
    version: str
    faucet_gas: int
    faucet_tokens: int
    faucet_grants: int
    confirmations: int
    site: str = "http://127.0.0.1:8420"
    """Origin under which people reach the API."""
    rate: Rate = GENEROUS
    """What one caller may ask."""
    blob_bounds: BlobBounds = USUAL
    """What accounts may store."""
    uploads: Uploads = field(default_factory=Uploads)
    arrivals: Arrivals = field(init=False)
    followed: FollowedJobs = field(init=False)
    watching: Watching = field(init=False)
    market_view: KeptMarket = field(init=False)
    _network: NetworkView | None = field(default=None)

    def __post_init__(self) -> None:
        self.followed = FollowedJobs(self.market.histories)
        market = self.market
        self.market_view = KeptMarket(shown_market, market.new_reading, market.clock)
        self.arrivals = Arrivals(market.wakeup)
        self.watching = Watching(market.new_reading, self.arrivals, clock=market.clock)

    async def close(self) -> None:
        """End streams and waits: a shutdown waits for all answers."""
        await self.watching.close()
        await self.arrivals.close()

    async def network(self) -> NetworkView:
        """The chain, as it is seen from here; parameters and the like at most ten seconds old."""
        now, chain = self.market.clock(), self.market.chain
        if self._network is None or now - self._network.clock > NETWORK_MILLIS:
            self._network = await chain.network(self.version, now)
        head = await chain.head()
        return self._network.model_copy(update={"block": head.number, "clock": now})


def api_of(request: Request) -> Api:
    """The application's `Api`."""
    found = request.app.state.api
    assert isinstance(found, Api)
    return found


# Dependencies are coroutines though they wait for nothing: FastAPI calls others in a thread.
async def _api(request: Request) -> Api:
    return api_of(request)


ApiDep = Annotated[Api, Depends(_api)]


async def work_of(api: ApiDep, request: Request) -> UnitOfWork:
    """A unit of work of this request's own: a GET cannot change anything."""
    return api.market.new_reading() if request.method in SAFE else api.market.new_work()


WorkDep = Annotated[UnitOfWork, Depends(work_of)]


# ------------------------------------------------------------------------------------------ bodies


async def read_bytes(request: Request, limit: int = MAX_JSON_BYTES) -> bytes:
    """The whole body.

    Raises:
        TooLarge: more than `limit` bytes, announced or sent.
        Malformed: the client went away.
        BadSignature: the request is signed, with another body.
    """
    data = bytearray()
    async for chunk in stream(request, limit):
        data += chunk
    return bytes(data)


def announced_bytes(request: Request, limit: int) -> int | None:
    """How long the body is said to be; None if it is not said.

    Raises:
        TooLarge: more than `limit` bytes.
    """
    announced = request.headers.get("content-length")
    if announced is None:
        return None
    if not announced.isdecimal() or len(announced) > _DIGITS or int(announced) > limit:
        raise errors.TooLarge(f"a body of {announced:.40} bytes, at most {limit}", limit=limit)
    return int(announced)


async def stream(request: Request, limit: int) -> AsyncIterator[bytes]:
    """The body in pieces; errors as `read_bytes`."""
    announced_bytes(request, limit)
    call = signed_call(request.headers.get("authorization", ""))
    size, hasher = 0, BlobHasher()
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise errors.TooLarge(f"a body of more than {limit} bytes", size=size, limit=limit)
            if call is not None:
                hasher.update(chunk)
            yield chunk
    except ClientDisconnect as error:
        raise errors.Malformed("the body ended early") from error
    if call is not None and hasher.digest() != call.body:
        raise errors.BadSignature("the body is not the one that was signed")


def body(cls: type[B]) -> Any:
    """A dependency that yields the request's JSON body as a `cls`."""

    async def read(request: Request) -> B:
        request.state.body = await read_bytes(request)
        return read_body(cls, request.state.body)

    return Depends(read)


# ------------------------------------------------------------------------------------------- names


def parse_bytes(text: str, length: int) -> bytes:
    """The bytes of a name in hex; raises as `parse_name`."""
    return parse_name(text, f"name of {length} bytes", length)


def job_of(text: str) -> JobId:
    """The job's id that somebody typed; raises as `parse_bytes`."""
    return JobId(parse_bytes(text, 32))


def _hex(length: int) -> Any:
    """How a name of so many bytes is parsed and documented: in hex, 0x or not."""
    pattern = f"^(0[xX])?[0-9a-fA-F]{{{2 * length}}}$"
    return (
        BeforeValidator(partial(parse_bytes, length=length)),
        WithJsonSchema({"type": "string", "pattern": pattern}),
    )


_NAME = Path(description="32 bytes in hex")
DigestPath = Annotated[Digest, *_hex(32), _NAME]
JobPath = Annotated[JobId, *_hex(32), _NAME]
PeerPath = Annotated[PeerId, *_hex(32), _NAME]
AccountPath = Annotated[Address, *_hex(20), Path(description="20 bytes in hex")]
JobQuery = Annotated[JobId | None, *_hex(32), Query(description="of this job alone")]


# ------------------------------------------------------------------------------------------- hosts


_HOST = HTTPBearer(
    scheme_name="host",
    description="The credential of a host: `python -m tallystick.host.credential NAME` makes it.",
    auto_error=False,
)


def host_of(request: Request, api: Api) -> str | None:
    """Name of the host whose credential the request shows; None if it shows none that holds."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer":
        return None
    return host_credential(token.strip(), api.host_token)


async def _host_caller(
    request: Request, api: ApiDep, shown: Annotated[object, Depends(_HOST)]
) -> str:
    found = host_of(request, api)
    if found is None:
        raise errors.Forbidden(
            "hosts show a credential of this market: Authorization: Bearer tsh_..."
        )
    return found


HostDep = Annotated[str, Depends(_host_caller)]
"""The name of the host that calls. Raises Forbidden: no credential of this market."""


# ----------------------------------------------------------------------------------------- answers


IMMUTABLE = {"Cache-Control": "public, max-age=31536000, immutable"}
"""Of what is the same for everybody, for ever."""


def answer(view: Body, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A body as the response."""
    return Response(view.json_bytes(), status, headers, media_type="application/json")


KeyDep = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=128,
        pattern="^[ -~]+$",
        description="a name of the caller's own for this request, where money moves",
    ),
]


@dataclass(frozen=True)
class Keyed:
    """A request with the key that its caller gave it; its answer is stored with what it did.

    Another account's keys are others, whatever they are called: whose key it is, its route says.
    """

    route: str
    key: str
    request: Digest
    now: UnixMillis

    async def find(self, owner: Address, work: UnitOfWork) -> Response | None:
        """The stored answer.

        Raises:
            Conflict: the key was used for another request.
        """
        known = await work[IdempotencyRow].get(self.route, owner, self.key)
        if known is None:
            return None
        if known.request != self.request:
            raise errors.Conflict("this Idempotency-Key was used for another request", key=self.key)
        return Response(known.response, known.status, media_type="application/json")

    async def store(self, owner: Address, response: Response, work: UnitOfWork) -> None:
        """Keep the answer."""
        said = self.request, response.status_code, bytes(response.body), self.now
        await work[IdempotencyRow].add(IdempotencyRow(self.route, owner, self.key, *said))


async def keyed(request: Request, api: ApiDep, key: KeyDep) -> Keyed:
    """The `Keyed` of a request; its body, if it has one, is read by an earlier parameter."""
    sent: bytes = getattr(request.state, "body", b"")
    name = digest("request", request.url.path.encode() + b"\0" + sent)
    return Keyed(f"{request.method} {request.url.path}", key, name, api.market.clock())


KeyedDep = Annotated[Keyed, Depends(keyed)]


async def carry_out(
    this: Keyed,
    owner: Address,
    work: UnitOfWork,
    make: Callable[[UnitOfWork], Awaitable[Response]],
) -> Response:
    """Answer `this` from storage, or make the answer and store it in the same transaction."""
    try:
        async with work:
            if (known := await this.find(owner, work)) is not None:
                return known
            response = await make(work)
            await this.store(owner, response, work)
    except errors.TallystickError:
        # Whatever refuses may be what the same request did, which came at the same time and first.
        async with work:
            if (known := await this.find(owner, work)) is not None:
                return known
        raise
    return response
