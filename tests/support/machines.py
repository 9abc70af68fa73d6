"""A market and providers on machines of their own, which are network namespaces."""

import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tallystick.up.processes import RUN_ID, environment_of, running
from tests.support.anvil import FAST_TIMES
from tests.support.namespaces import Site, network
from tests.support.patience import patience
from tests.support.stack import ROOT

MARKET = "market"
HINT = "on another machine:"


@dataclass
class Machines:
    """Sites, and what runs there."""

    folder: Path
    sites: dict[str, Site]
    run_id: str = field(default_factory=lambda: secrets.token_hex(16))
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self, name: str) -> dict[str, str]:
        """What a person has there."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("TALLYSTICK_")}
        return kept | {
            "PYTHONPATH": str(ROOT),
            "TALLYSTICK_HOME": str(self.folder / name),
            "TALLYSTICK_ESCROW_TIMES": json.dumps(FAST_TIMES),
            RUN_ID: self.run_id,
        }

    def start(self, name: str, *words: str) -> Path:
        """Start a command at a site; its log."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            self.processes.append(
                subprocess.Popen(
                    self.sites[name].command(sys.executable, "-m", *words),
                    env=self.environment(name),
                    stdout=output,
                    stderr=output,
                )
            )
        return log

    def run(self, name: str, *words: str, within: float = 150) -> str:
        """What a command says at a site; `within` so many seconds."""
        done = subprocess.run(
            self.sites[name].command(sys.executable, "-m", *words),
            env=self.environment(name), capture_output=True, text=True, timeout=patience(within),
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.told()}"
        return done.stdout

    def said(self, log: Path, words: str) -> str:
        """The line of a log with these words, once it is there."""
        ends = time.monotonic() + patience(90)
        while True:
            for line in log.read_text(errors="replace").splitlines():
                if words in line:
                    return line
            assert time.monotonic() < ends, f"no {words!r}: {self.told()}"
            time.sleep(0.05)

    def told(self) -> str:
        """The ends of all logs."""
        logs = sorted(self.folder.glob("**/*.log"))
        return "\n".join(f"--- {log}\n{log.read_text(errors='replace')[-800:]}" for log in logs)

    def start_market(self, *providers: str) -> str:
        """Start `up` at its site, and providers by the command that it prints; its URL."""
        own = self.sites[MARKET].address
        log = self.start(MARKET, "tallystick", "up", "--listen", own)
        command = shlex.split(self.said(log, HINT).partition(HINT)[2])
        url = f"http://{own}:8420"
        assert ["--market", url] == command[3:5]
        for name in providers:
            home = ("--home", str(self.folder / name))
            self.said(self.start(name, *command, *home), "offering")
        return url

    def claimed(self, market: str, names: Collection[str]) -> list[int]:
        """What each of these providers has been paid, in base units."""
        verb = ("tallystick", "provider", "earnings", "--market", market, "-o", "json")
        told = (self.run(name, *verb, "--home", str(self.folder / name)) for name in names)
        return [int(json.loads(each)["parts"]["claimed"]) for each in told]

    def coordinators(self) -> list[Path]:
        """Logs of the coordinators that the market has hosted."""
        return [*(self.folder / MARKET / "logs").glob("coordinator-*.log")]

    def stop(self) -> None:
        """End all in order; nothing of it is left."""
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            process.wait(patience(60))
        left = [one for one in running() if environment_of(one.pid).get(RUN_ID) == self.run_id]
        assert not left


@contextmanager
def machines(folder: Path, *names: str, behind_routers: Collection[str] = ()) -> Iterator[Machines]:
    """Sites with these names, and what is started there; none of it is left."""
    with network(*names, behind_routers=behind_routers) as sites:
        there = Machines(folder, dict(sites))
        try:
            yield there
        finally:
            there.stop()


def events(log: Path, name: str) -> list[dict[str, Any]]:
    """The lines of a log about an event."""
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")
    ]
    return [line for line in lines if line["event"] == name]
