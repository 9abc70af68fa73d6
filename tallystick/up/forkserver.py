"""How are many local processes of ours ready within seconds? Forked from one that has imported.

Importing torch, gRPC and web3 costs two seconds of a core a process. `forking.py` does it once;
whoever has the name of its socket gets children that are like executed ones in all that others
see: words and environment in /proc, a session of their own, a log, an exit status, and death with
the process that asked. Only `python -m module ...` can be forked. What Python itself reads at its
start (PYTHONPATH and the like) is the server's.
"""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from contracts.terms.errors import ServiceUnreachable
from tallystick.up import child as children
from tallystick.up.child import Child, Start, appended
from tallystick.up.processes import send
from tallystick.up.socket_path import reachable

PRELOADED = (
    "tallystick.cli.main",
    "tallystick.cli.provider",
    "tallystick.host.folder",
    "tallystick.provider.agent",
    "tallystick.provider.blobs",
    "tallystick.sdk.process",
    "training.coordinator.run",
    "training.stages.exact",
    "training.strategies.every_step.strategy",
    "training.transport.calls",
    "training.transport.grpc_adapter",
    "training.worker.run",
)
"""What agents, peers and coordinators import, but for themselves: they are `__main__`."""

ROOM = "TALLYSTICK_ROOM"
_ROOM_BYTES = 64 * 1024  # of environment that a child can show; what is beyond is set, not shown
_ANSWER_SECONDS = 10.0
_ANSWER_BYTES = 4096


class Forkserver:
    """A forkserver that runs; holds nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self, argv: tuple[str, ...], *, environment: Mapping[str, str], log: Path) -> Child:
        """Fork a process that runs `argv`, which is this Python and `-m module ...`.

        Raises:
            ServiceUnreachable: the server does not answer, or cannot fork.
            OSError: the log cannot be written.
        """
        request = {"argv": argv, "environment": dict(environment), "folder": str(Path.cwd())}
        with appended(log) as output:
            log_start = output.tell()
            connection = self._connected()
            try:
                socket.send_fds(connection, [json.dumps(request).encode()], [output.fileno()])
                answer = json.loads(connection.recv(_ANSWER_BYTES) or b"{}")
                if "pid" not in answer:
                    raise ServiceUnreachable(f"forkserver: {answer.get('error', 'no answer')}")
                return _Forked(connection, answer["pid"], log, log_start)
            except OSError as error:
                connection.close()
                raise ServiceUnreachable(f"forkserver {self._path}: {error}") from error
            except ServiceUnreachable:
                connection.close()
                raise

    def _connected(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(_ANSWER_SECONDS)
        try:
            with reachable(self._path) as name:
                connection.connect(name)
        except OSError as error:
            connection.close()
            raise ServiceUnreachable(f"forkserver {self._path}: {error}") from error
        return connection


class _Forked(Child):
    """A child of the forkserver; our end of the connection is its life line."""

    def __init__(self, connection: socket.socket, pid: int, log: Path, log_start: int) -> None:
        super().__init__(pid, log, log_start)
        self._status: int | None = None
        self._connection = connection
        connection.setblocking(False)
        asyncio.get_running_loop().add_reader(connection, self._heard)

    @property
    def exit_status(self) -> int | None:
        """See `Child.exit_status`."""
        return self._status

    def send(self, number: signal.Signals) -> None:
        """See `Child.send`."""
        if self._status is None:
            send(self.identity, number)

    def _heard(self) -> None:
        try:
            said = self._connection.recv(_ANSWER_BYTES)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        # A server that is gone takes its children with it: they have its death signal.
        self._status = json.loads(said)["status"] if said else -signal.SIGKILL
        asyncio.get_running_loop().remove_reader(self._connection)
        self._connection.close()  # only now the server reaps it, and its pid may be another's
        self.ended.set()


def starter(path: Path | None) -> Start:
    """How to start local processes of ours: from the forkserver at `path`, else by executing.

    A forkserver that does not answer is not needed: they are executed then.
    """
    if path is None:
        return children.start
    forkserver = Forkserver(path)

    def start(argv: tuple[str, ...], *, environment: Mapping[str, str], log: Path) -> Child:
        try:
            return forkserver.start(argv, environment=environment, log=log)
        except ServiceUnreachable:
            return children.start(argv, environment=environment, log=log)

    return start


async def launch(
    path: Path,
    *,
    environment: Mapping[str, str],
    log: Path,
    preloaded: Sequence[str] = PRELOADED,
) -> Child:
    """Start a forkserver that listens at `path`, and wait until it does; it dies with us.

    Raises:
        ServiceUnreachable: it ended; with its last words.
    """
    one_thread = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    child = children.start(
        (sys.executable, "-m", "tallystick.up.forking", str(path), *preloaded, " " * 4096),
        environment={**environment, **one_thread, ROOM: "x" * _ROOM_BYTES},
        log=log,
    )
    ended = asyncio.create_task(child.ended.wait())
    try:
        while not child.has_said("ready\n"):
            done, _ = await asyncio.wait([ended], timeout=0.02)
            if done:
                raise ServiceUnreachable(f"forkserver {child.how_it_ended()}: {child.last_words()}")
    finally:
        ended.cancel()
    return child
