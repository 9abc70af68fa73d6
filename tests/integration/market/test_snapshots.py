"""What the chain proves of a job is stored in time: after each epoch that paid, and the refund."""

import pytest

from contracts.terms.encoding import MAX_MESSAGE_BYTES, decode, encode
from contracts.terms.errors import ChainForgot, NotFound
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixSeconds
from market.domain.jobs import JobState
from market.service import store_snapshots as snapshots
from market.service.fund_jobs import fund_jobs
from market.service.rows import DebitRow, SnapshotRow
from market.service.store_snapshots import due_snapshots, store_snapshots
from tests.integration.market.client import client_of, sdk
from tests.integration.market.test_auditors import AUDIT, fixed, post, post_opening
from tests.support.history import START, JobMaker, make_wallet
from tests.support.market_world import World, market_spec
from verification.audit.snapshots import (
    Snapshot,
    decode_snapshot,
    decode_snapshots,
    encode_snapshot,
)


async def shown_of(world: World, rows: list[SnapshotRow]) -> list[Snapshot]:
    """Snapshots as auditors see them."""
    async with world.new_work() as work:
        values = await snapshots.shown_snapshots(rows, work)
    return list(decode_snapshots(encode(values)))


async def rows_of(world: World, job: JobId) -> list[SnapshotRow]:
    async with world.new_work() as work:
        return await work[SnapshotRow].where(job=job, order="number")


async def settle(world: World, maker: JobMaker, *, last: bool = False) -> None:
    """A step that is sealed, anchored, and settled in an epoch of its own."""
    maker.seal_step(last=last)
    await world.send(maker)
    for _ in range(5):
        world.wait(6)
        await world.tick()


async def job_over(world: World) -> JobMaker:
    """A job that was paid in two epochs and refunded."""
    maker = await world.start_job()
    await settle(world, maker)
    for last in (False, False, True):
        await settle(world, maker, last=last)
    for _ in range(10):
        world.wait(6)
        await world.tick()
    assert (await world.job(maker.spec.job())).state == JobState.REFUNDED
    return maker


async def test_snapshots__job_over__one_after_each_epoch_and_the_refund_chained(
    world: World,
) -> None:
    maker = await job_over(world)

    rows = await rows_of(world, maker.spec.job())
    async with world.new_work() as work:
        debits = await work[DebitRow].where()
    shown = await shown_of(world, rows)
    wanted = [*(f"epoch:{each.epoch}" for each in debits), "refund"]
    assert sorted(row.reason for row in rows) == sorted(wanted) and len(debits) == 2
    assert [row.number for row in rows] == [1, 2, 3]
    assert [each.header.number for each in shown] == [row.block for row in rows]
    assert [each.header.hash for each in shown] == [row.block_hash for row in rows]
    assert [each.before is None for each in shown] == [True, False, False]
    paid = [sum(each.cumulative for each in each.settlement.accounts) for each in shown]
    assert 0 < paid[0] < paid[-1] == maker.seals[-1].seal.earned
    assert all(not decode_snapshot(row.data).settlement.accounts for row in rows)  # kept once
    await check_shown(world, maker, shown)
    world.chain.give_tokens(maker.spec.poster, 1)
    await world.sync()
    assert await store_snapshots(world.new_work(), world.ports) == []
    assert await rows_of(world, maker.spec.job()) == rows


async def check_shown(world: World, maker: JobMaker, shown: list[Snapshot]) -> None:
    """The API and its client give all, or a page."""
    path = f"/jobs/{maker.spec.job().hex()}/snapshots"
    values = [decode(encode_snapshot(each)) for each in shown]
    async with client_of(world) as client:
        whole = await client.get(path)
        page = await client.get(path, params={"after": 1, "limit": 1})
        refused = await client.get(path, params={"limit": 17})
    assert whole.headers["content-type"] == "application/msgpack"
    assert decode(whole.content, max_bytes=MAX_MESSAGE_BYTES) == values
    assert decode(page.content) == values[1:2] and refused.status_code == 400
    async with sdk(world) as found:
        assert await found.snapshots(maker.spec.job()) == shown
        with pytest.raises(NotFound):
            await found.snapshots(JobId(bytes(32)))


async def test_snapshots__several_due_and_node_lost_old_states__are_one_at_a_newer_block(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.market_world.store_snapshots", nothing)
    maker = await job_over(world)
    async with world.new_work() as work:
        (due,) = await due_snapshots(work)
    assert len(due.epochs) == 2 and due.refund
    world.chain.give_tokens(maker.spec.poster, 1)
    world.chain.prune()

    with pytest.raises(ChainForgot):
        await store_snapshots(world.new_work(), world.ports)
    assert await rows_of(world, maker.spec.job()) == []
    await world.sync()
    taken = await store_snapshots(world.new_work(), world.ports)

    (row,) = await rows_of(world, maker.spec.job())
    assert taken == [row.job] and row.reason == "refund"
    assert row.block == (await world.chain.head()).number


async def test_snapshots__chain_forgets_their_blocks__are_dropped_and_taken_again(
    world: World,
) -> None:
    maker = await job_over(world)
    before = await rows_of(world, maker.spec.job())
    world.chain.forget(len(world.chain.blocks) - before[1].block)

    await world.sync()
    async with world.new_work() as work:
        due = await due_snapshots(work)
    left = await rows_of(world, maker.spec.job())
    for _ in range(3):
        await world.tick()

    after = await rows_of(world, maker.spec.job())
    assert [each.job for each in due] == [maker.spec.job()]
    assert left == before[:1] == after[:1]
    assert len(after) > 1 and after[-1].reason == "refund"
    assert all(world.chain.blocks[row.block].hash == row.block_hash for row in after)


async def nothing(*_: object) -> None:
    """A task that does not come."""


async def test_snapshots__job_that_nobody_opened__has_none_and_is_not_due(world: World) -> None:
    await world.register()
    spec = market_spec(deadline=UnixSeconds(START + 100))
    await world.post(spec)
    await fund_jobs(world.now, world.new_work(), world.ports)
    world.wait(101)
    for _ in range(12):
        await world.tick()
        world.wait(6)

    assert (await world.job(spec.job())).state == JobState.REFUNDED
    assert await rows_of(world, spec.job()) == []
    async with world.new_work() as work:
        assert await due_snapshots(work) == []


async def test_audited_job__checked__claims_of_who_is_outside_are_proved_too(world: World) -> None:
    await world.audit("out1")
    maker = await world.start_job(audit=AUDIT)
    job, (block, listed) = maker.spec.job(), await fixed(world, maker.spec.job())
    await post_opening(world, maker, listed.digest(), block)
    await post(world, maker, listed, maker.items[2])

    async with world.new_work() as work:
        found = await snapshots.audited_job(job, work)

    accounts = {make_wallet("ann").account, make_wallet("out1").account}
    assert found is not None and found.accounts == tuple(sorted(accounts))
