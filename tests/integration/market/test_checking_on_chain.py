"""Beacons, outside auditors and slashes over Postgres and a real anvil that is really killed."""

import time
from pathlib import Path
from typing import cast

import pytest

from contracts.chain.connection import ChainConnection
from contracts.governance.escrow import BURN
from contracts.terms.amounts import BaseUnits
from contracts.terms.beacons import Beacon
from contracts.terms.digest import blob_digest
from contracts.terms.ids import Digest, JobId, StepNumber
from market.domain.jobs import JobState
from market.service.auditors import list_of_job
from market.service.rows import BatchRow, SlashRow
from market.service.show_beacons import anchor_chain_of_job
from market.service.slash import convict
from tallystick.provider.beacons import (
    SETTLING_SECONDS,
    BeaconFile,
    BeaconWatch,
    Counts,
    batches_of,
)
from tallystick.sdk.client import MarketClient
from tests.integration.market.on_chain import ChainWorld, chain_spec, chain_world
from tests.integration.market.test_auditors import AUDIT
from tests.integration.market.test_on_chain import in_state, matched_job, rounds, until
from tests.integration.market.test_slash import slash_of
from tests.support.history import JobMaker, make_wallet
from tests.support.market_world import STAKE
from verification.draws.anchor_chains import AnchorChainPage


class OfWorld:
    """The market's anchor chain, without HTTP."""

    def __init__(self, world: ChainWorld) -> None:
        self._world = world

    async def anchor_chain(self, job: JobId, *, first: int | None = None) -> AnchorChainPage:
        """See `MarketClient.anchor_chain`."""
        async with self._world.new_work() as work:
            return await anchor_chain_of_job(job, self._world.anchorer, work, first=first, limit=3)


def watch_of(
    world: ChainWorld, chain: ChainConnection, maker: JobMaker, folder: Path
) -> BeaconWatch:
    return BeaconWatch(
        maker.opening,
        BeaconFile(folder),
        seals=world.on.contracts.seals,
        batches=batches_of(world.on.contracts),
        blocks=chain,
        market=cast(MarketClient, OfWorld(world)),
        counts=Counts(1, SETTLING_SECONDS),
        clock=time.time,
    )


async def learned(world: ChainWorld, watch: BeaconWatch, maker: JobMaker) -> tuple[Beacon, ...]:
    """The beacon of one more step, once a member believes it."""
    await world.seal(maker)
    found: tuple[Beacon, ...] = ()

    async def is_known() -> bool:
        nonlocal found
        found += await watch.look()
        return bool(found)

    await until(world, is_known)
    return found


@pytest.mark.nightly
async def test_beacon_watch__chain_killed_between_steps__has_the_beacons_that_the_chain_kept(
    tmp_path: Path, database: str
) -> None:
    async with chain_world(tmp_path, database) as world:
        maker = await matched_job(world)
        await world.on.anvil.save()
        watch = watch_of(world, world.on.chain, maker, tmp_path)
        first = await learned(world, watch, maker)
        await world.on.anvil.stop()
        await world.on.anvil.start()
        second = await learned(world, watch, maker)
        (tmp_path / "new").mkdir()
        fresh = await watch_of(world, world.on.chain, maker, tmp_path / "new").look()

        batches = await world.rows(BatchRow, order="number")
        told = [(beacon.batch, beacon.block, beacon.value) for beacon in (*first, *second)]
        assert [beacon.step for beacon in (*first, *second)] == [1, 2]
        assert told == [(batch.root, batch.block, batch.beacon) for batch in batches]
        assert fresh == (*first, *second)
        assert await BeaconFile(tmp_path).beacon_of(StepNumber(2)) == second[0]


async def test_slash__chain_killed_while_it_is_announced__happens_once_to_the_base_unit(
    tmp_path: Path, database: str
) -> None:
    async with chain_world(tmp_path, database) as world:
        maker = await matched_job(world)
        await world.on.anvil.save()
        job, account = maker.spec.job(), maker.members[0].wallet.account
        evidence = blob_digest(b"bundle")
        world.blobs.blobs[evidence] = b"bundle"
        convicted = SlashRow(evidence, job, account, BaseUnits(1_000_000), convicted_at=world.now)
        await convict(convicted, world.now, world.new_work())

        async def is_announced() -> bool:
            return (await slash_of(world, evidence)).state == "announced"

        async def is_burned() -> bool:
            return (await slash_of(world, evidence)).state == "burned"

        await until(world, is_announced)
        await world.on.anvil.stop()
        await world.on.anvil.start()
        await until(world, is_burned)

        contracts, head = world.on.contracts, await world.on.chain.head()
        names = [log.event for log in await contracts.events(0, head.number)]
        channel = (await contracts.escrow.channels([(job, account)], head))[job, account]
        free = await contracts.escrow.balances([account, BURN], head)
        assert names.count("SlashAnnounced") == names.count("Burned") == 1
        assert channel.stake == 0 and channel.end
        assert [amount for amount, _ in free.values()] == [STAKE - 1_000_000, 1_000_000]


@pytest.mark.nightly
async def test_fix_auditors__real_stakes__are_those_of_one_block(
    tmp_path: Path, database: str
) -> None:
    async with chain_world(tmp_path, database) as world:
        await world.register()
        for name in ("out1", "out2"):
            await world.audit(name)
        await world.offer("ann", 10**11)
        spec = chain_spec(audit=AUDIT)
        await world.post(spec)

        async def offered() -> bool:
            return bool(await world.beat("ann"))

        await until(world, offered)
        (lease,) = await world.beat("ann")
        await world.accept("ann", lease)
        for name in ("out1", "out2"):
            await world.bond(name)
        await in_state(world, spec.job(), JobState.MATCHED)
        await rounds(world, 2)

        async with world.new_work() as work:
            block, listed = await list_of_job(spec.job(), work)
        wanted = sorted(make_wallet(name).account for name in ("out1", "out2"))
        assert [(each.account, each.stake) for each in listed.auditors] == [
            (account, 1_000_000) for account in wanted
        ]
        assert block <= (await world.on.chain.head()).number


async def test_anchor_then_record__nothing_else_on_the_chain__beacon_is_there_in_the_next_block(
    tmp_path: Path, database: str
) -> None:
    async with chain_world(tmp_path, database) as world:
        root = Digest(b"r" * 32)

        await world.ports.anchor(root)
        anchored = await world.on.chain.head()
        await world.ports.record(root)

        head = await world.on.chain.head()
        events = [event.event for event in await world.ports.events(anchored.number, head.number)]
        recorded = (await world.ports.events(head.number, head.number))[-1]
        assert events == ["Anchored", "Recorded"] and head.number == anchored.number + 1
        assert recorded.args["beacon"] == anchored.hash
