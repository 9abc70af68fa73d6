"""A transport whose owner answers some calls otherwise; everything else is as it was."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from typing_extensions import Buffer

from contracts.terms.ids import SessionKey
from training.transport.port import (
    Deadline,
    Handler,
    Session,
    SessionCallback,
    Transport,
    ignore_session,
)

Answer = tuple[bytes, Sequence[Buffer]]
Lie = Callable[[bytes, Answer], Answer]
"""The request's header and the honest answer -> the answer that is given."""


class AnsweringTransport:
    """Satisfies `port.Transport` around another one; `around` makes its handler another one."""

    def __init__(self, inner: Transport, around: Callable[[Handler], Handler]) -> None:
        self._inner, self._around = inner, around

    @property
    def key(self) -> SessionKey:
        """See `port.Transport.key`."""
        return self._inner.key

    @property
    def sessions(self) -> Mapping[SessionKey, Session]:
        """See `port.Transport.sessions`."""
        return self._inner.sessions

    async def serve(
        self,
        handler: Handler,
        *,
        listen: str | None = None,
        on_disconnect: SessionCallback = ignore_session,
    ) -> str | None:
        """See `port.Transport.serve`."""
        return await self._inner.serve(
            self._around(handler),
            listen=listen,
            on_disconnect=on_disconnect,
        )

    async def dial(self, node: SessionKey, hints: Sequence[str], *, deadline: Deadline) -> Session:
        """See `port.Transport.dial`."""
        return await self._inner.dial(node, hints, deadline=deadline)

    def set_members(self, keys: Iterable[SessionKey]) -> None:
        """See `port.Transport.set_members`."""
        self._inner.set_members(keys)

    async def close(self) -> None:
        """See `port.Transport.close`."""
        await self._inner.close()


class LyingTransport(AnsweringTransport):
    """Its owner lies; `lies` by method."""

    def __init__(self, inner: Transport, lies: Mapping[str, Lie]) -> None:
        super().__init__(inner, lambda handler: _Liar(handler, lies))


class _Liar:
    def __init__(self, handler: Handler, lies: Mapping[str, Lie]) -> None:
        self._handler, self._lies = handler, lies

    async def handle(
        self, caller: SessionKey, method: str, header: bytes, tensors: tuple[memoryview, ...]
    ) -> Answer:
        honest = await self._handler.handle(caller, method, header, tensors)
        return self._lies[method](header, honest) if method in self._lies else honest
