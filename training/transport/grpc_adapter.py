"""Transport over gRPC aio with mutual TLS: one bidirectional stream a session.

gRPC brings connections, TLS, HTTP/2 flow control and keep-alive; frames, bounds and errors are
`endpoint`'s and `session`'s. Messages pass through unserialised. A killed process is noticed when
its socket closes, silence by the session's beats; a connection that no session is on any more ends
by keep-alive, within twice `KEEPALIVE`.

gRPC does not survive a fork: nothing starts before the first `serve` or `dial`, and both refuse to
run in another process than the one that used gRPC first. Proxies of the environment are ignored.
"""

import asyncio
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import grpc
import grpc.aio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from contracts.terms.errors import (
    BadSignature,
    InvariantBroken,
    PeerUnreachable,
    WrongConfiguration,
)
from contracts.terms.ids import SessionKey
from training.transport.endpoint import Clock, Endpoint, system_clock
from training.transport.framing import MAX_FRAME_BYTES
from training.transport.port import (
    MIB,
    Deadline,
    Handler,
    Limits,
    Session,
    SessionCallback,
    ignore_session,
)
from training.transport.tls import (
    SERVER_NAME,
    Leaf,
    issue_leaf,
    proven_key,
    session_key_of,
    trust_anchor,
)
from training.transport.wire import Methods

SERVICE, STREAM = "tallystick.Peer", "Session"
KEEPALIVE = timedelta(seconds=5)
_KEEPALIVE_MS = round(KEEPALIVE.total_seconds() * 1000)

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
    ("grpc.max_send_message_length", MAX_FRAME_BYTES),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),  # also TCP_USER_TIMEOUT, set by gRPC
    ("grpc.http2.ping_timeout_ms", _KEEPALIVE_MS),  # 60 s by default, whatever the line above says
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_frame_size", 2 * MIB),
]
_CLIENT_OPTIONS = [
    *_OPTIONS,
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a dial shares no connection, nor another's backoff
    ("grpc.ssl_target_name_override", SERVER_NAME),
]
_SERVER_OPTIONS = [
    *_OPTIONS,
    ("grpc.so_reuseport", 0),  # a taken port is an error, not shared
    ("grpc.max_concurrent_streams", 4),  # of one connection
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
]

_LAST_STREAMS = 1.0  # seconds for streams that begin while we close
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]{1,253}):(?P<port>[0-9]{1,5})")
_pid_of_grpc: int | None = None


def _guard_fork() -> None:
    global _pid_of_grpc
    if _pid_of_grpc is None:
        _pid_of_grpc = os.getpid()
    if _pid_of_grpc != os.getpid():
        raise InvariantBroken("gRPC was used before this process was forked")


class _ServerTrust:
    """Our leaf and the anchors of our members, as gRPC asks for them at each new connection."""

    def __init__(self, own: SessionKey, leaf: Leaf, members: Iterable[SessionKey]) -> None:
        self._own, self._leaf = own, leaf
        self._changed: deque[grpc.ServerCertificateConfiguration] = deque(maxlen=1)
        self.credentials = grpc.dynamic_ssl_server_credentials(
            self._configuration(members),
            self._fetch,  # type: ignore[arg-type]  # stubs forget that None means unchanged
            require_client_authentication=True,
        )

    def set_members(self, members: Iterable[SessionKey]) -> None:
        """Trust these keys on connections that begin from now on."""
        self._changed.append(self._configuration(members))

    def _configuration(self, members: Iterable[SessionKey]) -> grpc.ServerCertificateConfiguration:
        # Our own anchor keeps the list from being empty, which would mean "trust the system's".
        anchors = b"".join(trust_anchor(key) for key in sorted({self._own, *members}))
        pair = (self._leaf.private_key, self._leaf.certificate)
        return grpc.ssl_server_certificate_configuration([pair], anchors)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Called from gRPC's threads; None means unchanged."""
        try:
            return self._changed.pop()
        except IndexError:
            return None


class _AcceptedPipe:
    """The server's end of a stream."""

    def __init__(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        self._context = context

    async def read(self) -> bytes | None:
        try:
            frame = await self._context.read()
        except grpc.aio.BaseError as error:
            raise PeerUnreachable(f"the stream broke: {error}") from error
        return frame if isinstance(frame, bytes) else None  # else it is EOF

    async def write(self, frame: bytes) -> None:
        try:
            await self._context.write(frame)
        except grpc.aio.BaseError as error:
            raise PeerUnreachable(f"the stream broke: {error}") from error

    def close(self) -> None:
        """The stream ends when its handler returns."""


class _DialledPipe:
    """The client's end of a stream, which owns its channel."""

    def __init__(
        self,
        target: str,
        credentials: grpc.ChannelCredentials,
        on_closed: Callable[["_DialledPipe"], None],
    ) -> None:
        self._channel = grpc.aio.secure_channel(target, credentials, options=_CLIENT_OPTIONS)
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(
            f"/{SERVICE}/{STREAM}"
        )
        self._call = method()
        self._closing: asyncio.Task[None] | None = None
        self._on_closed = on_closed

    async def read(self) -> bytes | None:
        try:
            frame = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise PeerUnreachable(_reason(error)) from error
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            return None  # the call was cancelled, not this task
        return frame if isinstance(frame, bytes) else None  # else it is EOF

    async def write(self, frame: bytes) -> None:
        try:
            await self._call.write(frame)
        except grpc.aio.AioRpcError as error:
            raise PeerUnreachable(_reason(error)) from error
        except asyncio.InvalidStateError as error:  # it ended before
            raise PeerUnreachable("the stream has ended") from error
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise PeerUnreachable("the stream was cancelled") from None

    def close(self) -> None:
        self._call.cancel()
        if self._closing is None:
            self._closing = asyncio.create_task(self._channel.close())
            self._closing.add_done_callback(lambda _: self._on_closed(self))

    async def closed(self) -> None:
        """Close, and wait until the connection is gone."""
        self.close()
        assert self._closing is not None
        await self._closing


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _reason(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name.lower()}: {error.details()}"


class GrpcTransport(Endpoint):
    """Satisfies `port.Transport`; construct it after any fork, in the loop that uses it."""

    def __init__(
        self,
        private_key: Ed25519PrivateKey,
        methods: Methods,
        *,
        limits: Limits | None = None,
        clock: Clock = system_clock,
        leaf: Leaf | None = None,
    ) -> None:
        """Speak as the holder of `private_key`; `leaf` is another one than its own in tests."""
        super().__init__(session_key_of(private_key), methods, limits=limits, clock=clock)
        self._leaf = leaf or issue_leaf(private_key)
        self._trust: _ServerTrust | None = None
        self._server: grpc.aio.Server | None = None
        self._dialled: set[_DialledPipe] = set()

    async def serve(
        self,
        handler: Handler,
        *,
        listen: str | None = None,
        on_disconnect: SessionCallback = ignore_session,
    ) -> str | None:
        """See `port.Transport.serve`."""
        address = None if listen is None else self._bind(listen)
        self.answer_with(handler, on_disconnect)
        if self._server is not None:
            await self._server.start()
        return address

    async def dial(self, node: SessionKey, hints: Sequence[str], *, deadline: Deadline) -> Session:
        """See `port.Transport.dial`."""
        _guard_fork()
        leaf = self._leaf
        credentials = grpc.ssl_channel_credentials(
            trust_anchor(node), leaf.private_key, leaf.certificate
        )
        return await self.dial_at(node, hints, deadline, lambda hint: self._open(hint, credentials))

    def set_members(self, keys: Iterable[SessionKey]) -> None:
        """See `port.Transport.set_members`."""
        super().set_members(keys)
        if self._trust:
            self._trust.set_members(self._members)

    async def close(self) -> None:
        """See `port.Transport.close`."""
        await super().close()
        for pipe in list(self._dialled):
            await pipe.closed()
        if self._server is not None:
            await self._server.stop(grace=_LAST_STREAMS)
            self._server = None

    def _bind(self, address: str) -> str:
        _guard_fork()
        if not _is_address(address):
            raise WrongConfiguration(f"{address[:100]!r} is no host:port", address=address[:100])
        self._trust = _ServerTrust(self.key, self._leaf, self._members)
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        stream: grpc.RpcMethodHandler[bytes, bytes]
        stream = grpc.stream_stream_rpc_method_handler(self._accept)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {STREAM: stream}),)
        )
        try:
            port = server.add_secure_port(address, self._trust.credentials)
        except RuntimeError as error:
            raise WrongConfiguration(
                f"cannot listen on {address}: is the port taken?", address=address
            ) from error
        self._server = server
        return f"{address.rpartition(':')[0]}:{port}"

    async def _accept(
        self, _requests: object, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        """One stream, from its first frame to its last."""
        await self.accept(_AcceptedPipe(context), lambda: _proven(context))

    def _open(self, hint: str, credentials: grpc.ChannelCredentials) -> _DialledPipe:
        if not _is_address(hint):
            raise PeerUnreachable("no host:port")
        pipe = _DialledPipe(hint, credentials, self._dialled.discard)
        self._dialled.add(pipe)
        return pipe


def _proven(context: grpc.aio.ServicerContext[bytes, bytes]) -> SessionKey:
    """Whom the client's leaf proves (the second trap of `tls`)."""
    [leaf] = context.auth_context().get("x509_pem_cert", [b""])
    if not leaf:
        raise BadSignature("no client certificate")
    return proven_key(leaf)


def _is_address(text: str) -> bool:
    """Whether this is `host:port` and nothing else: other peers send us such texts."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and int(match["port"]) < 2**16
