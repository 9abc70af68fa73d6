"""The beacons of a job as its market tells them, from the anchor chain: each once."""

from collections.abc import Sequence

import pytest

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Digest
from contracts.terms.messages import AuditSpec
from market.bodies.routes import GET_BEACONS
from market.service.anchor_seals import anchor_seals
from market.service.rows import BatchRow, SealRow
from tallystick.sdk.process import MarketBeacons
from tests.integration.market.client import sdk
from tests.integration.market.test_auditors import AUDIT
from tests.support.market_world import World


async def batches(world: World) -> Sequence[BatchRow]:
    return await world.rows(BatchRow, order="number")


async def test_beacons__steps_anchored_and_recorded__are_told_as_the_batches_have_them(
    world: World,
) -> None:
    maker = await world.start_job()
    job = maker.spec.job()
    await world.seal(maker, 2)
    await world.tick()
    async with sdk(world) as client:
        first = (await client.call(GET_BEACONS, job=job)).steps
        await world.seal(maker)
        await world.tick()
        await world.tick()
        steps = (await client.call(GET_BEACONS, job=job)).steps
        known = [await MarketBeacons(client, job).beacon_of(each.step) for each in steps]
        later = (await client.call(GET_BEACONS, job=job, after=2)).steps

    one, two = await batches(world)
    assert [(each.step, each.beacon) for each in first] == [(1, None), (2, None)]
    assert [each.step for each in steps] == [1, 2, 3] and [each.step for each in later] == [3]
    told = [(beacon.step, beacon.batch, beacon.block, beacon.value) for beacon in known if beacon]
    of = [(1, one), (2, one), (3, two)]
    assert told == [(step, batch.root, batch.block, batch.beacon) for step, batch in of]
    assert one.beacon and two.beacon


async def test_anchor_chain__batches_of_others_before_the_opening__begin_with_the_last_of_them(
    world: World,
) -> None:
    other = await world.start_job("bob")
    for _ in range(4):
        await world.seal(other)
        await world.tick()
    maker = await world.start_job("ann", salt=2)
    maker = maker.opened_anew(opening_block=(await world.ports.head()).number)
    for _ in range(3):
        await world.seal(maker)
        await world.seal(other)
        await world.tick()
        await world.tick()
    async with sdk(world) as client:
        page = await client.anchor_chain(maker.spec.job())
        rest = await client.anchor_chain(maker.spec.job(), first=page.first + 2)

    rows = await batches(world)
    assert page.first == 3 and rows[3].block <= maker.opening.opening_block < rows[4].block  # type: ignore[operator]
    assert page.batches[0].leaves == () and page.batches[2:] == rest.batches


@pytest.mark.parametrize("audit", [None, AUDIT], ids=["unchecked", "checked"])
async def test_anchor_seals__seal_of_a_job__has_its_beacon_at_once_if_somebody_waits_for_it(
    world: World, audit: AuditSpec | None
) -> None:
    maker = await world.start_job(audit=audit)
    sealed = SealRow(
        job=maker.spec.job(),
        step=1,
        digest=Digest(b"s" * 32),
        signed=b"",
        under=b"",
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
    assert (batch.beacon is not None) == (audit is not None) == ("Recorded" in names)
    assert names.count("Anchored") == 1 and names.count("Recorded") == (audit is not None)
