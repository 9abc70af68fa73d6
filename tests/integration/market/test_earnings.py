"""Lines of pay: they sum to what seal and escrow say, and each that waits says why."""

from collections import Counter

import pytest

from contracts.terms.errors import Malformed, NotFound
from contracts.terms.ids import Address, JobId
from contracts.terms.moments import UnixSeconds
from market.bodies.earnings import EarningView
from market.bodies.routes import GET_ACCOUNT, GET_EARNINGS
from market.service.claims import claim_job
from market.service.coding import decode_pay
from market.service.rows import LimitRow, SealRow
from tallystick.sdk.client import MarketClient
from tests.integration.market.client import sdk
from tests.support.history import make_wallet
from tests.support.market_story import OUTSIDE, WORKERS, Story, begin_story
from tests.support.market_world import World

PEOPLE = (*WORKERS, *OUTSIDE)
STATES = ("waiting", "frozen", "forfeited", "vested", "over_limit", "claimed")
DONE = ("claimed", "forfeited", "uncounted")


def account_of(name: str) -> Address:
    return make_wallet(name).account


async def lines_of(client: MarketClient, story: Story, name: str) -> list[EarningView]:
    return list((await client.whole(GET_EARNINGS, account=account_of(name), job=story.job)).lines)


async def check_sums(story: Story, client: MarketClient, codes: set[str]) -> Counter[str]:
    """Lines, sums, seal and escrow say the same of everybody; how many base units are where.

    Notes in `codes` what lines wait for.
    """
    async with story.world.new_work() as work:
        seal = await work[SealRow].get(story.job, story.maker.record.step)
        limits = {row.account: row for row in await work[LimitRow].where(job=story.job)}
    assert seal is not None
    leaves = {leaf.account: leaf for leaf in decode_pay(seal.pay)}
    totals: Counter[str] = Counter()
    for name in PEOPLE:
        account, lines = account_of(name), await lines_of(client, story, name)
        view = await client.call(GET_EARNINGS, account=account, job=story.job, limit=1)
        sums = Counter(
            {state: sum(getattr(line.parts, state) for line in lines) for state in STATES}
        )
        assert {state: getattr(view.parts, state) for state in STATES} == dict(sums)
        assert sum(line.amount for line in lines) == sums.total()
        assert view.num_lines == len(lines)
        leaf, limit = leaves.get(account), limits.get(account)
        assert sums.total() == (0 if leaf is None else leaf.earned)
        resolved = sums["claimed"] + sums["vested"] + sums["over_limit"]
        assert resolved == (0 if leaf is None else leaf.vested)
        assert sums["claimed"] == (0 if limit is None else limit.claimed)
        assert sums["claimed"] + sums["vested"] <= (0 if limit is None else limit.limit)
        for line in lines:
            check_line(line)
        codes |= {line.waits_for.code for line in lines if line.waits_for}
        totals += sums
    assert totals.total() == seal.earned
    return totals


def check_line(line: EarningView) -> None:
    """Its parts are its amount; it has a reason just while it waits, or if it is lost."""
    assert sum(getattr(line.parts, state) for state in STATES) == line.amount
    waits = line.state not in DONE and (line.amount > 0 or line.vested is None)
    is_lost = line.state == "forfeited"
    assert (line.waits_for is not None) == (waits or is_lost)
    assert not is_lost or (line.waits_for and line.waits_for.sentence.startswith("lost: "))
    assert line.seal is not None
    assert sum(part.amount for part in line.claims) == line.parts.claimed


async def tell(story: Story) -> tuple[Counter[str], Counter[str], set[str]]:
    """The whole story, with sums checked at every turn.

    Returns:
        How much was seen where in all checks, and in the last one; what lines waited for.
    """
    seen, codes = Counter[str](), set[str]()
    async with sdk(story.world) as client:
        for turn in range(9):
            await (story.work() if turn < 4 else story.idle())
            seen += await check_sums(story, client, codes)
        await claim(story, client, "ann")
        await story.clear_up()
        for _ in range(20):
            await story.pass_time(3)
            seen += await check_sums(story, client, codes)
        for name in PEOPLE:
            await claim(story, client, name)
        last = await check_sums(story, client, codes)
    return seen + last, last, codes


@pytest.mark.nightly
@pytest.mark.parametrize("variant", [{}, {"salt": 4, "vesting_window": 4}, {"salt": 3}])
async def test_earnings__story_of_a_checked_job__sums_are_those_of_seal_and_escrow(
    world: World, variant: dict[str, int]
) -> None:
    story = await begin_story(world, **variant)
    seen, last, codes = await tell(story)
    assert all(seen[each] for each in ("waiting", "frozen", "forfeited", "vested", "claimed")), seen
    assert last["forfeited"] + last["claimed"] == last.total()
    assert codes >= {"draws", "verdict", "report", "audit", "claim"}, codes


async def test_earnings__vested_above_the_limit__waits_for_a_grant_until_the_account_has_quit(
    world: World,
) -> None:
    maker = await world.start_job()
    job, account = maker.spec.job(), account_of("ann")
    await world.seal(maker, 5)
    vested = maker.seals[-1].seal.vested
    await world.grant(job, ann=vested // 2)
    async with sdk(world) as client:
        working = await client.call(GET_EARNINGS, account=account, job=job)
        await world.quit("ann", job, vested)
        world.wait(3)
        await world.tick()
        gone = await client.call(GET_EARNINGS, account=account, job=job)
    codes = [
        {
            line.waits_for.code
            for line in page.lines
            if line.state == "over_limit" and line.waits_for
        }
        for page in (working, gone)
    ]
    assert codes == [{"grant"}, {"ended"}]
    for page in (working, gone):
        payable = page.parts.vested + page.parts.claimed
        assert (payable, page.parts.over_limit) == (vested // 2, vested - vested // 2)


async def claim(story: Story, client: MarketClient, name: str) -> None:
    """Claim what is due to somebody."""
    world, account = story.world, account_of(name)
    if (await client.call(GET_ACCOUNT, account=account)).due:
        await claim_job(story.job, world.now, world.new_work(), world.ports, [account])
        await world.sync()


async def test_earnings__pages_over_two_jobs__every_line_once_and_sums_of_both(
    world: World,
) -> None:
    story = await begin_story(world)
    await story.work(3)
    other = await world.start_job("dan", salt=2)
    await world.seal(other, 4)
    async with sdk(world) as client:
        for name in ("ann", "dan"):
            whole = list((await client.whole(GET_EARNINGS, account=account_of(name))).lines)
            pages: list[EarningView] = []
            after = None
            while True:
                page = await client.call(
                    GET_EARNINGS, account=account_of(name), after=after, limit=2
                )
                pages += page.lines
                if (after := page.next) is None:
                    break
            assert pages == whole and len({line.cursor for line in whole}) == len(whole) > 2
            assert page.parts.frozen is None and page.num_lines is None
            view = await client.call(GET_ACCOUNT, account=account_of(name))
            parts = page.parts
            resolved = parts.vested + parts.over_limit + parts.claimed
            assert parts.waiting + resolved == view.earned and resolved == view.vested


async def test_earnings__job_that_failed_before_its_last_seal__says_that_a_seal_is_missing(
    world: World,
) -> None:
    maker = await world.start_job(deadline=UnixSeconds(world.chain.now + 100))
    await world.seal(maker, 4)
    while (await world.job(maker.spec.job())).state == "running":
        world.wait(102)
        await world.tick()
    async with sdk(world) as client:
        page = await client.call(GET_EARNINGS, account=account_of("ann"), job=maker.spec.job())
    waits = {line.waits_for.code for line in page.lines if line.waits_for}
    assert "seal" in waits and not page.parts.frozen
    assert page.parts.waiting == maker.seals[-1].seal.earned - maker.seals[-1].seal.vested


async def test_earnings__cursor_of_nothing__is_refused(world: World) -> None:
    maker = await world.start_job()
    await world.seal(maker)
    account, job = account_of("ann"), maker.spec.job()
    async with sdk(world) as client:
        for after in ("zz", "00:1", f"{'00' * 32}:1", f"{job.hex()}:-1"):
            with pytest.raises(Malformed):
                await client.call(GET_EARNINGS, account=account, after=after)
        with pytest.raises(Malformed):
            await client.call(GET_EARNINGS, account=account, job=job, after=f"{'00' * 32}:1")
        with pytest.raises(NotFound):
            await client.call(GET_EARNINGS, account=account, job=JobId(bytes(32)))
