"""The forkserver: `python -m tallystick.up.forking MODULE...`. Imports, forks what stdin asks for.

One packet a request: JSON (argv, environment, folder) with three descriptors, which are the log,
one end of a connection for this child, and the requesters' end of stdin, so that a child can ask
for children of its own. The answers on the connection are who the child is, and later its exit
status. The child is killed when the connection's other end is closed, and has the death signal of
this process, which ends when nobody is left who could ask.

A process with threads must not be forked: the server has one (checked after the imports; BLAS and
OpenMP are told so by its environment), and starts none. A child begins in a session of its own,
without the server's descriptors; how many threads it computes with is its own affair.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from tallystick.up.launch import die_with
from tallystick.up.processes import identify_child

FORKSERVER = "TALLYSTICK_FORKSERVER"  # in a child: its descriptor of the requesters' end
_REQUEST_BYTES = 2**20


@dataclass(frozen=True)
class Request:
    """What a child is to become."""

    argv: list[str]  # this Python, -m, a module, its arguments
    environment: dict[str, str]
    folder: str
    log: int  # descriptor
    requests: int  # descriptor


@dataclass(frozen=True)
class _Life:
    """A child, and the connection to who asked for it."""

    pid: int
    descriptor: int  # pidfd
    connection: socket.socket


class Server:
    """Forks on request, until nobody can ask any more."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)
        self._lives: set[_Life] = set()

    def serve(self) -> Request | None:
        """Returns in a child what it is to become, and None in the server, once it is done."""
        while True:
            (key, _), *_ = self._selector.select()  # one at a time: it may close others of a round
            life = key.data
            if life is None:
                data, descriptors, _, _ = socket.recv_fds(self._requests, _REQUEST_BYTES, 3)
                if not data:
                    return None
                if request := self._fork(data, *descriptors):
                    return request
            elif key.fileobj is life.connection:  # whoever asked is gone
                self._selector.unregister(life.connection)
                signal.pidfd_send_signal(life.descriptor, signal.SIGKILL)
            else:
                self._reap(life)

    def _fork(self, data: bytes, log: int, theirs: int, requests: int) -> Request | None:
        """The request in the child, None in the server."""
        connection = socket.socket(fileno=theirs)
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            die_with(parent, signal.SIGKILL)
            self._leave_behind()
            connection.close()
            return Request(**json.loads(data), log=log, requests=requests)
        os.close(log)
        os.close(requests)
        life = _Life(pid, os.pidfd_open(pid), connection)
        self._lives.add(life)
        self._selector.register(life.descriptor, selectors.EVENT_READ, life)
        self._selector.register(connection, selectors.EVENT_READ, life)
        identity = identify_child(pid)
        _say(connection, identity.pid, identity.start_time)
        return None

    def _reap(self, life: _Life) -> None:
        self._selector.unregister(life.descriptor)
        if life.connection in self._selector.get_map():
            self._selector.unregister(life.connection)
        _say(life.connection, os.waitstatus_to_exitcode(os.waitpid(life.pid, 0)[1]))
        self._forget(life)

    def _forget(self, life: _Life) -> None:
        os.close(life.descriptor)
        life.connection.close()
        self._lives.remove(life)

    def _leave_behind(self) -> None:
        """Close, in a child, everything that is the server's."""
        self._selector.close()
        self._requests.close()
        for life in list(self._lives):
            self._forget(life)


def _say(connection: socket.socket, *numbers: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # it is gone: its end of the connection says so too
        connection.send(" ".join(map(str, numbers)).encode())


# ------------------------------------------------------------------------------- in the child


def become(request: Request) -> None:
    """Be what was asked for, as if executed: session, output, folder, environment."""
    os.setsid()
    os.dup2(request.log, 1)
    os.dup2(request.log, 2)
    os.close(request.log)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment, **{FORKSERVER: str(request.requests)})
    _show(request.argv, request.environment)
    sys.argv = request.argv[2:]


def _show(argv: list[str], environment: dict[str, str]) -> None:
    """Put words and environment where /proc shows them, as `exec` would.

    The kernel shows the memory that they stood in when the server was executed, which nothing uses
    any more: `os.environ` was rebuilt on the heap. Our own marks come
    first; what does not fit is left out.
    """
    fields = Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    words_start, words_end, start, end = map(int, fields[45:49])
    ours = sorted(environment, key=lambda name: not name.startswith("TALLYSTICK_"))
    _fill(words_start, words_end - words_start, [os.fsencode(word) for word in argv])
    pairs = [os.fsencode(f"{name}={environment[name]}") for name in ours]
    _fill(start, end - start, pairs)


def _fill(start: int, room: int, texts: list[bytes]) -> None:
    shown = b""
    for text in texts:
        if len(shown) + len(text) + 1 < room:
            shown += text + b"\0"
    ctypes.memmove(start, shown.ljust(room, b"\0"), room)


# ------------------------------------------------------------------------------ entry point


def main(arguments: list[str]) -> int:
    """Serve; in a child, run its module, which ends by itself."""
    for name in arguments:
        if name.strip():  # else it is room for a child's words
            importlib.import_module(name)
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        print(f"{threads} threads after the imports: cannot be forked safely", file=sys.stderr)
        return 1
    gc.collect()
    gc.freeze()  # so that a child's collections do not copy all pages
    requests = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    print("ready", flush=True)
    if request := Server(requests).serve():
        become(request)
        runpy.run_module(request.argv[2], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
