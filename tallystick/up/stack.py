"""A market's services on one machine, from the first folder to the last child.

    async with Services(UpSettings(home=folder), only=("postgres", "redis")) as services:
        services.addresses.database

Leaving the block stops everything in order. If this process is killed instead, the kernel ends its
children, the guard their children, and the next start sweeps what carries the old id. Call it from
the thread that lives as long as the process: a child dies with the thread that started it.
"""

import asyncio
import contextlib
import os
import platform
import random
import secrets
import sys
from collections.abc import Collection, Coroutine
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from contracts.terms.errors import InvariantBroken, Unavailable, WrongConfiguration
from tallystick.up.assembly import assemble, embedded
from tallystick.up.data_folder import (
    DataFolder,
    disk_full,
    open_data_folder,
    read_json,
    reported,
    take_lock,
    write_json,
)
from tallystick.up.ports import assign, remembered
from tallystick.up.processes import RUN_ID, UP_ID, Identity, identify, kill_all, leftovers, scrubbed
from tallystick.up.services import Addresses, Parts, environment_of, table
from tallystick.up.settings import UpSettings
from tallystick.up.spec import ServiceSpec, after, subset
from tallystick.up.supervisor import Report, Supervisor

T = TypeVar("T")

_WATCH_SECONDS = 1.0
_STOP_SHARE = 4  # stop at a quarter of the free disk that a start wants


def silent(line: str) -> None:
    """The report that nobody reads."""


class Services:
    """The services of one data folder; `async with` starts and stops them."""

    def __init__(
        self,
        settings: UpSettings,
        *,
        api_port: int | None = None,
        only: Collection[str] = (),
        report: Report = silent,
    ) -> None:
        self._settings = settings
        self._api_port = api_port
        self._only = tuple(only)
        self._report = report
        self.up_id = secrets.token_hex(16)
        self.run_id = os.environ.get(RUN_ID) or secrets.token_hex(16)
        self._folder: DataFolder | None = None
        self._lock: int | None = None
        self._parts: Parts | None = None
        self._supervisor: Supervisor | None = None
        self._pipe: tuple[int, int] | None = None
        self._watchers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Services":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -------------------------------------------------------------------------------- looking

    @property
    def folder(self) -> DataFolder:
        """The data folder; there once `start` was called."""
        return _there(self._folder)

    @property
    def addresses(self) -> Addresses:
        """Where the services are reached; there once `start` was called."""
        return _there(self._parts).addresses

    @property
    def ports(self) -> dict[str, int]:
        """Service name to port, of those that this machine runs itself."""
        return dict(_there(self._parts).ports)

    def identity(self, name: str) -> Identity:
        """See `Supervisor.identity`."""
        return _there(self._supervisor).identity(name)

    async def wait_failed(self) -> None:
        """Wait until the services cannot be kept running, and raise why."""
        await asyncio.shield(_there(self._supervisor).failed)

    def hurry(self) -> None:
        """Do not wait for services that are slow to stop."""
        if self._supervisor:
            self._supervisor.hurry()

    # ------------------------------------------------------------------------------- starting

    async def start(self) -> None:
        """Start everything; on any failure nothing is left running.

        Raises:
            Conflict: another `up` has the folder (data: `pid`), or the API's port is taken.
            Refused: the folder or this machine is not fit; the message says what to do.
            Unavailable: a service does not become ready, or the disk is full.
        """
        if platform.system() != "Linux":
            raise WrongConfiguration("`up` needs Linux: /proc, death signals and pidfds")
        names = embedded(self._settings, self._only)
        self._folder = open_data_folder(self._settings.home)
        self._lock = take_lock(self._folder)
        try:
            with reported(self._folder.home):
                await self._start(names)
        except BaseException:
            await self.stop()
            raise

    async def _start(self, names: frozenset[str]) -> None:
        folder = self.folder
        await self._sweep(str(read_json(folder.up).get("up_id")))
        self._note("starting")
        if folder.free_bytes() < self._settings.min_free_bytes:
            raise disk_full(folder.home)
        before = remembered(folder)
        chance = random.SystemRandom()
        ports = assign(names, api_port=self._api_port, before=before, generator=chance)
        write_json(folder.ports, {**before, **ports})
        environment = self._environment()
        self._parts = assemble(
            self._settings, folder, names=names, ports=ports, environment=environment
        )
        write_json(folder.environment, environment_of(self._parts), durable=False)
        await self._supervise(self._parts, environment)
        self._note("ready")

    async def _supervise(self, parts: Parts, environment: dict[str, str]) -> None:
        items = table(parts)
        chosen = subset(items, self._only) if self._only else items
        self._pipe = os.pipe()
        self._supervisor = Supervisor(
            after(chosen, self._guard(self._pipe[0])),
            folder=self.folder,
            environment=environment,
            up_id=self.up_id,
            report=self._report,
        )
        self._watch(self._watch_disk())
        if parts.anvil:
            self._watch(parts.anvil.keep_copies())
        await self._supervisor.start()

    def _environment(self) -> dict[str, str]:
        root = Path(_there(find_spec("tallystick")).origin or "").parents[1]
        inherited = scrubbed(dict(os.environ))
        paths = [str(root), *filter(None, [inherited.get("PYTHONPATH")])]
        return {
            **inherited,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
            UP_ID: self.up_id,
            RUN_ID: self.run_id,
        }

    def _guard(self, reading_end: int) -> ServiceSpec:
        return ServiceSpec(
            name="guard",
            argv=(
                sys.executable,
                "-m",
                "tallystick.up.guard",
                self.up_id,
                str(self.folder.postgres),
            ),
            stdin=reading_end,
            dies_with_us=False,
            grace=1.0,
        )

    # ------------------------------------------------------------------------------- watching

    def _watch(self, work: Coroutine[None, None, None]) -> None:
        self._watchers.append(asyncio.create_task(_there(self._supervisor).guarded(work)))

    async def _watch_disk(self) -> None:
        """Fail before the disk is so full that Postgres or the chain cannot write.

        Raises:
            Unavailable: less than a quarter of the free space that a start wants is left.
        """
        while self.folder.free_bytes() >= self._settings.min_free_bytes // _STOP_SHARE:
            await asyncio.sleep(_WATCH_SECONDS)
        raise disk_full(self.folder.home)

    # ------------------------------------------------------------------------------- stopping

    async def stop(self) -> None:
        """Stop everything in order; safe to repeat."""
        if self._supervisor:
            await self._supervisor.stop()
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        self._watchers.clear()
        try:
            await self._sweep(self.up_id)
        finally:
            self._close()

    def _close(self) -> None:
        for descriptor in self._pipe or ():
            os.close(descriptor)
        self._pipe = None
        if self._lock is not None:
            with contextlib.suppress(OSError):  # a full disk must not keep the lock
                self.folder.environment.unlink(missing_ok=True)
                self._note("stopped")
            os.close(self._lock)
            self._lock = None

    async def _sweep(self, up_id: str) -> None:
        """Kill what a start of `up` left behind.

        Raises:
            Unavailable: something would not die.
        """
        if self._lock is None:
            return
        postgres = self.folder.postgres
        remaining = await asyncio.to_thread(
            kill_all, lambda: leftovers(up_id, postgres_folder=postgres)
        )
        if remaining:
            pids = ", ".join(str(identity.pid) for identity in remaining)
            raise Unavailable(f"processes of an earlier `up` would not die: {pids}")

    def _note(self, state: str) -> None:
        own = _there(identify(os.getpid()))
        write_json(
            self.folder.up,
            {
                "pid": own.pid,
                "start_time": own.start_time,
                "up_id": self.up_id,
                "run_id": self.run_id,
                "state": state,
            },
            durable=False,
        )


def _there(value: T | None) -> T:
    if value is None:
        raise InvariantBroken("asked of services that were not started, or do not run here")
    return value
