"""What the rest of `training` asks of a transport: calls between named peers, both ways.

A node is a session key, never an address; an address is only a hint of where to find it. One
session is one stream: whoever dialled, both sides may call over it (docs/architecture.md 3). A call
carries an encoded header and raw tensor buffers; it returns a reply or raises one error of
`contracts.terms.errors`:

* Refused      the other side said no, or a bound or an address is wrong: do not repeat
* Unavailable  `PeerUnreachable` (session or peer gone), `DeadlineExceeded`, `Overloaded`
* Misbehaved   the other side accuses somebody; its `data["peer"]` says who reported it

Nothing is repeated here: reconnecting and retrying belong to the caller, who knows what is safe to
repeat. Units: bytes, seconds where a float stands for a deadline.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeAlias

from typing_extensions import Buffer

from contracts.terms.errors import TallystickError
from contracts.terms.ids import SessionKey

Deadline: TypeAlias = float  # seconds from now

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """What one session may hold at once, so that no peer can fill another's memory.

    The three `max_...` of calls and bytes are announced to the other side, whose calls then wait
    (back-pressure); a peer that ignores them is answered `Overloaded`.
    """

    max_calls: int = 64
    """Calls of the other side in flight here."""
    max_call_bytes: int = 256 * MIB
    """Bytes of those calls together, headers included; no single call may be larger."""
    max_reply_bytes: int = 256 * MIB
    """Bytes of replies that may be half arrived here; no single reply may be larger."""
    max_unsent_bytes: int = 256 * MIB
    """Bytes of replies that wait here until the other side reads; no single one may be larger."""
    max_large_replies: int = 8
    """Replies of methods that may answer megabytes, made or waiting at once; further calls wait."""
    max_waiting: int = 1024
    """Own calls that may wait for room; the next one raises `Overloaded` at once."""
    max_sessions_per_peer: int = 4
    """Sessions that one peer may hold open here; the oldest is closed for a fifth."""
    handshake: timedelta = timedelta(seconds=10)
    """Time that an accepted connection has to say who it is."""
    silence: timedelta = timedelta(seconds=3.5)
    """After which a session ends of which nothing was heard; alike on both sides, each of which
    says something five times in that time. A frame that takes longer to arrive is silence too."""


@dataclass
class Traffic:
    """Bytes of frames that a transport has read and written since it was made."""

    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(frozen=True)
class Reply:
    """What a call returns; every tensor is a writable view that the caller now owns."""

    header: bytes
    tensors: tuple[memoryview, ...]


class Handler(Protocol):
    """Answers the calls of other peers; owned by whoever serves."""

    async def handle(
        self, caller: SessionKey, method: str, header: bytes, tensors: tuple[memoryview, ...]
    ) -> tuple[bytes, Sequence[Buffer]]:
        """Answer one call.

        Args:
            caller: The peer that TLS and its leaf have proved.
            method: A name of the registry that the transport was built with.
            header: Encoded request, within the method's bound.
            tensors: Writable buffers that the handler now owns.

        Returns:
            The encoded reply, and buffers that nobody writes to any more: they are read while the
            reply is on its way.

        Raises:
            TallystickError: reaches the caller as the same class, message and data.
            Exception: anything else is logged here and tells the caller nothing.
            CancelledError: its deadline passed, or the caller gave up or is gone.
        """


class Session(Protocol):
    """A live, authenticated stream to one peer."""

    @property
    def node(self) -> SessionKey:
        """Whom this session reaches."""

    @property
    def closed(self) -> bool:
        """Whether every further call would raise `PeerUnreachable`."""

    async def call(
        self,
        method: str,
        header: bytes,
        tensors: Sequence[Buffer] = (),
        *,
        deadline: Deadline,
        answer_bytes: int | None = None,
    ) -> Reply:
        """Ask the peer; waits while the peer has no room.

        Args:
            method: A name of the registry.
            header: Encoded request.
            tensors: Contiguous buffers, read until the call ends and not to be written till then.
            deadline: Span for all of it; it travels, so the peer stops too.
            answer_bytes: A longer answer is refused, and not stored; None: the method's bound.

        Raises:
            NotFound: no such method. TooLarge: over the method's or the peer's bounds, or these.
            PeerUnreachable, DeadlineExceeded, Overloaded: see the module.
            TallystickError: what the peer's handler raised.
        """

    async def close(self) -> None:
        """End the session; calls in flight raise `PeerUnreachable` on both sides."""

    async def wait_closed(self) -> TallystickError:
        """Wait for the end; returns why it ended."""


SessionCallback: TypeAlias = Callable[[Session], None]


def ignore_session(_session: Session) -> None:
    """The default of `on_disconnect`."""


class Transport(Protocol):
    """Sessions to and from other peers under one session key."""

    @property
    def key(self) -> SessionKey:
        """Who we are to others."""

    @property
    def sessions(self) -> Mapping[SessionKey, Session]:
        """The newest live session of every connected peer, dialled or accepted."""

    async def serve(
        self,
        handler: Handler,
        *,
        listen: str | None = None,
        on_disconnect: SessionCallback = ignore_session,
    ) -> str | None:
        """Answer calls with `handler`, on dialled sessions too; listen if an address is given.

        Call it before `dial`: until then calls of others are answered `Unavailable`. The
        callback runs in the event loop for every session that ends; it must not raise.

        Args:
            listen: `host:port`, port 0 for any free one; None to be reached only by own dials.

        Returns:
            The bound address, or None.

        Raises:
            WrongConfiguration: the address is taken or malformed, or this already serves.
        """

    async def dial(self, node: SessionKey, hints: Sequence[str], *, deadline: Deadline) -> Session:
        """A new session to exactly `node`, tried at each hint in order.

        Raises:
            PeerUnreachable: at no hint is a peer that proves this key and accepts ours.
            DeadlineExceeded: none answered in time.
            Refused: the peer is there and said why it will not talk (clock, version, membership).
        """

    def set_members(self, keys: Iterable[SessionKey]) -> None:
        """Whom to accept from now on; accepted sessions of anybody else are closed."""

    async def close(self) -> None:
        """Close all sessions and stop listening; safe to repeat."""
