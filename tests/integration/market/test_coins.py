"""A member that believes nobody learns the coins of its job from the chain and the market."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from contracts.chain.connection import Block
from contracts.chain.wrappers.seals import Lane
from contracts.governance.lane import AnchoredBatch
from contracts.terms.amounts import BaseUnits
from contracts.terms.coins import Coin
from contracts.terms.errors import ChainForgot
from contracts.terms.ids import Address, Digest, StepNumber
from contracts.terms.messages import AuditSpec
from market.bodies.routes import GET_COINS
from market.service.anchor_seals import anchor_seals
from market.service.rows import BatchRow, SealRow
from tallystick.provider.coins import CoinFile, CoinWatch, Counts
from tallystick.sdk.client import MarketClient
from tallystick.sdk.process import MarketCoins
from tests.integration.market.client import sdk
from tests.integration.market.test_auditors import AUDIT
from tests.support.history import JobMaker
from tests.support.market_world import World


@dataclass(frozen=True)
class OnMemory:
    """What an agent reads, from the chain in memory: `Anchors`, and heads as of a connection."""

    world: World

    async def head(self, *, confirmations: int = 0) -> Block:
        """The newest block."""
        return await self.block(len(self.world.chain.blocks) - 1 - confirmations)

    async def block(self, number: int) -> Block:
        """A block."""
        found = await self.world.chain.block(number)
        if found is None:
            raise ChainForgot("no such block")
        return Block(found.number, found.hash, found.timestamp)

    async def lane(self, anchorer: Address, at: Block) -> Lane:
        """The lane at the head."""
        assert at == await self.head() and anchorer == self.world.anchorer
        return Lane(self.world.chain.state.lane, self.world.chain.state.batches)

    async def pending_block(self, anchorer: Address, at: Block) -> int:
        """The block of the batch without a coin."""
        return self.world.chain.state.pending

    async def batches(self, anchorer: Address, at: Block) -> Sequence[AnchoredBatch]:
        """All that was anchored."""
        async with self.world.new_work() as work:
            rows = await work[BatchRow].where(order="number")
        return [AnchoredBatch(row.root, row.block, row.coin) for row in rows if row.block]


def watch_of(world: World, maker: JobMaker, folder: Path, client: MarketClient) -> CoinWatch:
    chain = OnMemory(world)
    return CoinWatch(
        maker.opening,
        CoinFile(folder),
        anchors=chain,
        blocks=chain,  # type: ignore[arg-type]
        market=client,
        counts=Counts(1, 0.0),
        clock=lambda: float(world.chain.now),
    )


async def seal(world: World, maker: JobMaker, steps: int = 1) -> None:
    for _ in range(steps):
        maker.seal_step()
    await world.send(maker)


async def batches(world: World) -> Sequence[BatchRow]:
    async with world.new_work() as work:
        return await work[BatchRow].where(order="number")


async def test_coins__steps_anchored_and_recorded__are_told_to_coordinator_and_member_alike(
    world: World, tmp_path: Path
) -> None:
    maker = await world.start_job()
    job = maker.spec.job()
    await seal(world, maker, 2)
    await world.tick()
    async with sdk(world) as client:
        watch = watch_of(world, maker, tmp_path, client)
        early, first = await watch.look(), (await client.call(GET_COINS, job=job)).steps
        await seal(world, maker)
        await world.tick()
        await world.tick()
        await watch.look()
        steps = (await client.call(GET_COINS, job=job)).steps
        from_market = [await MarketCoins(client, job).coin_of(each.step) for each in steps]
        later = (await client.call(GET_COINS, job=job, after=2)).steps
    from_chain = [await CoinFile(tmp_path).coin_of(each.step) for each in steps]

    rows = await batches(world)
    assert [(each.step, each.coin) for each in first] == [(1, None), (2, None)] and early == ()
    assert [each.step for each in steps] == [1, 2, 3] and [each.step for each in later] == [3]
    assert [each.root for each in steps] == [rows[0].root] * 2 + [rows[1].root]
    assert all(each.coin for each in rows)
    assert [replace(each, seal=None) for each in from_chain if each] == from_market
    assert rows[1].block and rows[1].coin
    sealed = maker.seals[2].seal.digest()
    assert from_chain[2] == Coin(StepNumber(3), rows[1].root, rows[1].block, rows[1].coin, sealed)


async def test_lane__batches_of_others_before_the_opening__begin_with_the_last_of_them(
    world: World, tmp_path: Path
) -> None:
    other = await world.start_job("bob")
    for _ in range(4):
        await seal(world, other)
        await world.tick()
    maker = await world.start_job("ann", salt=2)
    maker = with_opening_block(world, maker, (await world.ports.head()).number)
    for _ in range(3):
        await seal(world, maker)
        await seal(world, other)
        await world.tick()
        await world.tick()
    async with sdk(world) as client:
        page = await client.lane(maker.spec.job())
        rest = await client.lane(maker.spec.job(), first=page.first + 2)
        found = await watch_of(world, maker, tmp_path, client).look()

    rows = await batches(world)
    assert page.first == 3 and rows[3].block <= maker.opening.opening_block < rows[4].block  # type: ignore[operator]
    assert page.batches[0].leaves == () and page.batches[2:] == rest.batches
    assert [coin.step for coin in found] == [1, 2, 3]


def with_opening_block(world: World, maker: JobMaker, block: int) -> JobMaker:
    """The same job, whose coordinator opens it now."""
    member, accept = maker.members[0], maker.lease(maker.members[0])
    changed = type(maker)(
        name=maker.spec.name,
        members=[member],
        spec_changes=maker.spec_changes,
        anchorer=world.anchorer,
        domain=world.domain,
        opening_block=block,
        leases={member.session.key: accept},  # type: ignore[call-arg]  # a LeasedMaker
    )
    return changed


async def test_look__chain_forgot_the_anchor__coin_is_the_one_of_the_block_that_stayed(
    world: World, tmp_path: Path
) -> None:
    maker = await world.start_job()
    await seal(world, maker)
    await world.tick()
    async with sdk(world) as client:
        watch = watch_of(world, maker, tmp_path, client)
        await watch.look()
        blocks = len(world.chain.blocks)
        (batch,) = await batches(world)
        assert batch.block is not None
        world.chain.forget(blocks - batch.block)
        world.chain.give_tokens(maker.spec.poster, 1)  # so that it is mined in another block
        await world.tick()
        await world.tick()
        found = await watch.look()

    (row,) = await batches(world)
    assert row.block != batch.block
    assert [(coin.step, coin.block, coin.value) for coin in found] == [(1, row.block, row.coin)]


@pytest.mark.parametrize("audit", [None, AUDIT], ids=["unchecked", "checked"])
async def test_anchor_seals__seal_of_a_job__has_its_coin_at_once_if_somebody_waits_for_it(
    world: World, audit: AuditSpec | None
) -> None:
    maker = await world.start_job(audit=audit)
    sealed = SealRow(
        job=maker.spec.job(),
        step=1,
        digest=Digest(b"s" * 32),
        signed=b"",
        pay=b"",
        earned=BaseUnits(0),
        vested=BaseUnits(0),
        last=False,
        stored_at=world.now,
    )
    async with world.new_work() as work:
        await work[SealRow].add(sealed)

    for _ in range(2):  # repeated it changes nothing
        await anchor_seals(world.now, world.new_work(), world.ports, patience_millis=10**6)
        await world.sync()

    (batch,) = await batches(world)
    names = [event.event for event in await world.ports.events(0, 10**9)]
    assert (batch.coin is not None) == (audit is not None) == ("Recorded" in names)
    assert names.count("Anchored") == 1 and names.count("Recorded") == (audit is not None)
