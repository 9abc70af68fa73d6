"""Which adapter fills which port: the only place that knows all of them."""

import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from contracts.chain.connection import ChainConnection
from contracts.chain.contracts import bind
from contracts.chain.deployment import load_deployment
from contracts.chain.fees import GWEI
from contracts.chain.sender import Sender, Watch
from contracts.keys.files import load_or_create_token
from contracts.keys.store import account_in, load_or_create_wallet
from contracts.settings import expanded
from contracts.terms.moments import UnixMillis
from market.adapters.blobs import FileBlobs
from market.adapters.bundles import FileBundles
from market.adapters.chain import Confirming, RpcChain
from market.adapters.locks import PostgresLocks
from market.adapters.postgres import PostgresWork, make_engine
from market.adapters.redis_limiter import RedisLimiter
from market.adapters.redis_wakeup import RedisWakeup
from market.adapters.transactions import RowTransactions
from market.service.convictions import Bundles
from market.service.histories import Histories
from market.service.ports import BlobStore, Chain, Limiter, Locks, UnitOfWork, Wakeup
from market.settings import S3, Settings
from training.hooks import hooks
from training.telling import JsonLines

WRITING_ROLES = ("anchorer", "relayer", "faucet", "slasher")


@dataclass(frozen=True)
class Market:
    """Everything that use cases need, assembled."""

    new_work: Callable[[], UnitOfWork]
    new_reading: Callable[[], UnitOfWork]  # for use cases that change nothing: it cannot
    chain: Chain
    blobs: BlobStore
    bundles: Bundles
    wakeup: Wakeup
    histories: Histories
    clock: Callable[[], UnixMillis]
    limiter: Limiter


@dataclass(frozen=True)
class Assembled:
    """A market over real services, and what has to be closed after use."""

    market: Market
    locks: Locks
    first_block: int
    stack: AsyncExitStack

    async def close(self) -> None:
        """Close all connections."""
        await self.stack.aclose()


def wall_clock() -> UnixMillis:
    """Now."""
    return UnixMillis(time.time_ns() // 1_000_000)


async def assemble(settings: Settings, *, writes: bool) -> Assembled:
    """Connect to the services that the settings name; nothing is asked of them yet.

    Args:
        settings: Where they are.
        writes: Whether this process holds the keys that write to the chain.
    """
    stack = AsyncExitStack()
    wakeup = RedisWakeup(settings.redis_url.get_secret_value())
    stack.push_async_callback(wakeup.close)
    limiter = RedisLimiter(settings.redis_url.get_secret_value())
    stack.push_async_callback(limiter.close)
    engine = make_engine(settings.database_url.get_secret_value())
    stack.push_async_callback(engine.dispose)
    reading = make_engine(settings.database_url.get_secret_value(), reads=True)
    stack.push_async_callback(reading.dispose)
    blobs = await _open_blobs(settings, stack)

    def new_work() -> UnitOfWork:
        return PostgresWork(engine, wakeup)

    def new_reading() -> UnitOfWork:
        return PostgresWork(reading)

    deployment = load_deployment(settings.contracts)
    chain = await stack.enter_async_context(ChainConnection(settings.rpc_url))
    mine = (
        await stack.enter_async_context(ChainConnection(settings.mine_url))
        if settings.mine_url
        else None
    )
    store, locks = RowTransactions(new_work), PostgresLocks(engine)
    watch = watch_transactions(settings.home / "run")
    senders = {
        role: Sender(
            chain,
            load_or_create_wallet(settings.keys / f"{role}.json"),
            store,
            deployment.chain_id,
            watch,
            max_fee=settings.max_fee_gwei * GWEI,
            patience_seconds=settings.transaction_seconds,
        )
        for role in (WRITING_ROLES if writes else ())
    }
    rpc = RpcChain(
        bind(chain, deployment),
        anchorer=account_in(settings.keys / "anchorer.json"),
        rpc_url=settings.rpc_url,
        confirming=Confirming(
            settings.confirmations, settings.settling_seconds if mine is not None else 0.0
        ),
        senders=senders,
        locks=locks,
        mine=mine,
    )
    histories = Histories(rpc.domain)
    bundles = FileBundles(blobs)
    market = Market(
        new_work, new_reading, rpc, blobs, bundles, wakeup, histories, wall_clock, limiter
    )
    return Assembled(market, locks, deployment.block, stack)


async def _open_blobs(settings: Settings, stack: AsyncExitStack) -> BlobStore:
    if not settings.blobs.startswith(S3):
        folder = expanded(Path(settings.blobs))
        return FileBlobs(folder, keep_free=settings.blob_keep_free)
    from market.adapters.s3_blobs import open_bucket  # of the extra `s3`

    return await open_bucket(settings.blobs, stack)


def watch_transactions(folder: Path) -> Watch:
    """Says what was stored and broadcast.

    `step` is the number in the name of the intention; 0 where it has none.
    """
    # Celery replaces sys.stderr by a logger; a killed process must have written its line.
    lines = JsonLines(sys.__stderr__ or sys.stderr, process="market")
    tell = hooks().tell(lines, folder / "failpoints-market")

    def watch(phase: str, key: str) -> None:
        what, _, rest = key.partition(":")
        number = rest.partition(":")[0]
        tell(f"{what}_{phase}", key=key, step=int(number) if number.isdecimal() else 0)

    return watch


def load_host_token(settings: Settings) -> str:
    """What hosts have to show; made on first use, in a file with mode 0600.

    Raises:
        Malformed: the file holds none.
    """
    given = settings.host_token.get_secret_value()
    return given or load_or_create_token(settings.keys / "host-token")
