"""A slash and a beacon over Postgres and a real anvil, which is really killed."""

from pathlib import Path

from contracts.governance.escrow import BURN
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import blob_digest
from contracts.terms.ids import Digest
from market.service.rows import SlashRow
from market.service.slash import convict
from tests.integration.market.on_chain import chain_world
from tests.integration.market.test_on_chain import matched_job, until
from tests.integration.market.test_slash import slash_of
from tests.support.market_world import STAKE


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
