"""Answering calls with typed functions: decode, ask who may, serve, encode.

One `Dispatcher` a process: each method of its registry gets one function of a `Question` that
returns its answer and tensors. Methods nobody was given for are `NotFound`, so a
process answers exactly what it was built to answer. The registry is `methods`; tests loop over it.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from typing_extensions import Buffer

from contracts.terms.errors import Conflict, InvariantBroken, NotFound
from contracts.terms.ids import JobId, SessionKey
from training.transport.endpoint import Clock, system_clock
from training.transport.wire import (
    PING,
    Answer,
    Answered,
    AnyMethod,
    Method,
    Methods,
    OfJob,
    Ping,
    Pong,
    Question,
    Request,
    check_clock,
)

Serve: TypeAlias = Callable[[Question[Request]], Awaitable[Answered[Answer]]]
Authorize: TypeAlias = Callable[[SessionKey, AnyMethod], None]


class Dispatcher:
    """A `port.Handler` made of one typed function a method."""

    def __init__(
        self,
        *,
        job: JobId | None = None,
        authorize: Authorize = lambda _caller, _method: None,
        clock: Clock = system_clock,
    ) -> None:
        """`authorize` raises `Forbidden` for a caller that may not call a method, by default never.

        Questions about another job than `job`, if there is one, are a `Conflict`.
        """
        self._job, self._authorize, self._clock = job, authorize, clock
        self._served: dict[str, tuple[AnyMethod, Serve[Any, Any]]] = {}
        self.on(PING, self._pong)

    @property
    def methods(self) -> Methods:
        """All methods that are served here."""
        return Methods(method for method, _ in self._served.values())

    def on(self, method: Method[Request, Answer], serve: Serve[Request, Answer]) -> None:
        """Answer `method` with `serve`, which may raise any `TallystickError`."""
        if method.name in self._served:
            raise InvariantBroken(f"{method.name!r} is served twice")
        self._served[method.name] = (method, serve)

    async def handle(
        self, caller: SessionKey, method: str, header: bytes, tensors: tuple[memoryview, ...]
    ) -> tuple[bytes, Sequence[Buffer]]:
        """See `port.Handler.handle`."""
        if method not in self._served:
            raise NotFound(f"{method!r} is not served here")
        spec, serve = self._served[method]
        self._authorize(caller, spec)
        request = spec.request.decoded(header, max_bytes=spec.max_header_bytes)
        if self._job is not None and isinstance(request, OfJob) and request.job != self._job:
            raise Conflict("another job")
        answer, reply = await serve(Question(caller, request, tensors))
        return answer.encoded(), reply

    async def _pong(self, asked: Question[Ping]) -> Answered[Pong]:
        now = self._clock()
        check_clock(asked.request.at, now)
        return Pong(at=now), ()
