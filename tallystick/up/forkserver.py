"""How are many local processes of ours ready within seconds? Forked from one that has imported.

Importing torch, gRPC and web3 costs two seconds of a core a process. `forking.py` does it once;
whoever has the descriptor of its requests gets children that are like executed ones in all that
others see: words and environment in /proc, a session of their own, a log, an exit status, and
death with the process that asked. Only `python -m module ...` can be forked. What Python itself
reads at its start (PYTHONPATH and the like) is the server's. Python's own
(`multiprocessing.forkserver`) does not serve the children of its children.
"""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.terms.errors import ServiceUnreachable
from tallystick.up import child as children
from tallystick.up.child import Child, Start, appended
from tallystick.up.processes import Identity, Ticks

PRELOADED = (
    "tallystick.cli.main",
    "tallystick.cli.provider",
    "tallystick.provider.agent",
    "tallystick.provider.blobs",
    "tallystick.sdk.process",
    "training.stages.exact",
    "training.strategies.every_step.strategy",
    "training.transport.calls",
    "training.transport.grpc_adapter",
    "training.worker.run",
)
"""What agents and peers import, but for themselves: they are `__main__`."""

ROOM = "TALLYSTICK_ROOM"
_ROOM_BYTES = 64 * 1024  # of environment that a child can show; what is beyond is set, not shown
_ANSWER_SECONDS = 10.0
_ANSWER_BYTES = 64


def starter(requests: int | None) -> Start:
    """How to start local processes of ours: asked of a forkserver by a descriptor, or executed."""
    if requests is None:
        return children.start

    def start(argv: tuple[str, ...], *, environment: Mapping[str, str], log: Path) -> Child:
        """Fork `argv`, this Python and `-m module ...`.

        Raises:
            ServiceUnreachable: the server does not answer.
            OSError: the log cannot be written.
        """
        assert argv[:2] == (sys.executable, "-m"), argv
        request = {"argv": argv, "environment": dict(environment), "folder": str(Path.cwd())}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_ANSWER_SECONDS)
        with appended(log) as output:
            log_start = output.tell()
            try:
                with theirs, socket.fromfd(requests, theirs.family, theirs.type) as server:
                    descriptors = [output.fileno(), theirs.fileno(), requests]
                    socket.send_fds(server, [json.dumps(request).encode()], descriptors)
                pid, start_time = map(int, ours.recv(_ANSWER_BYTES).split())
            except (OSError, ValueError) as error:  # an empty answer: it is gone
                ours.close()
                raise ServiceUnreachable(f"forkserver: {error}") from error

        def status() -> int:
            with ours:  # a server that is gone takes its children with it: its death signal
                return int(ours.recv(_ANSWER_BYTES) or -signal.SIGKILL)

        identity = Identity(pid, Ticks(start_time))
        return Child(identity, log, log_start, ends=ours.fileno(), status=status)

    return start


@dataclass(frozen=True)
class Forkserver:
    """A forkserver that runs; it dies with us."""

    child: Child
    requests: socket.socket

    @property
    def start(self) -> Start:
        """Starts what it forks."""
        return starter(self.requests.fileno())

    async def stop(self) -> None:
        """End it, and with it whatever it has forked."""
        self.requests.close()
        await self.child.stop(signal.SIGTERM, grace=5.0)


async def launch(
    *, environment: Mapping[str, str], log: Path, preloaded: Sequence[str] = PRELOADED
) -> Forkserver:
    """Start a forkserver, and wait until it has imported.

    Raises:
        ServiceUnreachable: it ended; with its last words.
    """
    one_thread = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        child = children.start(
            (sys.executable, "-m", "tallystick.up.forking", *preloaded, " " * 4096),
            environment={**environment, **one_thread, ROOM: "x" * _ROOM_BYTES},
            log=log,
            stdin=theirs.fileno(),
        )
    while not child.has_said("ready\n"):
        if child.ended.is_set():
            ours.close()
            raise ServiceUnreachable(f"forkserver {child.how_it_ended()}: {child.last_words()}")
        await asyncio.sleep(0.02)
    return Forkserver(child, ours)
