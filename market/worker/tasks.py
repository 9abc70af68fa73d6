"""Tasks that beat re-drives: the round of each queue, and one for each job whose money is due.

What is due stands in rows, so a task that is lost with Redis or with its worker is simply found
again; a task that waited for too long expires. One task a queue runs the use cases whose time has
come, so that a slow one delays the others and never starves them. What the clock decides comes
before clearing, and a clearing round is bounded (`pace`).

Money is a task a job: `grant` relays what parties have signed, `claim` pays, `release` gives back,
`anchor` puts seals on chain. The round of queue `default` starts those that are due, on queue
`chain`, which any number of workers and machines may share: each task is idempotent and holds the
lock of its job, who sends from an account holds the lock of that account, and a worker that is
killed loses both with its connection. One asyncio.Runner, one engine and one connection to the
chain per worker process.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import uvloop
from celery import Celery
from celery.beat import PersistentScheduler
from celery.signals import worker_process_shutdown, worker_shutdown

from contracts.terms.errors import Refused, ServiceUnreachable, Unavailable
from contracts.terms.ids import Digest, JobId
from contracts.terms.moments import UnixMillis
from market.bootstrap import Assembled, Market, assemble
from market.service.anchor_seals import anchor_seals, is_anchor_due
from market.service.at_rest import is_at_rest
from market.service.auditors import fix_auditors
from market.service.claims import claim_job
from market.service.clear_jobs import clear_jobs
from market.service.collect_blobs import collect_blobs
from market.service.due import AGAIN_MILLIS, Task, begin_due, note_done, start_due
from market.service.faucet import give_faucet
from market.service.fund_jobs import fund_jobs
from market.service.named_blobs import Spans
from market.service.note_beat import NOTED_EVERY, note_beat
from market.service.orders import relay_orders
from market.service.pace import Pace
from market.service.pass_time import lapse_leases, pass_deadlines, release_silent
from market.service.ports import Chain, UnitOfWork
from market.service.reconcile import reconcile
from market.service.releases import release_job
from market.service.slash import announce_slashes, burn_slashes
from market.service.stored_corpus import SECONDS, compare_corpora
from market.service.sync_chain import sync_chain
from market.settings import Settings

CLEARING_SECONDS, EXPLAINING_SECONDS = 2.0, 0.25  # of a round
BEAT = timedelta(seconds=1)
AT_REST = timedelta(seconds=10)
"""How often use cases of jobs alone are due while no job is open: of most nothing comes then."""
QUEUES = {"default": False, "chain": True}
"""Task and queue of the same name, and whether its use cases write to the chain."""
log = logging.getLogger("market.tasks")

R = TypeVar("R")
UseCase = Callable[["Runtime"], Awaitable[object]]
OfJob = Callable[[JobId, UnixMillis, UnitOfWork, Chain], Awaitable[UnixMillis | None]]
"""Does what is due for a job; says when to look again."""

MONEY: Mapping[Task, OfJob] = {
    "grant": relay_orders,
    "claim": claim_job,
    "release": release_job,
}
"""Tasks with the id of a job."""
ANCHOR = "anchor"
"""The task with the address of an anchorer."""


@dataclass(frozen=True)
class Periodic:
    """A use case, how often it is due, whether it writes to the chain, and serves jobs alone."""

    run: UseCase
    every: timedelta
    chain: bool = True
    of_jobs: bool = False


class Runtime:
    """A worker process' loop and connections, made when the first task comes."""

    def __init__(
        self, settings: Settings, start: Callable[[str, str], object] = lambda task, subject: None
    ) -> None:
        """Run use cases.

        Args:
            settings: Of this process.
            start: Sends a task with its subject to queue `chain`.
        """
        self.settings, self.start = settings, start
        self.pace = Pace(CLEARING_SECONDS, EXPLAINING_SECONDS)
        self.comparing = Pace(SECONDS)
        self.swept_to = anywhere()
        """Where `collect_blobs` goes on: anywhere, so that restarts leave out none for long."""
        self._due_at: dict[str, float] = {}  # monotonic
        self._ran_at: dict[str, float] = {}  # monotonic; those of jobs alone
        self._runner: asyncio.Runner | None = None
        self._assembled: Assembled | None = None

    @property
    def assembled(self) -> Assembled:
        """The market, once a task runs."""
        if self._assembled is None:
            raise ServiceUnreachable("the worker is not connected")
        return self._assembled

    @property
    def market(self) -> Market:
        """Ports of the use cases."""
        return self.assembled.market

    def run_due(self, tasks: Mapping[str, Periodic]) -> None:
        """Run each whose time has come, one after the other; one that breaks ends no other."""
        due = {name: task for name, task in tasks.items() if self._is_due(name, task)}
        if due and (broken := self._run(self._round(due))):
            raise ExceptionGroup("use cases that broke", broken)  # told by Celery

    def run_money(self, task: Task, job: JobId) -> None:
        """Do what is due for a job, unless somebody does it now."""
        self._run(self._money(task, job))

    def run_anchor(self, anchorer: str) -> None:
        """Put seals on chain, unless somebody does it now."""
        self._run(self._anchor(anchorer))

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        return self._runner.run(work)

    def _is_due(self, name: str, task: Periodic) -> bool:
        if time.monotonic() < self._due_at.get(name, 0.0):
            return False
        # Half a beat early: beats come a little sooner or later.
        wait = task.every - BEAT / 2
        self._due_at[name] = time.monotonic() + wait.total_seconds()
        return True

    async def _round(self, due: Mapping[str, Periodic]) -> list[Exception]:
        """What broke. What the environment or the chain refuses is found again by beat."""
        broken = list[Exception]()
        try:
            writes = any(task.chain for task in due.values())
            async with self.turn("round" if writes else None) as is_ours:
                for name, task in (await self._wanted(due)).items() if is_ours else ():
                    try:
                        await task.run(self)
                    except (Unavailable, Refused) as error:
                        log.warning("%s: %s: %s", name, error.code, error.message)
                    except Exception as error:
                        broken.append(error)
        except (Unavailable, Refused) as error:
            log.warning("round: %s: %s", error.code, error.message)
        return broken

    async def _wanted(self, due: Mapping[str, Periodic]) -> Mapping[str, Periodic]:
        """Without those that serve jobs alone, while no job is open and they ran not long ago."""
        now = time.monotonic()
        soon = now - (AT_REST - BEAT / 2).total_seconds()
        recent = {name for name in due if self._ran_at.get(name, -AT_REST.total_seconds()) > soon}
        if recent and await self.is_at_rest():
            due = {name: task for name, task in due.items() if name not in recent}
        self._ran_at |= {name: now for name, task in due.items() if task.of_jobs}
        return due

    async def is_at_rest(self) -> bool:
        """Whether no job is open."""
        return await is_at_rest(self.market.new_reading())

    async def _money(self, task: Task, job: JobId) -> None:
        async def work(market: Market) -> None:
            now = market.clock()
            begun = await begin_due(job, task, now, market.new_work())
            again_at = await MONEY[task](job, now, market.new_work(), market.chain)
            await note_done(begun, again_at, market.new_work())

        await self._in_turn(f"{task}:{job.hex()}", work)

    async def _anchor(self, anchorer: str) -> None:
        async def work(market: Market) -> None:
            if market.chain.anchorer.hex() == anchorer:
                patience = round(3000 * self.settings.anchor_seconds)
                await anchor_seals(
                    market.clock(), market.new_work(), market.chain, patience_millis=patience
                )

        await self._in_turn(f"{ANCHOR}:{anchorer}", work)

    async def _in_turn(self, name: str, work: Callable[[Market], Awaitable[None]]) -> None:
        """What the environment or the chain refuses is found again."""
        try:
            async with self.turn(name) as is_ours:
                if is_ours:
                    await work(self.market)
        except (Unavailable, Refused) as error:
            log.warning("%s: %s: %s", name, error.code, error.message)

    @asynccontextmanager
    async def turn(self, name: str | None) -> AsyncIterator[bool]:
        """Connected; and whether nobody else holds the lock `name` until the end."""
        if self._assembled is None:
            self._assembled = await assemble(self.settings, writes=True)
        if name is None:
            yield True
            return
        async with self._assembled.locks.try_hold(name) as is_ours:
            yield is_ours

    def close(self) -> None:
        """Close connections and loop."""
        if self._runner is not None:
            if self._assembled is not None:
                self._runner.run(self._assembled.close())
            self._runner.close()
        self._runner = self._assembled = None


def anywhere() -> Digest:
    """A place among all blobs."""
    return Digest(secrets.token_bytes(32))


async def _collect(runtime: Runtime) -> object:
    market, settings = runtime.market, runtime.settings
    spans = Spans(
        timedelta(days=settings.blob_unnamed_days), timedelta(days=settings.blob_ended_days)
    )
    after, runtime.swept_to = runtime.swept_to, anywhere()  # where one breaks, the next does not
    done = await collect_blobs(
        after, spans, now=market.clock(), work=market.new_work(), blobs=market.blobs
    )
    runtime.swept_to = done.next
    log.info(
        "collect_blobs: looked at %d, deleted %d, gave back %d bytes",
        done.looked_at, done.removed, done.given_back,
    )  # fmt: skip
    return done


async def _clear(runtime: Runtime) -> object:
    market = runtime.market
    return await clear_jobs(market.clock(), market.new_work(), runtime.pace)


async def _corpora(runtime: Runtime) -> object:
    market = runtime.market
    return await compare_corpora(market.clock(), market.new_work(), market.blobs, runtime.comparing)


async def _faucet(runtime: Runtime) -> object:
    return await give_faucet(runtime.market.new_work(), runtime.market.chain)


async def _start_anchor(runtime: Runtime) -> object:
    if await is_anchor_due(runtime.market.new_reading()):
        runtime.start(ANCHOR, runtime.market.chain.anchorer.hex())
    return None


async def _start_money(runtime: Runtime) -> object:
    def start(task: str, job: JobId) -> None:
        runtime.start(task, job.hex())

    return await start_due(runtime.market.clock(), runtime.market.new_work(), start)


async def _sync(runtime: Runtime) -> None:
    market, first = runtime.market, runtime.assembled.first_block
    await sync_chain(market.clock(), market.new_work(), market.chain, first_block=first)


async def _reconcile(runtime: Runtime) -> object:
    return await reconcile(runtime.market.new_reading(), runtime.market.chain)


def _by_clock(use_case: Callable[[UnixMillis, UnitOfWork], Awaitable[object]]) -> UseCase:
    """A use case of rows alone."""
    return lambda runtime: use_case(runtime.market.clock(), runtime.market.new_work())


def _on_chain(use_case: Callable[[UnixMillis, UnitOfWork, Chain], Awaitable[object]]) -> UseCase:
    """A use case that asks the chain, or writes to it."""

    def run(runtime: Runtime) -> Awaitable[object]:
        market = runtime.market
        return use_case(market.clock(), market.new_work(), market.chain)

    return run


def periodic(settings: Settings) -> dict[str, Periodic]:
    """Every use case by name, in the order of a round."""
    seconds = timedelta(seconds=1)
    anchoring = timedelta(seconds=settings.anchor_seconds)
    return {
        "lapse": Periodic(_by_clock(lapse_leases), 2 * seconds, chain=False, of_jobs=True),
        "silent": Periodic(_by_clock(release_silent), 5 * seconds, chain=False),
        "deadlines": Periodic(_by_clock(pass_deadlines), 2 * seconds, chain=False, of_jobs=True),
        "corpora": Periodic(_corpora, seconds, chain=False, of_jobs=True),
        "clear": Periodic(_clear, seconds, chain=False, of_jobs=True),
        "auditors": Periodic(_on_chain(fix_auditors), seconds, chain=False, of_jobs=True),
        "money": Periodic(_start_money, seconds, chain=False),
        "anchor": Periodic(_start_anchor, anchoring, chain=False, of_jobs=True),
        "collect_blobs": Periodic(_collect, 60 * seconds, chain=False),
        "reconcile": Periodic(_reconcile, 60 * seconds, chain=False),
        "beat": Periodic(_by_clock(partial(note_beat, "default")), NOTED_EVERY, chain=False),
        "faucet": Periodic(_faucet, seconds),
        "fund": Periodic(_on_chain(fund_jobs), seconds, of_jobs=True),
        "chain_sync": Periodic(_sync, seconds),
        "announce_slashes": Periodic(_on_chain(announce_slashes), 2 * seconds, of_jobs=True),
        "burn_slashes": Periodic(_on_chain(burn_slashes), 2 * seconds, of_jobs=True),
        "chain_beat": Periodic(_by_clock(partial(note_beat, "chain")), NOTED_EVERY),
    }


class Sleeper(PersistentScheduler):
    """Sleeps until a task is due. Celery's own wakes 10 ms before, and asks the clock till then."""

    def adjust(self, n: float, drift: float = 0.0) -> float:
        """See `Scheduler.adjust`."""
        return n


def make_app(settings: Settings) -> Celery:
    """The Celery application: queues `default` and `chain`, and what runs in them."""
    app = Celery("tallystick", broker=settings.redis_url.get_secret_value())
    tasks = periodic(settings)
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        task_default_queue="default",
        task_routes={name: {"queue": name} for name in QUEUES}
        | {name: {"queue": "chain"} for name in (*MONEY, ANCHOR)},
        worker_prefetch_multiplier=1,
        worker_cancel_long_running_tasks_on_connection_loss=True,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "visibility_timeout": 60,
            "socket_timeout": 10,
            "socket_connect_timeout": 5,
        },
        beat_schedule={
            name: {
                "task": name,
                "schedule": BEAT,
                "options": {"expires": 2 * BEAT.total_seconds()},
            }
            for name in QUEUES
        },
        beat_max_loop_interval=1,
        beat_scheduler=f"{__name__}:{Sleeper.__name__}",
    )

    def start(task: str, subject: str) -> None:
        app.send_task(task, args=[subject], expires=AGAIN_MILLIS / 1000)

    runtime = Runtime(settings, start)
    for name, writes in QUEUES.items():
        own = {key: task for key, task in tasks.items() if task.chain == writes}
        _register(app, runtime, name, own)
    for money in MONEY:
        _register_money(app, runtime, money)
    app.task(name=ANCHOR, shared=False)(runtime.run_anchor)

    def close(**_: object) -> None:
        runtime.close()

    worker_process_shutdown.connect(close, weak=False)
    worker_shutdown.connect(close, weak=False)
    return app


def _register(app: Celery, runtime: Runtime, name: str, own: Mapping[str, Periodic]) -> None:
    @app.task(name=name, shared=False)
    def run() -> None:
        runtime.run_due(own)


def _register_money(app: Celery, runtime: Runtime, task: Task) -> None:
    @app.task(name=task, shared=False)
    def run(job: str) -> None:
        runtime.run_money(task, JobId(bytes.fromhex(job)))
