"""`tallystick up` as a process of its own, as a user would start it, in a hostile environment.

The environment has proxies and PG* variables that lead nowhere; the data folder's path has spaces
and more than 130 characters.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tallystick.up.processes import Identity, leftovers
from tests.support.patience import patience

SERVERS = "postgres,redis,anvil,gateway"
UNPRIVILEGED = ("unshare", "-U", "--map-user=4242", "--map-group=4242", "--", "env", "-u", "HOME")
"""As a user of a container whom nobody named: no entry in /etc/passwd, no home."""
HOSTILE = {
    "HTTP_PROXY": "http://127.0.0.1:9",
    "http_proxy": "http://127.0.0.1:9",
    "ALL_PROXY": "socks5://127.0.0.1:9",
    "PGPORT": "1",
    "PGHOST": "nowhere.invalid",
    "PGSERVICE": "nothing",
    "PGOPTIONS": "-c nonsense=1",
}


def long_home(folder: Path) -> Path:
    """A data folder whose path has spaces and over 130 characters."""
    return folder / ("a folder with spaces " * 4).strip() / ("and a long name " * 4).strip()


def eventually(holds: Callable[[], bool], *, within: float, what: str) -> None:
    """Wait until `holds` is true; AssertionError naming `what` when it never is."""
    deadline = time.monotonic() + patience(within)
    while not holds():
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        time.sleep(0.02)


class Up:
    """A running `tallystick up`."""

    def __init__(
        self,
        home: Path,
        *,
        prefix: tuple[str, ...] = (),
        only: str = SERVERS,
        arguments: tuple[str, ...] = (),
        **variables: str,
    ) -> None:
        self.home = home
        self.output = home.parent / f"{home.name}.output"
        self.output.parent.mkdir(parents=True, exist_ok=True)
        argv = [*prefix, sys.executable, "-m", "tallystick", "up", "--home", str(home)]
        argv += ["--only", only] if only else []
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*argv, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **HOSTILE, "PYTHONUNBUFFERED": "1", **variables},
            )

    def said(self) -> str:
        """What it has printed until now."""
        return self.output.read_text("utf-8", "replace")

    def wait_ready(self) -> "Up":
        """Wait for the line that names the addresses."""

        def is_ready() -> bool:
            assert self.process.poll() is None, self.said()
            return "ready in" in self.said()

        eventually(is_ready, within=90, what="up is ready")
        return self

    def wait_ended(self) -> int:
        """Its exit code."""
        return self.process.wait(patience(60))

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait_ended()

    def run_file(self, name: str) -> dict[str, object]:
        """A JSON file of the run folder."""
        found = json.loads((self.home / "run" / name).read_text())
        assert isinstance(found, dict)
        return found

    def variable(self, name: str) -> str:
        """A variable that the services were given."""
        return str(self.run_file("environment.json")[f"TALLYSTICK_{name}"])

    def service(self, name: str) -> dict[str, object]:
        """A service's row of processes.json."""
        rows = self.run_file("processes.json")["services"]
        assert isinstance(rows, list)
        return next(row for row in rows if row["name"] == name)

    def is_back(self, before: dict[str, object]) -> bool:
        """Whether the successor of a service that was killed is ready, on the same port."""
        now = self.service(str(before["name"]))
        is_another = now["pid"] != before["pid"] and now["port"] == before["port"]
        return is_another and now["state"] == "ready"

    def alive(self) -> list[Identity]:
        """Living processes of this run, the database's included."""
        up_id = str(self.run_file("up.json")["up_id"])
        return leftovers(up_id, postgres_folder=self.home / "postgres")

    def close(self) -> None:
        """End it, however it is."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(patience(30))
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextmanager
def running(home: Path, **options: str | tuple[str, ...]) -> Iterator[Up]:
    """A ready `up` with the four servers."""
    up = Up(home, **options)  # type: ignore[arg-type]  # options pass through as they are
    try:
        yield up.wait_ready()
    finally:
        up.close()
