"""The market's HTTP API from a program: `call` a route, typed errors, nothing retried twice.

Every problem that the API reports is raised as the class of `contracts.terms.errors` that its
`code` names; no answer at all and a bug of the market are `ServiceUnreachable`, an answer that no
market gives is `Malformed`, a very long one `TooLarge`. `retrying` repeats what is safe to repeat.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeVar

import httpx

from contracts.http_clients import async_client, by_proxy
from contracts.keys.wallet import Wallet
from contracts.terms import errors
from contracts.terms.digest import blob_digest
from contracts.terms.encoding import Value, decode, encode
from contracts.terms.history import Kept, decode_kept
from contracts.terms.ids import Digest, JobId
from market.bodies.base import (
    API_PREFIX,
    MAX_BLOB_BYTES,
    MAX_BUNDLE_BYTES,
    Body,
    Part,
    Problem,
    Stored,
    read_body,
)
from market.bodies.events import (
    HEARTBEAT_SECONDS,
    JobEvent,
    MarketEvent,
    read_job_event,
    read_market_event,
)
from market.bodies.routes import (
    GET_ANCHOR_CHAIN,
    GET_JOB_EVENTS,
    GET_MARKET_EVENTS,
    GET_MESSAGES,
    GET_NETWORK,
    POST_MESSAGES,
    Route,
)
from tallystick.sdk.http import (
    PAUSES,
    MarketClock,
    Numbered,
    Signer,
    followed,
    http_url,
    measured,
    pieces,
    signed_by,
    written,
)
from verification.draws.anchor_chains import AnchorChainPage, decode_page

V = TypeVar("V")
P = TypeVar("P", bound=Part)
R = TypeVar("R")
_Reader = Callable[[httpx.Response], Awaitable[bytes]]

MAX_ANSWER_BYTES = 260 * 2**20  # of any list
_MAX_PAUSE = 60.0  # seconds, whatever a market asks for
_STREAM_TIMEOUT = httpx.Timeout(30.0, read=3.0 * HEARTBEAT_SECONDS)
_FOR_A_WHILE = (httpx.codes.PROXY_AUTHENTICATION_REQUIRED, httpx.codes.TOO_MANY_REQUESTS)
"""Refusals that end, also where a proxy before the market says so."""


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
        token: The credential of a host. What is public needs none.
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
        self._http = async_client(
            self.url,
            base_url=self.url + API_PREFIX,
            timeout=timeout.total_seconds(),
            headers={"authorization": f"Bearer {token}"} if token else {},
            transport=transport,
        )
        self._clock: MarketClock | None = None  # asked for when something is to be signed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def call(
        self,
        route: Route[V],
        body: Body | None = None,
        *,
        key: str = "",
        by: Signer | None = None,
        **named: Any,
    ) -> V:
        """What an operation of the market answers.

        Args:
            route: Of `market.bodies.routes`.
            body: What it takes.
            key: The Idempotency-Key, where money moves.
            by: Signs the request.
            named: The names in the route's path; all others go into the query, None does not.
        """
        assert isinstance(body, Body) == (route.takes is not None), route
        content, headers = b"", {"idempotency-key": key} if key else {}
        if body is not None:
            content, headers["content-type"] = body.json_bytes(), "application/json"
        return await self._call(route, content, headers, by, **named)

    async def whole(self, route: Route[P], *, most: int | None = None, **named: Any) -> P:
        """A list with the rows of its parts, `most` of them; all else is as in the first part."""
        parts: list[P] = []
        rows: tuple[Any, ...] = ()
        got = rows
        while not parts or (got and parts[-1].behind() and (most is None or len(rows) < most)):
            if most is not None:
                named["limit"] = min(most - len(rows), route.answers.most)
            if parts:
                named[parts[-1].place] = parts[-1].behind()
            parts.append(await self.call(route, **named))
            got = getattr(parts[-1], parts[-1].rows)  # none: a market that never comes to an end
            rows += got
        changed: dict[str, object] = {parts[0].rows: rows}
        if "next" in route.answers.model_fields:
            changed["next"] = parts[-1].behind()
        return parts[0].model_copy(update=changed)

    # -------------------------------------------------------------------------------- messages

    async def post_messages(self, job: JobId, items: Sequence[bytes], *, by: Wallet) -> Stored:
        """Store kept items (`history.encode_kept`) in their order; known ones are skipped.

        Raises:
            Forbidden: `by` is not the job's coordinator.
        """
        values: list[Value] = list(items)
        headers = {"content-type": POST_MESSAGES.media}
        return await self._call(POST_MESSAGES, encode(values), headers, by, job=job)

    async def messages(self, job: JobId, *, after: int = 0) -> AsyncIterator[tuple[int, Kept]]:
        """All kept items of a job beyond `after` with their sequence numbers, in order."""
        while page := await self._messages_page(job, after):
            for sequence, data in page:
                yield sequence, decode_kept(data)
                after = sequence

    def job_events(
        self, job: JobId, *, after: int = 0, patience: timedelta | None = None
    ) -> AsyncGenerator[Numbered[JobEvent], None]:
        """What happens to a job, each event once and in order, until nothing more is to come.

        Interruptions are nobody's concern, unless the market is away for longer than `patience`.
        """
        stream = partial(self._stream, GET_JOB_EVENTS.target(job=job))
        return followed(stream, read_job_event, after=after, patience=patience)

    def market_events(
        self, *, after: int, patience: timedelta | None = None
    ) -> AsyncGenerator[Numbered[MarketEvent], None]:
        """What happens in the market behind event `after`, for ever; as `job_events`."""
        stream = partial(self._stream, GET_MARKET_EVENTS.path)
        return followed(stream, read_market_event, after=after, patience=patience)

    async def anchor_chain(self, job: JobId, *, first: int | None = None) -> AnchorChainPage:
        """Batches of the job's anchorer, to be checked against the chain; one page."""
        page = await self.call(GET_ANCHOR_CHAIN, job=job, first=first)
        try:
            return decode_page(page)
        except errors.AuditMismatch as error:
            raise errors.Malformed(
                f"anchor chain: the market answered with none: {error.message}"
            ) from error

    async def _messages_page(self, job: JobId, after: int) -> list[tuple[int, bytes]]:
        items = await self.call(GET_MESSAGES, job=job, after=after)
        match decode(items, max_bytes=64 * 2**20):
            case list(page):
                return [_numbered(item) for item in page]
        raise errors.Malformed("messages: the market answered with something else than a list")

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
            raise errors.WrongBytes(f"blob {name.hex()}", expected=name, actual=actual)
        return data

    async def put_file(self, path: Path, *, by: Signer, name: Digest | None = None) -> Digest:
        """Store a file as `put_blob` does, a piece at a time.

        Raises:
            TooLarge: no market takes as much, or the account has no room for it.
            Refused: it should be `name`, and is not.
        """
        size, found = await asyncio.to_thread(measured, path)
        if name not in (None, found):
            raise errors.Refused(f"{path} was altered since it was prepared: delete {path.parent}")
        name = found
        if size > (most := MAX_BUNDLE_BYTES):
            raise errors.TooLarge(
                f"{path} has {size} bytes, a blob at most {most}", size=size, limit=most
            )
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

    # ---------------------------------------------------------------------------------- wiring

    async def _call(
        self,
        route: Route[V],
        content: bytes,
        headers: dict[str, str],
        by: Signer | None,
        **named: Any,
    ) -> V:
        method, path = route.method, route.target(**named)
        if by is not None:
            answer = await self._send_signed(method, path, content, by, headers=headers)
        else:
            answer = await self._send(method, path, content=content, headers=headers)
        return _read_answer(answer, route.answers)

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
            except errors.Expired:
                if is_last:
                    raise
        raise AssertionError("one of the two tries has ended this")

    async def _market_clock(self, *, again: bool) -> MarketClock:
        if self._clock is None or again:
            self._clock = MarketClock.of(await self.call(GET_NETWORK))
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
                    raise errors.Malformed(
                        f"{url} does not answer as a market does: no stream of events"
                    )
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
            raise errors.Malformed(f"{self.url} is no URL of a market: {error}") from error
        except httpx.HTTPError as error:
            raise _no_answer(self.url, error) from error


def _no_answer(url: str, error: httpx.HTTPError) -> errors.ServiceUnreachable:
    # What a proxy says of itself, as `407 Proxy Authentication Required`, is worth repeating.
    reason = str(error) if isinstance(error, httpx.ProxyError) else type(error).__name__
    return errors.ServiceUnreachable(
        f"no market answers at {url}{by_proxy(url)} ({reason}); is it up?"
    )


async def _read(response: httpx.Response, *, most: int | None = None) -> bytes:
    content, most = bytearray(), MAX_ANSWER_BYTES if most is None else most
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > most:
            raise errors.TooLarge(
                f"{response.request.url}: an answer of more than {most} bytes",
                size=len(content),
                limit=most,
            )
    return bytes(content)


async def retrying(
    attempt: Callable[[], Awaitable[R]],
    *,
    patience: timedelta | None = None,
    on_error: Callable[[errors.Unavailable], None] = lambda error: None,
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
        except errors.Unavailable as error:
            pause = max(PAUSES[min(tries, len(PAUSES) - 1)], _wanted_pause(error))
            if ends is not None and loop.time() + pause > ends:
                raise
            on_error(error)
            await asyncio.sleep(pause)
            tries += 1


def _wanted_pause(error: errors.Unavailable) -> float:
    """Seconds that a market asked to be left alone, and no longer than we believe."""
    text = str(error.data.get("retry_after", ""))
    return min(float(text), _MAX_PAUSE) if text.isdecimal() and len(text) < 10 else 0.0


def _check(answer: _Answer) -> None:
    if answer.is_success:
        return
    try:
        problem = read_body(Problem, answer.content)
    except errors.Malformed:
        way = by_proxy(answer.url)
        if answer.status >= 500 or answer.status in _FOR_A_WHILE:  # of a proxy before it
            raise errors.ServiceUnreachable(f"{answer.url}: HTTP {answer.status}{way}") from None
        raise errors.Malformed(
            f"{answer.url} does not answer as a market does (HTTP {answer.status}{way})"
        ) from None
    cls = errors.error_class(problem.code)
    if issubclass(cls, errors.InvariantBroken):  # the market's bug, not this program's
        raise errors.ServiceUnreachable(f"{answer.url}: {problem.detail}")
    error = cls(problem.detail)
    if answer.retry_after:
        error.data["retry_after"] = answer.retry_after
    error.data |= problem.data  # names are the market's, so they are no arguments here
    raise error


def _read_answer(answer: _Answer, cls: type[V]) -> V:
    if cls is bytes:
        return answer.content  # type: ignore[return-value]
    if not issubclass(cls, Body):
        return None  # type: ignore[return-value]
    try:
        return read_body(cls, answer.content)
    except errors.Malformed as error:
        raise errors.Malformed(
            f"{answer.url} does not answer as a market does{by_proxy(answer.url)} ({error.message})"
        ) from error


def _numbered(item: Value) -> tuple[int, bytes]:
    match item:
        case [int(sequence), bytes(data)]:
            return sequence, data
    raise errors.Malformed("messages: an entry is no pair of a number and an item")
