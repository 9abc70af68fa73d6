"""A session to a member, by the shortest way there is.

In this order: a session that is open, whoever dialled it; a dial to the member's address; a call
through the coordinator, with whom every member keeps a session (`relay`). A dial that takes long is
not waited for where the coordinator can pass a call on, which also knows at once who is gone. An
address that did not answer is left alone for a while, so that a peer behind NAT costs one failed
dial, not one a call.
"""

import asyncio
import time
from collections.abc import Callable

from contracts.terms.errors import PeerUnreachable, Unavailable
from contracts.terms.ids import SessionKey
from training.transport.port import Deadline, Session, Transport
from training.transport.relay import RelayedSession
from training.transport.wire import MAX_ANSWER_BYTES, Methods

DIAL = 10.0  # seconds
DETOUR = 1.0  # seconds of a dial after which calls go through the coordinator meanwhile
DIAL_AGAIN = 30.0  # seconds after which a silent address is tried again


class Reach:
    """Finds sessions for one transport; several callers who want the same peer dial it once."""

    def __init__(
        self,
        transport: Transport,
        relay: SessionKey,
        relayed: Methods,
        *,
        dial: Deadline = DIAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`relay` is whose session passes calls on, `relayed` the methods that it takes."""
        self._transport, self._relay, self._relayed = transport, relay, relayed
        self._dial, self._clock = dial, clock
        self._silent: dict[tuple[SessionKey, str], float] = {}  # since when
        self._dialling: dict[SessionKey, asyncio.Task[Session]] = {}

    async def session(
        self, node: SessionKey, address: str, *, answer_bytes: int = MAX_ANSWER_BYTES
    ) -> Session:
        """A session to `node`, which may be a relayed one.

        Args:
            node: Whom to reach.
            address: Where it may be dialled; empty if nowhere.
            answer_bytes: How long an answer may be, see `RelayedSession`.

        Raises:
            Unavailable: no way leads there now. Refused: the peer said why it will not talk.
        """
        if session := self._open(node):
            return session
        dialling = self._begin_dial(node, address)
        while not dialling.done():
            through = self._open(self._relay)
            await asyncio.wait({dialling}, timeout=DETOUR)
            if not dialling.done() and through and not through.closed:
                return RelayedSession(node, through, self._relayed, answer_bytes=answer_bytes)
        try:
            return dialling.result()
        except Unavailable:
            if through := self._open(self._relay):
                return RelayedSession(node, through, self._relayed, answer_bytes=answer_bytes)
            raise

    def _begin_dial(self, node: SessionKey, address: str) -> asyncio.Task[Session]:
        """The dial to a peer that is under way, for all who want it; it outlives who gives up."""
        if (known := self._dialling.get(node)) is not None:
            return known
        task = asyncio.ensure_future(self._dialled(node, address))
        self._dialling[node] = task
        task.add_done_callback(lambda ended: self._end_dial(node, ended))
        return task

    def _end_dial(self, node: SessionKey, ended: asyncio.Task[Session]) -> None:
        del self._dialling[node]
        if not ended.cancelled():
            ended.exception()  # whoever waits hears it; perhaps nobody does any more

    def _open(self, node: SessionKey) -> Session | None:
        session = self._transport.sessions.get(node)
        return None if session is None or session.closed else session

    async def _dialled(self, node: SessionKey, address: str) -> Session:
        since = self._silent.get((node, address))
        if not address or (since is not None and self._clock() < since + DIAL_AGAIN):
            raise PeerUnreachable("no address of this peer answers", node=node.hex())
        try:
            session = await self._transport.dial(node, [address], deadline=self._dial)
        except Unavailable:
            self._silent[node, address] = self._clock()
            raise
        self._silent.pop((node, address), None)
        return session
