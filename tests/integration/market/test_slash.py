"""Stake of who was convicted: announced and burned, dropped, or on its way back."""

import pytest

from contracts.governance.escrow import BURN
from contracts.terms import errors
from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Digest, JobId
from market.bodies.routes import GET_SLASHES, POST_ANSWER
from market.bodies.signing import answer_digest
from market.bodies.slashes import AnswerSlash
from market.service.rows import FreeMoneyRow, LeaseRow, SlashRow
from market.service.slash import announce_slashes, burn_slashes, convict
from tests.integration.market.client import sdk
from tests.support.escrow_model import ANNOUNCE, EXECUTE, TAIL
from tests.support.history import JobMaker, make_wallet
from tests.support.market_world import World

STAKE = 1_000_000  # min_stake of the test's job
ANN = make_wallet("ann").account


async def convicted(
    world: World, maker: JobMaker, evidence: bytes = b"bundle", *, wanted: int = STAKE
) -> SlashRow:
    """A conviction of the job's one provider."""
    job: JobId = maker.spec.job()
    shown = world.show(evidence, job)
    account = maker.members[0].wallet.account
    row = SlashRow(shown, job, account, BaseUnits(wanted), convicted_at=world.now)
    return await convict(row, world.now, world.new_work())


async def announced_slash(world: World) -> tuple[JobMaker, SlashRow]:
    """A job, and the slash of its one provider, which the chain has announced."""
    maker = await world.start_job()
    row = await convicted(world, maker)
    await world.tick()
    return maker, row


async def slash_of(world: World, evidence: Digest) -> SlashRow:
    return await world.row(SlashRow, evidence)


async def wait_and_tick(world: World, seconds: int, *, times: int = 1) -> None:
    for _ in range(times):
        world.wait(seconds)
        await world.tick()


async def forget_from(world: World, event: str) -> None:
    """The chain loses the block of this event, and all later ones."""
    head = (await world.ports.head()).number
    first = next(each.block for each in await world.ports.events(0, head) if each.event == event)
    world.chain.forget(head + 1 - first)


async def test_slash__convicted__is_announced_and_burned_and_its_lease_ends(world: World) -> None:
    maker = await world.start_job()
    row = await convicted(world, maker)

    await world.tick()
    announced = await slash_of(world, row.evidence)
    await wait_and_tick(world, ANNOUNCE - 1)
    early = await slash_of(world, row.evidence)
    await wait_and_tick(world, 1)

    burned, limit = await slash_of(world, row.evidence), await world.limit(maker.spec.job())
    async with world.new_work() as work:
        lost = await work[FreeMoneyRow].get(BURN)
        (lease,) = await work[LeaseRow].where(account=ANN)
    assert (announced.state, announced.amount) == ("announced", STAKE) and announced.announced_by
    assert announced.burns_from == early.burns_from and early.state == "announced"
    assert (burned.state, burned.amount) == ("burned", STAKE) and burned.ended_by
    assert limit.stake == 0 and limit.end and lost is not None and lost.amount == STAKE
    assert lease.state == "ended"


async def test_slash__several_convictions__one_after_the_other_and_the_last_finds_nothing(
    world: World,
) -> None:
    maker = await world.start_job()
    first = await convicted(world, maker, b"1", wanted=STAKE - 1)
    world.beats += 1
    second = await convicted(world, maker, b"2")
    world.beats += 1
    third = await convicted(world, maker, b"3")

    await world.tick()
    waiting = await slash_of(world, second.evidence)
    await wait_and_tick(world, ANNOUNCE, times=5)

    rows = [await slash_of(world, each.evidence) for each in (first, second, third)]
    assert waiting.state == "convicted"
    assert [row.state for row in rows] == ["burned", "burned", "nothing"]
    assert [row.amount for row in rows] == [STAKE - 1, 1, 0]


async def test_slash__canceller_drops_it__is_dropped_and_the_stake_stays(world: World) -> None:
    maker, row = await announced_slash(world)

    world.chain.drop(row.job, ANN)
    await wait_and_tick(world, ANNOUNCE, times=3)

    assert (await slash_of(world, row.evidence)).state == "dropped"
    assert (await world.limit(maker.spec.job())).stake == STAKE


async def test_slash__market_slept_through_its_time__is_announced_again_and_burned(
    world: World,
) -> None:
    _, row = await announced_slash(world)

    world.wait(ANNOUNCE + EXECUTE)
    await world.tick()
    again = await slash_of(world, row.evidence)
    await wait_and_tick(world, ANNOUNCE, times=2)

    assert again.state in ("convicted", "announced")
    assert (await slash_of(world, row.evidence)).state == "burned"


async def test_slash__stake_is_on_its_way_back__has_lapsed(world: World) -> None:
    maker = await world.start_job()
    await world.quit("ann", maker.spec.job(), keep=0)
    await world.tick()
    world.wait(TAIL - ANNOUNCE - EXECUTE)
    row = await convicted(world, maker)

    await world.tick()

    assert (await slash_of(world, row.evidence)).state == "lapsed"


async def test_slash__repeated_at_every_point__happens_once(world: World) -> None:
    row = await convicted(world, await world.start_job())
    for _ in range(6):
        for _ in range(2):
            await announce_slashes(world.now, world.new_work(), world.ports)
            await burn_slashes(world.now, world.new_work(), world.ports)
        await wait_and_tick(world, 3)

    names = [event.event for event in await world.ports.events(0, 10**9)]
    assert (await slash_of(world, row.evidence)).state == "burned"
    assert names.count("SlashAnnounced") == names.count("Burned") == 1


@pytest.mark.parametrize("event", ["SlashAnnounced", "Burned"])
async def test_slash__chain_forgets_it__happens_again(world: World, event: str) -> None:
    maker, row = await announced_slash(world)
    await wait_and_tick(world, ANNOUNCE)
    assert (await slash_of(world, row.evidence)).state == "burned"

    await forget_from(world, event)
    await world.sync()
    await wait_and_tick(world, 1, times=2)
    await wait_and_tick(world, ANNOUNCE, times=2)

    assert (await slash_of(world, row.evidence)).state == "burned"
    assert (await world.limit(maker.spec.job())).stake == 0


async def test_answer__by_its_account__is_shown_beside_it_and_stops_nothing(world: World) -> None:
    _, row = await announced_slash(world)
    answer = world.show(b"my answer", row.job)

    def said(name: str, blob: Digest = answer) -> AnswerSlash:
        signature = make_wallet(name).sign_digest(answer_digest(row.evidence, blob))
        return AnswerSlash(answer=blob, signature=signature)

    async with sdk(world) as client:
        with pytest.raises(errors.BadSignature):
            await client.call(POST_ANSWER, said("mallory"), evidence=row.evidence)
        with pytest.raises(errors.NotFound):
            await client.call(POST_ANSWER, said("ann", Digest(bytes(32))), evidence=row.evidence)
        for _ in range(2):
            shown = await client.call(POST_ANSWER, said("ann"), evidence=row.evidence)
        other = world.show(b"another", row.job)
        with pytest.raises(errors.Conflict):
            await client.call(POST_ANSWER, said("ann", other), evidence=row.evidence)
        await wait_and_tick(world, ANNOUNCE)
        (listed,) = (await client.call(GET_SLASHES, job=row.job)).slashes

    assert (shown.state, shown.answer) == ("announced", answer)
    assert (listed.state, listed.answer) == ("burned", answer)
