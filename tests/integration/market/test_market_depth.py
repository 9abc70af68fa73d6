"""Depth, demand and clearing rounds as people see them."""

from contracts.terms.amounts import PricePerPflop
from market.bodies.routes import GET_MARKET, GET_ROUNDS
from tests.integration.market.client import sdk
from tests.integration.market.test_earnings import account_of
from tests.support.market_world import DEVICE, World, market_spec

PRICE = 10**11


async def test_market__job_that_waits_then_is_bought__rounds_say_why_and_at_what_price(
    world: World,
) -> None:
    await world.register()
    await world.offer("ann", PRICE)
    spec = market_spec(peers_per_stage=2)
    await world.post(spec)
    async with sdk(world) as client:
        await world.tick()
        await world.tick()  # the same again is no other decision
        waiting = await client.call(GET_MARKET)
        (refused,) = (await client.call(GET_ROUNDS)).rounds
        await world.offer("bob", 2 * PRICE)
        await world.offer("cem", 3 * PRICE)
        depth = await client.call(GET_MARKET)
        await world.tick()
        bought = (await client.call(GET_ROUNDS, after=refused.number)).rounds
        whole = (await client.call(GET_ROUNDS, job=spec.job())).rounds
        after = await client.call(GET_MARKET)
        older = (await client.call(GET_ROUNDS, before=bought[0].number)).rounds
    (demand,) = waiting.demand
    assert (demand.job, demand.slots, demand.ceiling) == (spec.job(), 2, spec.price_ceiling)
    assert refused.price is None and refused.not_matched == demand.not_matched != ()
    (of_class,) = depth.classes
    assert (of_class.device_class, of_class.open, of_class.cleared) == (DEVICE, 3, None)
    assert [(level.price, level.peers) for level in of_class.levels] == [
        (PRICE, 1), (2 * PRICE, 2), (3 * PRICE, 3),
    ]  # fmt: skip
    assert of_class.spread == str(PRICE - spec.price_ceiling)
    (cleared,) = bought
    assert {each.account for each in cleared.winners} == {account_of("ann"), account_of("bob")}
    assert cleared.price == 3 * PRICE and (cleared.slots, cleared.asks) == (2, 3)
    assert whole == (refused, cleared) and older == (refused,)
    (of_class,) = after.classes
    assert of_class.cleared is not None and of_class.cleared.price == PricePerPflop(3 * PRICE)
    assert (of_class.leased, of_class.open, after.demand) == (2, 1, ())
