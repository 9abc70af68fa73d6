"""The real processes of one job, started again whenever one is killed.

`ProcessSwarm.run` supervises as host and agent do; a test kills by failpoints, in windows that it
can name, and asserts from the log that the kill landed there.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.governance.job import JobHistory, follow
from contracts.terms.history import decode_kept
from tests.support.corpora import builtin_text, cut_corpus
from tests.support.history import DOMAIN
from tests.support.namespaces import Site
from tests.support.patience import patience
from tests.support.swarm_job import COORDINATOR

Line = dict[str, Any]


@dataclass
class ProcessSwarm:
    """Coordinator and workers in one folder."""

    folder: Path
    workers: Sequence[str] = ("ann",)
    stages: int = 1
    failpoints: dict[str, str] = field(default_factory=dict)
    first: str = ""
    """Failpoint of all workers that strikes only the one who is there first."""
    changed: dict[str, Any] = field(default_factory=dict)
    """Of the job, as `make_papers` takes it."""
    rebalance_every: int | None = None
    """Milliseconds, or as usual."""
    gone: set[str] = field(default_factory=set)
    """Roles that are not started again."""
    sites: Mapping[str, Site] = field(default_factory=dict)
    """Role -> machine that it runs on; none: this one."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """Worker -> what it computes on; none: the CPU."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        corpus = cut_corpus(builtin_text(60_000), shard_bytes=4096)
        corpus.write(self.folder / "blobs")
        about = {
            "manifest": corpus.manifest.digest().hex(),
            "workers": list(self.workers),
            "stages": self.stages,
            "changed": self.changed,
        }
        (self.folder / "job.json").write_text(json.dumps(about))
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self.kills: list[str] = []

    @property
    def roles(self) -> tuple[str, ...]:
        """All processes."""
        return (COORDINATOR, *self.workers)

    async def run(self, *, timeout: float = 110.0) -> None:
        """Run all until they end by themselves; nobody is left behind."""
        try:
            async with asyncio.timeout(patience(timeout)):
                await asyncio.gather(*(self._keep_alive(role) for role in self.roles))
        finally:
            for process in self.processes.values():
                if process.returncode is None:
                    process.kill()
                await process.wait()

    async def _keep_alive(self, role: str) -> None:
        while True:
            process = await self._start(role)
            self.processes[role] = process
            code = await process.wait()
            if code == 0:
                return
            if code != -signal.SIGKILL:
                raise AssertionError(f"{role} ended with {code}: {self._errors(role)}")
            self.kills.append(role)
            if role in self.gone:
                return

    async def _start(self, role: str) -> asyncio.subprocess.Process:
        environment = os.environ | {
            "TALLYSTICK_FAILPOINT": self.failpoints.get(role, ""),
            "TALLYSTICK_HOOKS": "tallystick.gym.hooks",
            "TALLYSTICK_DEVICE": self.devices.get(role, "cpu"),
        }
        if self.first and role in self.workers:
            environment |= {
                "TALLYSTICK_FAILPOINT": self.first,
                "TALLYSTICK_FAILPOINT_MARKS": "first",
            }
        if self.rebalance_every is not None:
            environment["TALLYSTICK_REBALANCE_EVERY"] = str(self.rebalance_every)
        words = [sys.executable, "-m", "tests.support.swarm_process", role, str(self.folder)]
        if (site := self.sites.get(role)) is not None:
            environment["TALLYSTICK_LISTEN"] = f"{site.address}:0"
            words = site.command(*words)
        with (self.folder / f"{role}.stderr").open("ab") as errors:
            return await asyncio.create_subprocess_exec(
                *words,
                env=environment,
                stderr=errors,
            )

    def _errors(self, role: str) -> str:
        return (self.folder / f"{role}.stderr").read_text()[-2000:]

    def send(self, role: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        self.processes[role].send_signal(number)

    def lines(self, role: str, event: str | None = None) -> list[Line]:
        """What a process has told, whole lines only."""
        path = self.folder / "log" / f"{role}.jsonl"
        text = path.read_text() if path.exists() else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]
        return [line for line in lines if event in (None, line["event"])]

    def history(self) -> JobHistory:
        """What the market derives from what it heard; items heard twice count once."""
        history, known = JobHistory(DOMAIN), set()
        for line in (self.folder / "feed.hex").read_text().splitlines(keepends=True):
            if line.endswith("\n") and line not in known:
                known.add(line)
                history = follow(history, decode_kept(bytes.fromhex(line)))
        return history

    def outcome(self) -> dict[str, Any]:
        """What has to be equal with and without kills."""
        record = self.history().record
        assert record is not None
        return {
            "weights": sorted({line["weights_root"] for line in self._last_applied()}),
            "losses": {
                line["step"]: line["loss"] for line in self.lines(COORDINATOR, "seal_stored")
            },
            "roots": {
                (line["stage"], line["step"]): line["state_root"]
                for worker in self.workers
                for line in self.lines(worker, "seal_applied")
            },
            "validation": {
                line["step"]: line["loss"] for line in self.lines(COORDINATOR, "validated")
            },
            "pay": sorted((peer.hex(), flops) for peer, flops in record.pay.resolved.items()),
            "ended": record.ended,
        }

    def _last_applied(self) -> list[Line]:
        return [self.lines(worker, "seal_applied")[-1] for worker in self.workers]
