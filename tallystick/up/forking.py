"""The forkserver: `python -m tallystick.up.forking SOCKET MODULE...`. Imports, listens, forks.

One request a connection: a packet of JSON (argv, environment, folder) with the descriptor of the
log. The answer is the child's pid, later its exit status. The child is killed when the other end
is closed, and reaped only then, so its pid is nobody else's while anybody may signal it; it has the
death signal of this process. Only this user connects: the socket is 0600 in a folder 0700, and the
peer's credentials are looked at.

A process with threads must not be forked: the server has one (checked before it listens; BLAS and
OpenMP are told so by its environment), and starts none. A child begins with default signals,
without the server's descriptors, in a session of its own; how many threads it computes with is its
own affair.
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
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from tallystick.up.launch import die_with
from tallystick.up.socket_path import reachable

REQUEST_BYTES = 2**20
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


@dataclass(frozen=True)
class Request:
    """What a child is to become."""

    argv: list[str]
    environment: dict[str, str]
    folder: str
    log: int  # descriptor

    @property
    def module(self) -> str:
        """The module to run."""
        return self.argv[2]


@dataclass
class _Life:
    """A connection and the child that it is for."""

    connection: socket.socket
    pid: int = 0
    descriptor: int = -1  # pidfd, while the child lives


class Server:
    """Forks on request, until it is killed."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._lives: list[_Life] = []

    def serve(self) -> Request:
        """Returns in a child, with what it is to become; the server itself never returns."""
        while True:
            for key, _ in self._selector.select():
                life = key.data
                if self._selector.get_map().get(key.fileobj) is not key:
                    pass  # closed for another event of this round
                elif life is None:
                    self._accept()
                elif key.fileobj == life.descriptor:
                    self._tell_status(life)
                elif not life.pid:
                    if request := self._serve_one(life):
                        return request
                else:  # whoever asked for it is gone, or has heard of its end
                    self._end(life)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        pid_user_group = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("3i", pid_user_group)[1] != os.getuid():
            connection.close()
            return
        connection.setblocking(False)
        life = _Life(connection)
        self._lives.append(life)
        self._selector.register(connection, selectors.EVENT_READ, life)

    def _serve_one(self, life: _Life) -> Request | None:
        """Fork for a connection; the request in the child, None in the server."""
        try:
            data, logs, _, _ = socket.recv_fds(life.connection, REQUEST_BYTES, 1)
        except OSError:
            data, logs = b"", []
        try:
            request = _request(data, logs)
            parent = os.getpid()
            life.pid = os.fork()
        except (ValueError, OSError) as error:
            _close(logs)
            _say(life.connection, {"error": str(error)})
            self._forget(life)
            return None
        if not life.pid:
            die_with(parent, signal.SIGKILL)
            self._leave_behind()
            return request
        _close(logs)
        life.descriptor = os.pidfd_open(life.pid)
        self._selector.register(life.descriptor, selectors.EVENT_READ, life)
        _say(life.connection, {"pid": life.pid})
        return None

    def _tell_status(self, life: _Life) -> None:
        ended = os.waitid(os.P_PIDFD, life.descriptor, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        exited = ended.si_code == os.CLD_EXITED
        self._selector.unregister(life.descriptor)
        os.close(life.descriptor)
        life.descriptor = -1
        _say(life.connection, {"status": ended.si_status if exited else -ended.si_status})

    def _end(self, life: _Life) -> None:
        if life.descriptor >= 0:
            signal.pidfd_send_signal(life.descriptor, signal.SIGKILL)
            self._selector.unregister(life.descriptor)
            os.close(life.descriptor)
            life.descriptor = -1
        os.waitpid(life.pid, 0)
        self._forget(life)

    def _forget(self, life: _Life) -> None:
        self._selector.unregister(life.connection)
        life.connection.close()
        self._lives.remove(life)

    def _leave_behind(self) -> None:
        """Close, in a child, everything that is the server's."""
        self._selector.close()
        self._listener.close()
        for life in self._lives:
            life.connection.close()
            if life.descriptor >= 0:
                os.close(life.descriptor)


def _request(data: bytes, logs: list[int]) -> Request:
    match json.loads(data), logs:
        case {"argv": list(argv), "environment": dict(environment), "folder": str(folder)}, [log]:
            if argv[:2] == [sys.executable, "-m"] and len(argv) > 2:
                return Request(argv, environment, folder, log)
            raise ValueError("only this Python with `-m module` can be forked")
    raise ValueError("a request is a JSON object with argv, environment and folder, and a log")


def _say(connection: socket.socket, answer: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # it is gone: its end of the connection says so next
        connection.send(json.dumps(answer).encode())


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


# ------------------------------------------------------------------------------- in the child


def become(request: Request) -> None:
    """Be what was asked for, as if executed: session, signals, output, folder, environment."""
    os.setsid()
    os.umask(0o077)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(request.log, 1)
    os.dup2(request.log, 2)
    os.close(nothing)
    os.close(request.log)
    os.chdir(request.folder)
    for name in list(os.environ):
        del os.environ[name]
    os.environ.update(request.environment)
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


def _listening(path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.umask(0o177)
    with reachable(path) as name:
        listener.bind(name)
    os.umask(0o077)
    listener.listen(128)
    return listener


def main(arguments: list[str]) -> int:
    """Serve; in a child, run its module, which ends by itself."""
    words = [word for word in arguments if word.strip()]  # the rest is room for a child's words
    if not words:
        print("usage: python -m tallystick.up.forking SOCKET MODULE...", file=sys.stderr)
        return 2
    for name in words[1:]:
        importlib.import_module(name)
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        print(f"{threads} threads after the imports: cannot be forked safely", file=sys.stderr)
        return 1
    listener = _listening(Path(words[0]))
    gc.collect()
    gc.freeze()  # so that a child's collections do not copy all pages
    print("ready", flush=True)
    request = Server(listener).serve()
    become(request)
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
