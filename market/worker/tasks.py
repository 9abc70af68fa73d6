"""Two tasks that beat re-drives: each runs the use cases of its queue whose time has come.

What is due stands in rows, so a task that is lost with Redis or with its worker is simply found
again at the next beat; a task that waited longer than two beats expires. One task a queue, so that
a slow use case delays the others and never starves them: a task of its own for each would expire
behind the same slow one every time. What the clock decides comes before clearing, and a clearing
round is bounded (`pace`). Whoever writes to the chain holds an advisory lock in Postgres,
for a round at a time, so one account is one nonce sequence however many workers there are. One
asyncio.Runner, one engine and one connection to the chain per worker process.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import uvloop
from celery import Celery
from celery.beat import PersistentScheduler
from celery.signals import worker_process_shutdown, worker_shutdown
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Refused, ServiceUnreachable, Unavailable
from market.bootstrap import Assembled, Market, assemble
from market.service.anchor_seals import anchor_seals
from market.service.at_rest import is_at_rest
from market.service.auditors import fix_auditors
from market.service.burn_forfeits import burn_forfeits
from market.service.clear_jobs import clear_jobs
from market.service.close_jobs import close_jobs, refund_jobs
from market.service.drain_outbox import drain_outbox
from market.service.faucet import give_faucet
from market.service.fund_jobs import fund_jobs
from market.service.note_beat import NOTED_EVERY, note_beat
from market.service.pace import Pace
from market.service.pass_time import lapse_leases, pass_deadlines, release_silent
from market.service.reconcile import reconcile
from market.service.refused_debits import RefusedDebits
from market.service.reserve_stakes import release_stakes, reserve_stakes
from market.service.settle_epoch import Rhythm, may_settle, settle_epoch
from market.service.slash import announce_slashes, execute_slashes
from market.service.store_snapshots import store_snapshots
from market.service.sync_chain import sync_chain
from market.settings import Settings

CHAIN_LOCK = 0x7A11_0001
CLEARING_SECONDS, EXPLAINING_SECONDS = 2.0, 0.25  # of a round
BEAT = timedelta(seconds=1)
AT_REST = timedelta(seconds=10)
"""How often use cases of jobs alone are due while no job is open: of most nothing comes then."""
QUEUES = {"default": False, "chain": True}
"""Task and queue of the same name, and whether its use cases write to the chain."""
log = logging.getLogger("market.tasks")

UseCase = Callable[["Runtime"], Awaitable[object]]


@dataclass(frozen=True)
class Periodic:
    """A use case, how often it is due, whether it writes to the chain, and serves jobs alone."""

    run: UseCase
    every: timedelta
    chain: bool = True
    of_jobs: bool = False


class Runtime:
    """A worker process' loop and connections, made when the first task comes."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.refused_debits = RefusedDebits()
        self.pace = Pace(CLEARING_SECONDS, EXPLAINING_SECONDS)
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
        if not due:
            return
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        if broken := self._runner.run(self._round(due)):
            raise ExceptionGroup("use cases that broke", broken)  # told by Celery

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
            async with self.turn(writes=any(task.chain for task in due.values())) as is_ours:
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

    @asynccontextmanager
    async def turn(self, *, writes: bool) -> AsyncIterator[bool]:
        """Connected; and whether nobody else writes to the chain until the end of the round."""
        if self._assembled is None:
            self._assembled = await assemble(self.settings, writes=True)
        if not writes:
            yield True
            return
        try:
            async with self._assembled.engine.begin() as connection:
                query = text("SELECT pg_try_advisory_xact_lock(:name)")
                yield bool(await connection.scalar(query, {"name": CHAIN_LOCK}))
        except SQLAlchemyError as error:
            raise ServiceUnreachable(f"database: {error!s:.200}") from error

    def close(self) -> None:
        """Close connections and loop."""
        if self._runner is not None:
            if self._assembled is not None:
                self._runner.run(self._assembled.close())
            self._runner.close()
        self._runner = self._assembled = None


async def _clear(runtime: Runtime) -> object:
    market = runtime.market
    return await clear_jobs(market.clock(), market.new_work(), runtime.pace)


async def _lapse(runtime: Runtime) -> object:
    return await lapse_leases(runtime.market.clock(), runtime.market.new_work())


async def _silent(runtime: Runtime) -> object:
    return await release_silent(runtime.market.clock(), runtime.market.new_work())


async def _deadlines(runtime: Runtime) -> object:
    return await pass_deadlines(runtime.market.clock(), runtime.market.new_work())


async def _outbox(runtime: Runtime) -> object:
    return await drain_outbox(runtime.market.new_work(), runtime.market.wakeup.wake)


async def _fund(runtime: Runtime) -> object:
    market = runtime.market
    return await fund_jobs(market.clock(), market.new_work(), market.chain)


async def _reserve(runtime: Runtime) -> object:
    market = runtime.market
    return await reserve_stakes(market.clock(), market.new_work(), market.chain)


async def _release(runtime: Runtime) -> object:
    return await release_stakes(runtime.market.new_work(), runtime.market.chain)


async def _faucet(runtime: Runtime) -> object:
    return await give_faucet(runtime.market.new_work(), runtime.market.chain)


async def _anchor(runtime: Runtime) -> object:
    market = runtime.market
    patience = round(3000 * runtime.settings.anchor_seconds)
    return await anchor_seals(
        market.clock(), market.new_work(), market.chain, patience_millis=patience
    )


async def _sync(runtime: Runtime) -> object:
    market = runtime.market
    return await sync_chain(
        market.clock(),
        market.new_work(),
        market.chain,
        first_block=runtime.assembled.first_block,
    )


async def _settle(runtime: Runtime) -> object:
    market = runtime.market
    if not await may_settle(market.new_reading()):
        return None  # the chain is not asked
    parameters = (await market.chain.network()).parameters
    rhythm = Rhythm(parameters["epoch_length"] * 1000, BaseUnits(parameters["max_epoch_cap"]))
    return await settle_epoch(
        market.clock(), market.new_work(), market.chain, rhythm, runtime.refused_debits
    )


async def _close(runtime: Runtime) -> object:
    market = runtime.market
    return await close_jobs(market.clock(), market.new_work(), market.chain)


async def _refund(runtime: Runtime) -> object:
    market = runtime.market
    return await refund_jobs(market.clock(), market.new_work(), market.chain)


async def _burn(runtime: Runtime) -> object:
    return await burn_forfeits(runtime.market.new_work(), runtime.market.chain)


async def _snapshots(runtime: Runtime) -> object:
    return await store_snapshots(runtime.market.new_work(), runtime.market.chain)


async def _auditors(runtime: Runtime) -> object:
    market = runtime.market
    return await fix_auditors(market.clock(), market.new_work(), market.chain)


async def _announce(runtime: Runtime) -> object:
    market = runtime.market
    return await announce_slashes(market.clock(), market.new_work(), market.chain)


async def _execute(runtime: Runtime) -> object:
    market = runtime.market
    return await execute_slashes(market.new_work(), market.chain)


async def _reconcile(runtime: Runtime) -> object:
    return await reconcile(runtime.market.new_work())


async def _beat(runtime: Runtime) -> object:
    return await note_beat("default", runtime.market.clock(), runtime.market.new_work())


async def _chain_beat(runtime: Runtime) -> object:
    return await note_beat("chain", runtime.market.clock(), runtime.market.new_work())


def periodic(settings: Settings) -> dict[str, Periodic]:
    """Every use case by name, in the order of a round."""
    seconds = timedelta(seconds=1)
    return {
        "outbox": Periodic(_outbox, seconds, chain=False),
        "lapse": Periodic(_lapse, 2 * seconds, chain=False, of_jobs=True),
        "silent": Periodic(_silent, 5 * seconds, chain=False),
        "deadlines": Periodic(_deadlines, 2 * seconds, chain=False, of_jobs=True),
        "clear": Periodic(_clear, seconds, chain=False, of_jobs=True),
        "auditors": Periodic(_auditors, seconds, chain=False, of_jobs=True),
        "reconcile": Periodic(_reconcile, 15 * seconds, chain=False),
        "beat": Periodic(_beat, NOTED_EVERY, chain=False),
        "faucet": Periodic(_faucet, seconds),
        "fund": Periodic(_fund, seconds, of_jobs=True),
        "reserve": Periodic(_reserve, seconds, of_jobs=True),
        "chain_sync": Periodic(_sync, seconds),
        "anchor": Periodic(_anchor, timedelta(seconds=settings.anchor_seconds), of_jobs=True),
        "settle": Periodic(_settle, 2 * seconds, of_jobs=True),
        "close_jobs": Periodic(_close, 2 * seconds, of_jobs=True),
        "refund_jobs": Periodic(_refund, 2 * seconds, of_jobs=True),
        "announce_slashes": Periodic(_announce, 2 * seconds, of_jobs=True),
        "execute_slashes": Periodic(_execute, 2 * seconds, of_jobs=True),
        "burn": Periodic(_burn, 2 * seconds, of_jobs=True),
        "snapshots": Periodic(_snapshots, 2 * seconds, of_jobs=True),
        "release": Periodic(_release, 10 * seconds),
        "chain_beat": Periodic(_chain_beat, NOTED_EVERY),
    }


class Sleeper(PersistentScheduler):
    """Sleeps until a task is due. Celery's own wakes 10 ms before, and asks the clock till then."""

    def adjust(self, n: float, drift: float = 0.0) -> float:
        """See `Scheduler.adjust`."""
        return n


def make_app(settings: Settings) -> Celery:
    """The Celery application: queues `default` and `chain`, a task for each, driven by beat."""
    app = Celery("tallystick", broker=settings.redis_url.get_secret_value())
    tasks = periodic(settings)
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=True,
        task_default_queue="default",
        task_routes={name: {"queue": name} for name in QUEUES},
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
    runtime = Runtime(settings)
    for name, writes in QUEUES.items():
        own = {key: task for key, task in tasks.items() if task.chain == writes}
        _register(app, runtime, name, own)

    def close(**_: object) -> None:
        runtime.close()

    worker_process_shutdown.connect(close, weak=False)
    worker_shutdown.connect(close, weak=False)
    return app


def _register(app: Celery, runtime: Runtime, name: str, own: Mapping[str, Periodic]) -> None:
    @app.task(name=name)
    def run() -> None:
        runtime.run_due(own)
