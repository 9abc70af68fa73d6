"""A market and two providers on three machines of one network, by the lines that are printed.

The machines are network namespaces: nobody reaches another one's loopback. A job of two stages runs
from its order to its claim; its tensors go from peer to peer, not through the coordinator.
"""

import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tallystick.up.processes import RUN_ID, environment_of, running
from tests.support.anvil import FAST_TIMES
from tests.support.namespaces import Site, need_namespaces, network
from tests.support.patience import patience
from tests.support.stack import ROOT

JOB = """\
name: apart
recipe: micro
steps: 50
stages: 2
peers_per_stage: 1
budget: 10
price_ceiling: 2000000
deadline: 1h
checking: off
"""
HINT = "on another machine:"


@dataclass
class Machines:
    """Three sites, and what runs there."""

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

    def run(self, name: str, *words: str) -> str:
        """What a command says at a site."""
        done = subprocess.run(
            self.sites[name].command(sys.executable, "-m", *words),
            env=self.environment(name), capture_output=True, text=True, timeout=patience(150),
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

    def stop(self) -> None:
        """End all in order; nothing of it is left."""
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            process.wait(patience(60))
        left = [one for one in running() if environment_of(one.pid).get(RUN_ID) == self.run_id]
        assert not left


@contextmanager
def machines(folder: Path, *names: str) -> Iterator[Machines]:
    with network(*names) as sites:
        there = Machines(folder, dict(sites))
        try:
            yield there
        finally:
            there.stop()


def last(log: Path, event: str) -> dict[str, Any]:
    """The last line of a log about an event."""
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")
    ]
    return [line for line in lines if line["event"] == event][-1]


@pytest.mark.nightly
@pytest.mark.root  # network namespaces
@pytest.mark.timeout(400)
def test_listen__three_machines__a_job_from_order_to_claim_and_peers_call_each_other(
    tmp_path: Path,
) -> None:
    need_namespaces()
    (tmp_path / "job.yaml").write_text(JOB)
    with machines(tmp_path, "market", "ann", "bob") as there:
        own = there.sites["market"].address
        market = f"http://{own}:8420"
        log = there.start("market", "tallystick", "up", "--listen", own)
        command = shlex.split(there.said(log, HINT).partition(HINT)[2])
        assert ["--market", market] == command[3:5]
        for name in ("ann", "bob"):
            home = ("--home", str(tmp_path / name))
            there.said(there.start(name, *command, *home), "offering")

        wallet = ("--wallet", str(tmp_path / "poster.json"))
        submit = ("tallystick", "job", "submit", str(tmp_path / "job.yaml"), "--market", market)
        there.run("bob", *submit, *wallet, "--wait", "--yes")
        for name in ("ann", "bob"):
            earned = ("tallystick", "provider", "earnings", "--market", market, "-o", "json")
            found = json.loads(there.run(name, *earned, "--home", str(tmp_path / name)))
            assert int(found["parts"]["claimed"]) > 0

        (coordinator,) = (tmp_path / "market" / "logs").glob("coordinator-*.log")
        relayed = last(coordinator, "relayed")["bytes"]
        peers = [next((tmp_path / name / "logs").glob("peer-*.log")) for name in ("ann", "bob")]
        received = sum(last(peer, "seal_applied")["bytes_in"] for peer in peers)
        assert received > 1_000_000
        assert relayed < received / 100
