"""Spend and peers of a job that runs: equal to escrow, seals and lines of pay."""

from market.bodies.earnings import SeatView, SpendView
from market.bodies.routes import GET_MONEY, GET_PEERS, GET_SPEND
from market.service.rows import SealRow
from tallystick.sdk.client import MarketClient
from tests.integration.market.client import sdk
from tests.integration.market.test_earnings import (
    PEOPLE,
    STATES,
    account_of,
    check_sums,
    claim,
    lines_of,
)
from tests.support.market_story import Story, begin_story
from tests.support.market_world import World


async def check_spend(story: Story, client: MarketClient) -> SpendView:
    """What it says is what the escrow, the newest seal and the lines of everybody say."""
    found = await client.call(GET_SPEND, job=story.job)
    money = await client.call(GET_MONEY, job=story.job)
    seal = await story.world.row(SealRow, story.job, story.maker.record.step)
    names = ("funded", "committed", "free", "earned", "vested", "claimed")
    assert [getattr(found, each) for each in names] == [getattr(money, each) for each in names]
    assert (found.earned, found.vested) == (seal.earned, seal.vested)
    assert sum(each.earned for each in found.accounts) == found.earned
    assert sum(step.earned for step in found.steps) == found.earned
    assert sum(step.vested for step in found.steps) == found.vested
    assert sum(each.frozen for each in found.accounts) == found.frozen
    assert sum(each.forfeited for each in found.accounts) == found.forfeited
    for each in found.accounts:
        parts = {name: getattr(each, name) for name in STATES}
        assert sum(parts.values()) == each.earned
        name = next(name for name in PEOPLE if account_of(name) == each.account)
        lines = await lines_of(client, story, name)
        assert parts == {part: sum(getattr(line.parts, part) for line in lines) for part in STATES}
    return found


async def check_seats(story: Story, client: MarketClient) -> dict[bytes, SeatView]:
    """Pay of the seats is that of the lines of their accounts' work and audits inside."""
    found = await client.call(GET_PEERS, job=story.job)
    assert found.num_seats == len(found.seats) == 3 and found.next is None
    for seat in found.seats:
        name = next(name for name in PEOPLE if account_of(name) == seat.account)
        lines = await lines_of(client, story, name)
        assert seat.earned == sum(line.amount for line in lines)
        assert seat.forfeited == sum(line.parts.forfeited or 0 for line in lines)
        assert seat.frozen == sum(line.parts.frozen or 0 for line in lines)
        assert seat.waiting == sum(line.parts.waiting for line in lines)
        assert seat.earned == seat.waiting + seat.vested + seat.frozen + seat.forfeited
    return {seat.account: seat for seat in found.seats}


async def test_spend__beginning_of_a_story__is_what_escrow_and_lines_say(world: World) -> None:
    story, codes = await begin_story(world), set[str]()
    async with sdk(world) as client:
        await story.work(2)
        first, before = await check_spend(story, client), await check_sums(story, client, codes)
        for _ in range(4):
            await story.idle()
        for _ in range(3):
            await story.pass_time()
        for name in PEOPLE:
            await claim(story, client, name)
        second, after = await check_spend(story, client), await check_sums(story, client, codes)
    assert after["claimed"] > before["claimed"] and codes
    assert first.pace is not None and first.outlook is not None and first.audits is not None
    assert first.outlook.ends_at > first.clock
    assert first.pace.spent_a_step == second.steps[1].earned
    assert second.audits is not None and second.audits.spent > 0 == first.audits.spent


async def test_peers__beginning_of_a_story__convict_is_shown_and_pay_is_that_of_lines(
    world: World,
) -> None:
    story, bob = await begin_story(world), account_of("bob")
    async with sdk(world) as client:
        before = await client.call(GET_PEERS, job=story.job)
        await story.work(2)
        early = await check_seats(story, client)
        seen = set[str]()
        for _ in range(7):
            await story.idle()
            seats = (await client.call(GET_PEERS, job=story.job)).seats
            seen |= {seat.state for seat in seats if seat.account == bob}
        late = await check_seats(story, client)
    assert {seat.state for seat in before.seats} == {"expected"}
    assert seen >= {"convicted", "suspended"} and late[bob].forfeited > 0
    assert sum(seat.units for seat in early.values()) == story.maker.spec.batch.units_per_step
    assert abs(sum(seat.share for seat in early.values()) - 10**6) <= 3
    assert all(seat.tokens_per_second > 0 for seat in early.values())
    assert all(seat.tokens_per_second > 0 for seat in early.values())
