"""What a replay reads, and that it leaves real work its turns."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.governance.sealed import SealedClaim
from contracts.terms.errors import InvariantBroken, Unavailable
from contracts.terms.ids import Digest, StageIndex
from contracts.terms.items import ItemNumber
from contracts.terms.work import Sort
from tests.support.history import JobMaker, make_members
from training.strategies.port import BASE
from training.worker.engine import Engine
from training.worker.turns import PATIENCE, Rank
from verification.auditing.replays import Meter, ReplaySource


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    """The one thread that computes."""
    engine = Engine()
    yield engine
    await engine.close()


async def test_meter__queue_is_never_empty__what_it_computes_goes_between(engine: Engine) -> None:
    done, meter = list[str](), Meter(engine)

    async def work(name: str) -> None:
        async def pass_once() -> None:
            done.append(name)

        await engine.at(Rank.FORWARD, pass_once)

    async def replay() -> None:
        for _ in range(2):
            await meter(lambda: done.append("audit"))

    async with asyncio.TaskGroup() as group:
        group.create_task(replay())
        for number in range(2 * PATIENCE):
            group.create_task(work(str(number)))

    first, second = (place for place, name in enumerate(done) if name == "audit")
    assert 1 < second - first <= PATIENCE + 2 < len(done) - first


async def test_meter__device_fails__unavailable_and_its_time_counts(engine: Engine) -> None:
    meter = Meter(engine)

    def fails() -> None:
        sum(range(100_000))
        raise MemoryError("no room")

    with pytest.raises(Unavailable, match="no room"):
        await meter(fails)

    assert meter.cpu_us > 0
    assert await meter(lambda: 7) == 7


async def test_replay_source__names_of_a_leaf_and_a_claim__are_asked_for_by_their_digests(
    tmp_path: Path,
) -> None:
    job, asked = JobMaker(members=make_members("abc", stages=3)), list[tuple[Digest, Sort]]()
    claim, leaves = job.claim(job.members[1])
    item = claim.numbers[-1]
    leaf = leaves[-1]

    async def bytes_of(digest: Digest, sort: Sort) -> bytes:
        asked.append((digest, sort))
        return b"bytes"

    async def rows_of(name: str) -> bytes:
        return name.encode()

    source = ReplaySource(SealedClaim(claim, leaves), tmp_path, bytes_of, rows_of)

    assert await source.get(BASE) == tmp_path
    assert await source.get(f"rows/0/{item}") == f"rows/0/{item}".encode()
    for name in (f"y/0/{item}", "shard/1"):
        assert await source.get(name) == b"bytes"
    assert asked == [
        (leaf.tensor(f"y/0/{item}"), "boundary"),
        (claim.outputs[1].digest, "part"),
    ]
    with pytest.raises(InvariantBroken):
        source.put(f"y/1/{item}", b"")
    assert (leaf.item, claim.group) == (ItemNumber(item), StageIndex(1))
