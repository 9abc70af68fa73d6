"""Whom a trainer talks to: its coordinator, wherever that is now, and the peers."""

import asyncio
from collections.abc import Awaitable, Callable

from contracts.terms.errors import Unavailable
from contracts.terms.ids import SessionKey
from training.transport import calls
from training.transport.port import Session, Transport
from training.transport.reach import Reach
from training.transport.wire import KIB

Locate = Callable[[], Awaitable[str | None]]

DIAL = 10.0  # seconds
ANSWER_BYTES = 16 * KIB  # of a peer: digests, never tensors


class Sessions:
    """Live sessions by key, made when they are wanted."""

    def __init__(self, transport: Transport, coordinator: SessionKey, locate: Locate) -> None:
        self._transport, self._coordinator, self._locate = transport, coordinator, locate
        self._reach = Reach(transport, coordinator, calls.RELAYED)
        self._dialling = asyncio.Lock()

    async def to_coordinator(self) -> Session:
        """The session to the coordinator; several callers dial it once.

        Raises:
            Unavailable: it cannot be reached now.
        """
        async with self._dialling:
            session = self._transport.sessions.get(self._coordinator)
            if session is not None and not session.closed:
                return session
            address = await self._locate()
            if address is None:
                raise Unavailable("the coordinator's address is not known yet")
            return await self._transport.dial(self._coordinator, [address], deadline=DIAL)

    def is_open(self, key: SessionKey) -> bool:
        """Whether there is a session to a peer already."""
        session = self._transport.sessions.get(key)
        return session is not None and not session.closed

    async def to(self, key: SessionKey, address: str) -> Session:
        """A session to a peer, through the coordinator where it cannot be dialled.

        Raises:
            Unavailable: it cannot be reached. Refused: it does not take us.
        """
        return await self._reach.session(key, address, answer_bytes=ANSWER_BYTES)
