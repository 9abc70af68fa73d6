"""The demo's own processes: started, killed, found by what they carry in their environment.

Every process carries the run's id, so that nothing is left behind without being seen.
"""

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from contracts.terms.errors import DeadlineExceeded, Refused
from tallystick.demo.cast import LAZY, Machine
from tallystick.gym.registry import MODULE
from tallystick.provider.folder import write_durably
from tallystick.provider.measured import Measured
from tallystick.up import child as children
from tallystick.up.child import Child
from tallystick.up.forkserver import Forkserver, launch
from tallystick.up.processes import RUN_ID, SERVICE, Identity, environment_of, running, send

ROOT = Path(__file__).resolve().parents[2]  # of the checkout, or site-packages
SLOWDOWN, BEHAVIOUR = "TALLYSTICK_PEER_SLOWDOWN", "TALLYSTICK_PEER_BEHAVIOUR"
HOOKS = "TALLYSTICK_HOOKS"
DRAIN, STOP_SECONDS = "1s", 20.0
WORK_PATIENCE = 60.0  # seconds in which a peer that works gets a unit


@dataclass
class Crowd:
    """Children of the demo, and everything else that carries the run's id."""

    home: Path
    laziness: str  # what the lazy one plays
    market: str = ""  # URL of the API, once it is up
    run_id: str = field(default_factory=lambda: secrets.token_hex(16))
    _children: dict[str, Child] = field(default_factory=dict)
    _forgiven: set[str] = field(default_factory=set)  # were killed on purpose
    _forkserver: Forkserver | None = None
    _probed: Measured | None = None

    def start_provider(self, machine: Machine) -> Child:
        """Start a provider's agent, or start it again."""
        name, folder = machine.name, self.home / machine.name
        self._write_probe(folder, machine.slowdown)
        played = {HOOKS: MODULE, SLOWDOWN: str(machine.slowdown)}
        if machine.behaviour:
            played |= {BEHAVIOUR: self.laziness if machine == LAZY else machine.behaviour}
        return self._start_agent(name, "--ask", machine.ask, variables=played)

    def start_auditor(self, name: str) -> Child:
        """Start the agent of a provider that only audits, from outside."""
        self._write_probe(self.home / name, 1.0)
        return self._start_agent(name, "--audit", variables={})

    def _start_agent(self, name: str, *options: str, variables: dict[str, str]) -> Child:
        argv = (
            *(sys.executable, "-m", "tallystick", "provider", "start", *options),
            *("--market", self.market, "--home", str(self.home / name)),
            *("--drain", DRAIN),  # a demo that is stopped is stopped as a whole
        )
        assert self._forkserver is not None
        environment = self._environment(name) | variables
        child = self._forkserver.start(argv, environment=environment, log=self._log(name))
        self._forgiven.discard(name)
        self._children[name] = child
        return child

    def start(self, name: str, module: str, *options: str, folder: Path | None = None) -> Child:
        """Start `python -m module` with the run's marks; its log is `logs/<name>.log`."""
        child = children.start(
            (sys.executable, "-m", module, *options),
            environment=self._environment(name),
            log=self._log(name),
            working_folder=folder,
        )
        self._children[name] = child
        return child

    def _environment(self, name: str) -> dict[str, str]:
        return {
            **os.environ,
            RUN_ID: self.run_id,
            SERVICE: name,
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(ROOT),
        }

    def _log(self, name: str) -> Path:
        return self.home / "logs" / f"{name}.log"

    async def start_forkserver(self) -> None:
        """Have agents and their peers forked from one process.

        Raises:
            ServiceUnreachable: it does not start.
        """
        name = "forkserver"
        environment = self._environment(name)
        self._forkserver = await launch(environment=environment, log=self._log(name))

    @property
    def device_class(self) -> str:
        """Of all providers; after `probe`."""
        assert self._probed is not None
        return self._probed.device_class

    async def probe(self) -> None:
        """Measure this machine once for all providers.

        Raises:
            Refused: it cannot compute.
        """
        said = await self.run("probe", "tallystick.provider.probe")
        self._probed = Measured.model_validate_json(said.splitlines()[-1])

    def _write_probe(self, folder: Path, slowdown: float) -> None:
        """Tell an agent what its machine can do, so that it does not measure for itself."""
        assert self._probed is not None
        speed = int(self._probed.flops_per_second / slowdown)
        found = self._probed.model_copy(update={"flops_per_second": speed})
        folder.mkdir(mode=0o700, exist_ok=True)
        write_durably(folder / "probe.json", found.model_dump_json().encode())

    async def run(self, name: str, module: str, *options: str) -> str:
        """Run `python -m module` to its end; its last words.

        Raises:
            Refused: it failed.
        """
        child = self.start(name, module, *options)
        await child.ended.wait()
        if child.exit_status != 0:
            raise Refused(f"{name} {child.how_it_ended()}: {child.last_words()}")
        return child.last_words().strip()

    async def until_it_works(self, name: str) -> None:
        """Wait until a provider's peer has a unit in its gradient that no seal holds yet.

        Raises:
            DeadlineExceeded: it gets no unit.
        """
        logs = {log: log.stat().st_size for log in (self.home / name / "logs").glob("peer-*.log")}
        ends = time.monotonic() + WORK_PATIENCE
        while time.monotonic() < ends:
            for log, seen in logs.items():
                with log.open("rb") as file:
                    file.seek(seen)
                    if b'"event": "item_done"' in file.read():
                        return
            await asyncio.sleep(0.01)
        raise DeadlineExceeded(f"{name} got no unit within {WORK_PATIENCE:.0f} s")

    async def until_said(self, name: str, words: str) -> None:
        """Wait until a child has said something.

        Raises:
            DeadlineExceeded: it does not. Refused: it ended.
        """
        ends = time.monotonic() + WORK_PATIENCE
        while not self._children[name].has_said(words):
            self.check_alive()
            if time.monotonic() > ends:
                raise DeadlineExceeded(f"{name} did not say {words!r} within {WORK_PATIENCE:.0f} s")
            await asyncio.sleep(0.1)

    async def stop_one(self, name: str) -> None:
        """Stop a child in order."""
        await _stop(self._children[name])

    def processes_of(self, name: str) -> list[Identity]:
        """A child and whatever it started."""
        return [one for one in self._ours() if environment_of(one.pid).get(SERVICE) == name]

    def kill(self, name: str, processes: Iterable[Identity]) -> None:
        """SIGKILL a child and whatever it started, as a power cut would."""
        self._forgiven.add(name)
        for one in processes:
            send(one, signal.SIGKILL)

    def check_alive(self) -> None:
        """Raises Refused when a child ended that should not have."""
        for name, child in self._children.items():
            if name not in self._forgiven and child.ended.is_set() and child.exit_status != 0:
                raise Refused(f"{name} {child.how_it_ended()}: {child.last_words()}")

    async def stop(self) -> None:
        """Stop all children; the forkserver stays until all that it has forked has stopped."""
        await asyncio.gather(*(_stop(child) for child in self._children.values()))

    async def stop_forkserver(self) -> None:
        """Stop it, and with it whatever it has forked."""
        if self._forkserver is not None:
            await self._forkserver.stop()

    def _ours(self) -> Iterator[Identity]:
        for one in running():
            if one.pid != os.getpid() and environment_of(one.pid).get(RUN_ID) == self.run_id:
                yield one

    def leftovers(self) -> list[int]:
        """Pids that carry this run's id, without the caller's."""
        return [one.pid for one in self._ours()]


async def _stop(child: Child) -> None:
    if not child.ended.is_set():
        await child.stop(signal.SIGTERM, grace=STOP_SECONDS)
