"""One measure of `market_speed`, over whatever checkout PYTHONPATH names; prints JSON.

It uses only what both commits have, and the book where there is one. Seconds, unless named else.
"""

# Ids and units are plain bytes and integers here, as they were called otherwise in older commits.
# mypy: disable-error-code="arg-type"

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

NUM_OFFERS, NUM_JOBS = 10_000, 1_000
OFFERS_AT_ONCE = 5_000  # rows of a statement
SIZES = ((32, 1_000), (20, 10_000))  # bytes of a name, and how many: jobs, accounts


def clearing() -> dict[str, float]:
    """10,000 offers and 1,000 jobs in pure code; before, of 60 jobs, as much for each."""
    from contracts.terms.errors import NoMatch
    from market.domain.auction import clear
    from market.domain.matching import Need, feasible
    from market.domain.offers import Candidate

    chance, now = random.Random(1), 10**12
    offers: Any = [
        Candidate(
            offer=chance.randbytes(32),
            account=chance.randbytes(20),
            price=chance.randint(1, 1000),
            memory_bytes=chance.choice([8, 16, 24, 48, 80]) * 2**30,
            flops_per_second=10**13,
            available_from=0,
            expires_at=10**9 + chance.randint(0, 10**6),
            heard_at=now,
            leased=False,
            free_stake=chance.randint(0, 1000),
            device_class=chance.choice("abc"),
        )
        for _ in range(NUM_OFFERS)
    ]
    jobs = [
        (
            Need(
                chance.randint(200, 1000),
                chance.randint(1, 80) * 2**30,
                chance.randint(0, 800),
                10**9 + chance.randint(0, 10**6),
                now,
            ),
            chance.randint(1, 12),
        )
        for _ in range(NUM_JOBS)
    ]
    try:
        book: Any = import_module("market.domain.book").Book
    except ImportError:
        book, jobs = None, jobs[:60]
    begun, leased = time.perf_counter(), set[bytes]()
    book = book and book(offers, now)
    for need, slots in jobs:
        if book is not None:
            asks = book.cheapest(book.fitting(need), slots + 2)
        else:
            asks = [ask for ask in feasible(need, offers) if ask.offer not in leased]
        try:
            cleared = clear(asks, slots=slots, spares=1, reserve=need.price_ceiling)
        except NoMatch:
            continue
        for ask in cleared.winners:
            leased.add(ask.offer)
            if book is not None:
                book.take(ask.offer)
    took = time.perf_counter() - begun
    return {"ms a job": 1000 * took / len(jobs), "1,000 jobs": took * NUM_JOBS / len(jobs)}


def settlement() -> dict[str, float]:
    """100,000 leaves (1,000 jobs of 100 accounts); an epoch in which 300 jobs pay again."""
    from contracts.governance.pay import PayLeaf
    from contracts.governance.settlement import NOTHING_SETTLED, SealStatement, settle

    chance = random.Random(1)
    jobs = [chance.randbytes(32) for _ in range(1000)]
    accounts = [chance.randbytes(20) for _ in range(10_000)]
    pay = {job: sorted(chance.sample(accounts, 100)) for job in jobs}

    def statements(of: list[bytes], step: int) -> Any:
        return [
            SealStatement(
                job,
                chance.randbytes(32),
                step,
                tuple(PayLeaf(each, step * 9, step * 9) for each in pay[job]),
                10**18,
            )
            for job in of
        ]

    first = settle(1, NOTHING_SETTLED, statements(jobs, 1))
    assert first.root.sum
    second = statements(jobs[:300], 2)
    begun = time.perf_counter()
    paying: Any = jobs[:300]
    debited = sum(first.debited(job) for job in paying)
    settled = settle(2, first, second)
    root = settled.root
    assert debited < root.sum
    return {"an epoch": time.perf_counter() - begun}


@contextmanager
def _database() -> Iterator[str]:
    from market.migrate import migrate
    from tests.support.market_services import run_postgres

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        with run_postgres(Path(folder) / "postgres") as server:
            url = server.new_database()
            migrate(url)
            yield url


@asynccontextmanager
async def _world(url: str) -> AsyncIterator[Any]:
    from market.adapters.postgres import PostgresWork, make_engine
    from tests.support.market_world import World

    engine, reading = make_engine(url), make_engine(url, reads=True)
    world = World(lambda: PostgresWork(engine), lambda: PostgresWork(reading))
    try:
        yield world
    finally:
        await engine.dispose()
        await reading.dispose()


async def _filled(world: Any, num_jobs: int) -> None:
    """10,000 offers that are heard, and jobs that wait."""
    from market.service.rows import HeartbeatRow, JobRow, OfferRow, StakeRow
    from tests.support.history import DOMAIN, make_wallet
    from tests.support.market_world import DEVICE, market_spec

    chance, now = random.Random(1), world.now
    names = [(chance.randbytes(32), chance.randbytes(20)) for _ in range(NUM_OFFERS)]
    offers: list[Any] = [
        OfferRow(
            offer,
            bytes(300),
            account,
            chance.randbytes(32),
            chance.randint(1, 10**12),
            DEVICE,
            2 ** chance.randint(28, 40),
            10**13,
            0,
            4 * 10**9,
            now,
        )
        for offer, account in names
    ]
    beats = [HeartbeatRow(offer, now, now) for offer, _ in names]
    stakes = [StakeRow(account, 10**7, 0, 0, 1) for _, account in names]
    base, wallet, jobs = market_spec(), make_wallet("poster"), list[Any]()
    for number in range(num_jobs):
        ceiling = chance.randint(10**10, 10**12)
        spec = base.model_copy(update={"nonce": number + 1, "price_ceiling": ceiling})
        signed = wallet.sign(spec, DOMAIN).encoded()
        row: Any = (spec.job(), signed, spec.poster, spec.coordinator, "x", spec.budget)
        row = (*row, spec.epoch_cap, spec.deadline, 12, "funded", now + number)
        jobs.append(JobRow(*row))
    async with world.new_work() as work:
        for table, rows in ((OfferRow, offers), (HeartbeatRow, beats), (StakeRow, stakes)):
            for start in range(0, NUM_OFFERS, OFFERS_AT_ONCE):
                await work[table].add_all(rows[start : start + OFFERS_AT_ONCE])
        await work[JobRow].add_all(jobs)


async def _clear(world: Any) -> dict[str, float]:
    """Jobs that are bought: all of them now, 20 before, as long for each."""
    from market.service import clear_jobs as clearing_round

    is_new = hasattr(clearing_round, "Book")
    num_jobs = NUM_JOBS if is_new else 20
    await _filled(world, num_jobs)
    begun, bought = time.perf_counter(), 0
    while leases := await clearing_round.clear_jobs(world.now, world.new_work()):
        bought += len(leases)
        if bought >= num_jobs:
            break
    took = time.perf_counter() - begun
    assert bought, "nothing was matched"
    return {"ms a bought lease": 1000 * took / bought}


async def _view(world: Any) -> dict[str, float]:
    """`GET /v1/market`, and the page of it, of 10,000 offers, 20 times one after the other."""
    found: dict[str, float] = {}
    async with _client(world) as client:
        await _filled(world, 0)
        for path in ("/v1/market", "/"):
            took = []
            for _ in range(20):
                begun = time.perf_counter()
                assert (await client.get(path)).status_code == 200
                took.append(1000 * (time.perf_counter() - begun))
            took.sort()
            found |= {f"{path} median ms": took[10], f"{path} slowest ms": took[-1]}
    return found


@asynccontextmanager
async def _client(world: Any) -> AsyncIterator[Any]:
    import httpx

    from market.api.app import make_app

    transport = httpx.ASGITransport(make_app(world.api()))
    async with httpx.AsyncClient(transport=transport, base_url="http://market") as client:
        yield client


async def _beats(world: Any) -> dict[str, float]:
    """Milliseconds of a beat through the application, 16 at once, without a socket."""
    from market.bodies import Heartbeat, heartbeat_digest
    from tests.support.history import make_session
    from tests.support.market_world import sign_digest

    for number in range(16):
        await world.offer(f"p{number}", 10**11)

    async def one(client: Any, number: int) -> None:
        offer, session = world.offers[f"p{number}"], make_session(f"agent p{number}")
        for count in range(1, 26):
            at = world.now + count
            beat = Heartbeat(at=at, signature=sign_digest(session, heartbeat_digest(offer, at)))
            path = f"/v1/offers/{offer.hex()}/heartbeat"
            answer = await client.post(path, content=beat.json_bytes())
            assert answer.status_code == 200, answer.text

    async with _client(world) as client:
        begun = time.perf_counter()
        await asyncio.gather(*[one(client, number) for number in range(16)])
    return {"ms a beat": 1000 * (time.perf_counter() - begun) / 400}


async def _offers(world: Any) -> dict[str, float]:
    """Milliseconds of an offer of an account with stake; each chain read takes 4 ms here."""
    from market.bodies import SignedBody

    chain, reads = world.chain, 0

    async def slow(values: int) -> None:
        nonlocal reads
        reads += values
        for _ in range(values):
            await asyncio.sleep(0.004)

    plain = chain.account

    async def account(name: Any) -> Any:
        await slow(6)  # the head, and five values
        return await plain(name)

    for number in range(8):
        await world.stake(f"p{number}")
    await world.sync()
    chain.account = account
    if hasattr(chain, "stake_of"):
        one = chain.stake_of

        async def stake_of(name: Any) -> Any:
            await slow(2)  # the head, and one value
            return await one(name)

        chain.stake_of = stake_of
    signed = [world.sign_offer(f"p{n % 8}", 10**11, nonce=n + 10) for n in range(160)]
    bodies = [SignedBody(signed=each.encoded()).json_bytes() for each in signed]

    async def post(client: Any, mine: list[bytes]) -> None:
        for each in mine:
            answer = await client.post("/v1/offers", content=each)
            assert answer.status_code == 201, answer.text

    async with _client(world) as client:
        begun = time.perf_counter()
        await asyncio.gather(*[post(client, bodies[n::8]) for n in range(8)])
        took = time.perf_counter() - begun
    return {"ms an offer": 1000 * took / len(signed), "chain reads an offer": reads / len(signed)}


async def _settle(world: Any) -> dict[str, float]:
    """Planning an epoch in which 300 of 1,000 jobs pay again their 100 accounts: 100,000 leaves.

    In a process that is new, which reads the epoch before it, and in one that planned that one.
    """
    from contracts.governance.pay import PayLeaf
    from contracts.governance.settlement import NOTHING_SETTLED, SealStatement, settle
    from market.service.coding import encode_pay
    from market.service.refused_debits import RefusedDebits
    from market.service.rows import BatchRow, EpochLeafRow, EpochRow, JobRow, SealRow
    from market.service.settle_epoch import Rhythm, plan_epoch

    chance, much = random.Random(1), 10**15
    jobs, accounts = ([chance.randbytes(size) for _ in range(n)] for size, n in SIZES)
    pays = {job: sorted(chance.sample(accounts, 100)) for job in jobs}
    batch: Any = BatchRow(chance.randbytes(32), 1, 1, block=1)

    def pay(job: bytes, step: int) -> Any:
        return tuple(PayLeaf(each, step * 9, step * 9) for each in pays[job])

    def seal(job: bytes, step: int) -> Any:
        said: Any = (job, step, chance.randbytes(32), b"", encode_pay(pay(job, step)))
        said = (*said, step * 900, step * 900, False, 1, batch.root)
        return SealRow(*said)

    sealed = [SealStatement(job, chance.randbytes(32), 1, pay(job, 1), much) for job in jobs]
    first = settle(1, NOTHING_SETTLED, sealed)
    leaves = [
        EpochLeafRow(1, of.account, job, cumulative)
        for of in first.accounts
        for job, cumulative in of.jobs
    ]
    async with world.new_work() as work:
        await work[BatchRow].add(batch)
        await work[EpochRow].add(EpochRow(1, "final", first.root.hash, first.root.sum, 1))
        for start in range(0, len(leaves), OFFERS_AT_ONCE):
            await work[EpochLeafRow].add_all(leaves[start : start + OFFERS_AT_ONCE])
        for job in jobs[:300]:
            row: Any = (job, b"", bytes(20), bytes(20), "x", much, much, 2**40, 9, "running", 1)
            await work[JobRow].add(JobRow(*row))

    found: dict[str, float] = {}
    for epoch, name in ((2, "s in a new process"), (3, "s in one that planned the last")):
        chain: Any = _Epochs(epoch - 1)
        async with world.new_work() as work:
            await work[SealRow].add_all([seal(job, epoch) for job in jobs[:300]])
        begun = time.perf_counter()
        planned = await plan_epoch(
            10**6 * epoch, world.new_work(), chain, Rhythm(1, much), RefusedDebits()
        )
        found[name] = time.perf_counter() - begun
        assert planned is not None and planned.sum > first.root.sum
        async with world.new_work() as work:
            await work[EpochRow].put(replace(planned, state="final"))
    return found


@dataclass(frozen=True)
class _Epochs:
    """A chain that has an epoch, and would take the next one."""

    number: int
    next_at: int = 0

    async def newest_epoch(self) -> "_Epochs":
        return self


def _on_postgres(measure: Callable[[Any], Awaitable[dict[str, float]]]) -> dict[str, float]:
    async def run(url: str) -> dict[str, float]:
        async with _world(url) as world:
            return await measure(world)

    with _database() as url:
        return asyncio.run(run(url))


MEASURES: dict[str, Callable[[], dict[str, float]]] = {
    "clearing": clearing,
    "clearing_postgres": lambda: _on_postgres(_clear),
    "market_view": lambda: _on_postgres(_view),
    "beats": lambda: _on_postgres(_beats),
    "offers": lambda: _on_postgres(_offers),
    "settlement": settlement,
    "settlement_postgres": lambda: _on_postgres(_settle),
}


if __name__ == "__main__":
    print(json.dumps(MEASURES[sys.argv[1]]()))
