"""Postgres, Redis and S3 for tests of the market: real servers, in a folder of the test run."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import redis

from tallystick.up.postgres import find_binaries
from tallystick.up.redis_server import find_binary
from tests.support.patience import patience

START_SECONDS = 30.0


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class PostgresServer:
    """A running cluster; `new_database` is an empty database of its own."""

    process: "subprocess.Popen[bytes]"
    port: int
    password: str

    def url(self, database: str = "postgres") -> str:
        """Address of one of its databases."""
        return f"postgresql://tallystick:{self.password}@127.0.0.1:{self.port}/{database}"

    def new_database(self, template: str = "template0") -> str:
        """Address of a new database, which is a copy of `template`: an empty one."""
        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'.encode())
        return self.url(name)


@contextlib.contextmanager
def run_postgres(folder: Path) -> Iterator[PostgresServer]:
    """A cluster in `folder`, stopped at the end."""
    binaries, prefix = find_binaries(), _not_root()
    folder.mkdir(parents=True, exist_ok=True)
    password_file, data = folder / "password", folder / "data"
    password_file.write_text(secrets.token_hex(16))
    environment = _environment(folder)
    subprocess.run(
        [
            *prefix,
            *(str(binaries / "initdb"), "-D", str(data), "-U", "tallystick", "--no-locale"),
            *("-A", "scram-sha-256", "-E", "UTF8", "--no-sync", f"--pwfile={password_file}"),
        ],
        check=True,
        env=environment,
        capture_output=True,
    )
    port = free_port()
    options = {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": "",
        "shared_buffers": "32MB",
        "max_connections": "200",
        "fsync": "off",
    }
    argv = [*prefix, str(binaries / "postgres"), "-D", str(data)]
    for name, value in options.items():
        argv += ["-c", f"{name}={value}"]
    with _running(argv, environment, folder / "log", signal.SIGINT) as process:
        server = PostgresServer(process, port, password_file.read_text())
        _wait(lambda: psycopg.connect(server.url(), connect_timeout=2).close(), psycopg.Error)
        yield server


@contextlib.contextmanager
def run_redis(folder: Path) -> Iterator[str]:
    """The URL of a Redis that keeps nothing, stopped at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    argv = [str(find_binary()), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    url = f"redis://127.0.0.1:{port}/0"
    with _running(argv, _environment(folder), folder / "log", signal.SIGTERM):
        client = redis.Redis.from_url(url)
        _wait(client.ping, redis.exceptions.RedisError)
        client.close()
        yield url


@contextlib.contextmanager
def run_s3(folder: Path) -> Iterator[str]:
    """The URL of an S3 server (moto, in memory), stopped at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    argv = [sys.executable, "-m", "moto.server", "-p", str(port)]
    with _running(argv, _environment(folder), folder / "log", signal.SIGTERM):
        _wait(lambda: urllib.request.urlopen(url).close(), OSError)
        yield url


def _not_root() -> list[str]:
    if os.getuid() != 0:
        return []
    return ["unshare", "-U", "--map-user=65534", "--map-group=65534", "--"]


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "HOME": str(folder), "LC_ALL": "C"}


@contextlib.contextmanager
def _running(
    argv: list[str], environment: dict[str, str], log: Path, stop: signal.Signals
) -> Iterator["subprocess.Popen[bytes]"]:
    with open(log, "ab") as output:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
    try:
        yield process
    finally:
        process.send_signal(stop)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(attempt: Callable[[], object], error: type[Exception]) -> None:
    deadline = time.monotonic() + patience(START_SECONDS)
    while True:
        try:
            attempt()
            return
        except error:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
