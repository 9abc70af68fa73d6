"""Keeps services running: started in order of need, restarted when they end, stopped in reverse.

Invariants: a service is started only after all it needs have been ready once; it is restarted on
the same port for ever, with growing pauses; before a restart whatever its last process left
behind (a pool's workers, backends) is killed, so no two generations run at once; when `stop`
returns, no child is alive. Readiness is asked for, never waited for by a fixed time.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from contracts.terms.errors import NotFound, ServiceUnreachable, Unavailable
from tallystick.up import child as children
from tallystick.up.child import Child
from tallystick.up.data_folder import DataFolder, disk_full, reported, tail, write_json
from tallystick.up.processes import SERVICE, Identity, kill_all, leftovers
from tallystick.up.spec import Backoff, Item, ServiceSpec, Step, check_order

Report: TypeAlias = Callable[[str], None]
State: TypeAlias = Literal["waiting", "starting", "ready", "ended", "stopped"]

_FIRST_POLL_SECONDS = 0.02
_LAST_POLL_SECONDS = 0.25
_PROBE_SECONDS = 5.0
_TRIES_AT_FIRST = 3  # before it was ever ready; after that it is restarted for ever


@dataclass
class _Service:
    """What is known of one service now."""

    spec: ServiceSpec
    state: State = "waiting"
    child: Child | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    keeper: "asyncio.Task[None] | None" = None

    def entry(self) -> dict[str, object]:
        """Its row in processes.json."""
        identity = self.child.identity if self.child else None
        return {
            "name": self.spec.name,
            "pid": identity.pid if identity else None,
            "start_time": identity.start_time if identity else None,
            "port": self.spec.port,
            "state": self.state,
        }


class Supervisor:
    """Runs items (services and steps) that are listed after what they need."""

    def __init__(
        self,
        items: Sequence[Item],
        *,
        folder: DataFolder,
        environment: Mapping[str, str],
        up_id: str,
        report: Report,
        backoff: Backoff | None = None,
    ) -> None:
        check_order(items)
        self._items = tuple(items)
        self._folder = folder
        self._environment = dict(environment)
        self._up_id = up_id
        self._report = report
        self._backoff = backoff or Backoff()
        self._services = {i.name: _Service(i) for i in items if isinstance(i, ServiceSpec)}
        self._done = {item.name: asyncio.Event() for item in items}
        self._hurry = asyncio.Event()
        self._stopping = False
        self._began = time.monotonic()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the exception of whatever can not be kept running."""

    # ------------------------------------------------------------------------------- starting

    async def start(self) -> None:
        """Start everything; returns when all services are ready and all steps are done.

        Raises:
            ServiceUnreachable: a service or step failed; the message ends with its last words.
        """
        self._began = time.monotonic()
        for service in self._services.values():
            service.keeper = asyncio.create_task(self.guarded(self._keep(service)))
        steps = [i for i in self._items if isinstance(i, Step)]
        tasks = [asyncio.create_task(self.guarded(self._do(step))) for step in steps]
        ready = asyncio.create_task(self._all_done())
        try:
            await asyncio.wait({ready, self.failed}, return_when=asyncio.FIRST_COMPLETED)
            if self.failed.done():
                self.failed.result()
        finally:
            for task in (ready, *tasks):
                task.cancel()
            await asyncio.gather(ready, *tasks, return_exceptions=True)

    async def _all_done(self) -> None:
        for event in self._done.values():
            await event.wait()

    async def guarded(self, work: Coroutine[None, None, None]) -> None:
        """Run a background coroutine; its exception becomes the supervisor's."""
        try:
            with reported(self._folder.home):
                await work
        except Exception as error:  # the entry point of a task: handed on, never swallowed
            if not self.failed.done():  # the first reason counts
                self.failed.set_exception(error)

    async def _needs(self, item: Item) -> None:
        for name in item.depends_on:
            await self._done[name].wait()

    async def _do(self, step: Step) -> None:
        await self._needs(step)
        began = time.monotonic()
        if step.needed():
            if step.argv:
                await self._run_command(step)
            await step.action()
        self._mark_done(step.name, time.monotonic() - began)

    async def _run_command(self, step: Step) -> None:
        log = self._folder.log(step.name)
        environment = {**self._environment, **step.environment, SERVICE: step.name}
        try:
            ended = await children.run(
                step.argv,
                environment=environment,
                log=log,
                within=step.within,
                working_folder=self._folder.run,
            )
        except TimeoutError as error:
            problem = f"{step.name} still ran after {step.within:.0f} s"
            raise self._unreachable(problem, log, tail(log)) from error
        if ended.exit_status != 0:
            problem = f"{step.name} {ended.how_it_ended()}"
            raise self._unreachable(problem, log, ended.last_words())

    def _unreachable(self, problem: str, log: Path, last_words: str) -> Unavailable:
        if "No space left on device" in last_words:
            return disk_full(self._folder.home)
        return ServiceUnreachable(f"{problem}; log: {log}\n{last_words}")

    def _mark_done(self, name: str, seconds: float, where: str = "") -> None:
        if not self._done[name].is_set():
            self._done[name].set()
            self._report(f"{name:<14} ready  {seconds:6.2f} s  {where}".rstrip())

    # -------------------------------------------------------------------------------- keeping

    async def _keep(self, service: _Service) -> None:
        await self._needs(service.spec)
        failures = 0
        while not self._stopping:
            began = time.monotonic()
            await service.spec.prepare()
            child = self._spawn(service)
            await self._watch(service, child)
            self._note(service, "ended")
            ran_for = time.monotonic() - began
            failures = self._backoff.failures(failures, ran_for=ran_for)
            if failures >= _TRIES_AT_FIRST and not self._was_ready(service):
                how = f"{child.how_it_ended()} before it was ready, {failures} times"
                raise self._lost(service, child, how)
            pause = self._backoff.delay(failures)
            how = child.how_it_ended()
            self._report(f"{service.spec.name} {how}; starts again in {pause:.2f} s")
            await self._sweep(service.spec)
            await asyncio.sleep(pause)

    def _spawn(self, service: _Service) -> Child:
        spec = service.spec
        child = service.child = children.start(
            spec.argv,
            environment={**self._environment, **spec.environment, SERVICE: spec.name},
            log=self._folder.log(spec.name),
            stdin=spec.stdin,
            working_folder=spec.working_folder or self._folder.run,
            run_as=spec.run_as,
            dies_with_us=spec.dies_with_us,
        )
        self._note(service, "starting")
        return child

    async def _watch(self, service: _Service, child: Child) -> None:
        """Wait until it is ready, then until it ends."""
        began = time.monotonic()
        ended = asyncio.create_task(child.ended.wait())
        becoming_ready = asyncio.create_task(_until_ready(service.spec, child))
        try:
            await asyncio.wait(
                {ended, becoming_ready},
                timeout=service.spec.ready_within,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if becoming_ready.done() and not ended.done():
                becoming_ready.result()
                self._became_ready(service, time.monotonic() - began)
                await ended
            elif not ended.done():
                await child.stop(signal.SIGKILL, grace=5.0)
                if not self._was_ready(service):
                    within = f"{service.spec.ready_within:.0f} s"
                    raise self._lost(service, child, f"did not answer within {within}")
        finally:
            await _cancel(ended, becoming_ready)

    def _was_ready(self, service: _Service) -> bool:
        return self._done[service.spec.name].is_set()

    def _became_ready(self, service: _Service, seconds: float) -> None:
        self._note(service, "ready")
        where = f"127.0.0.1:{service.spec.port}" if service.spec.port else ""
        if self._was_ready(service):
            self._report(f"{service.spec.name} is back after {seconds:.2f} s")
        self._mark_done(service.spec.name, seconds, where)

    def _lost(self, service: _Service, child: Child, how: str) -> Unavailable:
        return self._unreachable(f"{service.spec.name} {how}", child.log, child.last_words())

    async def _sweep(self, spec: ServiceSpec) -> None:
        await asyncio.to_thread(
            kill_all,
            lambda: leftovers(self._up_id, service=spec.name, postgres_folder=spec.postgres_folder),
        )

    # ------------------------------------------------------------------------------- stopping

    def hurry(self) -> None:
        """Do not wait for anybody any more: stop by SIGKILL."""
        self._hurry.set()

    async def stop(self) -> None:
        """Stop everything, whoever needs others first; safe to repeat."""
        self._stopping = True
        await asyncio.gather(*(self._stop(service) for service in self._services.values()))
        if self.failed.done() and not self.failed.cancelled():
            self.failed.exception()  # or the loop complains that nobody looked

    async def _stop(self, service: _Service) -> None:
        spec = service.spec
        for other in self._dependents(spec.name):
            await self._services[other].gone.wait()
        if service.keeper:
            await _cancel(service.keeper)
        if service.child and not service.child.ended.is_set():
            await self._end(service, service.child)
        if service.child:
            await self._sweep(spec)
        service.state = "stopped"
        service.gone.set()
        with contextlib.suppress(OSError):  # a full disk must not keep services running
            self._write()

    async def _end(self, service: _Service, child: Child) -> None:
        began = time.monotonic()
        stopping = asyncio.create_task(
            child.stop(service.spec.stop_signal, grace=service.spec.grace)
        )
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            child.send(signal.SIGKILL)
        by_itself = await stopping
        await _cancel(hurry)
        how = "stopped" if by_itself else "killed"
        self._report(f"{service.spec.name:<14} {how} {time.monotonic() - began:6.2f} s")

    def _dependents(self, name: str) -> set[str]:
        """Services that need `name`, directly or through steps."""
        needing = {name}
        for item in self._items:
            if needing.intersection(item.depends_on):
                needing.add(item.name)
        return (needing - {name}) & self._services.keys()

    # -------------------------------------------------------------------------------- looking

    def _note(self, service: _Service, state: State) -> None:
        service.state = state
        self._write()

    def _write(self) -> None:
        rows = [
            service.entry() | {"log": str(self._folder.log(name))}
            for name, service in self._services.items()
        ]
        write_json(self._folder.processes, {"services": rows}, durable=False)

    def identity(self, name: str) -> Identity:
        """The process that runs a service now, or ran it last.

        Raises:
            NotFound: no service has that name, or it was never started.
        """
        service = self._services.get(name)
        if service is None or service.child is None:
            raise NotFound(f"no service {name!r} was started")
        return service.child.identity


async def _until_ready(spec: ServiceSpec, child: Child) -> None:
    """Return once the service says that it is ready and answers."""
    pause = _FIRST_POLL_SECONDS
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PROBE_SECONDS):
                if child.has_said(spec.says) and await spec.ready():
                    return
        await asyncio.sleep(pause)
        pause = min(_LAST_POLL_SECONDS, 1.2 * pause)  # asking costs CPU that the start needs


async def _cancel(*tasks: "asyncio.Task[object] | asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
