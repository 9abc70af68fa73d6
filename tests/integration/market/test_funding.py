"""How a draft is funded: by its permit, or by its poster himself."""

import pytest

from contracts.terms.amounts import BaseUnits
from contracts.terms.escrow_messages import Close
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from market.domain.jobs import JobState
from tests.support.history import START
from tests.support.market_world import World, market_spec


async def opened(world: World, spec: JobSpec) -> None:
    """The poster opens its job on chain, before the market hears of it."""
    world.chain.give_tokens(spec.poster, spec.budget)
    world.chain.open_as_poster(spec.header())
    await world.sync()


async def test_fund_jobs__permit__is_funded(world: World) -> None:
    await world.register()
    spec = market_spec()
    await world.post(spec)

    await world.tick()

    assert (await world.job(spec.job())).state == JobState.FUNDED


async def test_fund_jobs__opened_before_it_was_posted__is_funded(world: World) -> None:
    await world.register()
    spec = market_spec()
    await opened(world, spec)

    await world.post(spec)
    await world.tick()

    assert (await world.job(spec.job())).state == JobState.FUNDED


async def test_fund_jobs__opened_and_closed_before_it_was_posted__is_closed(world: World) -> None:
    await world.register()
    spec = market_spec()
    await opened(world, spec)
    world.chain.order(Close(job=spec.job(), by=world.by))
    await world.sync()

    await world.post(spec)
    await world.tick()

    assert (await world.job(spec.job())).state == JobState.CLOSED


async def test_fund_jobs__permit_is_over__fails_and_says_why(world: World) -> None:
    await world.register()
    spec = market_spec(open_by=UnixSeconds(START + 20))
    await world.post(spec)
    world.wait(21)

    await world.tick()

    row = await world.job(spec.job())
    assert row.state == JobState.FAILED
    assert row.failure is not None and "NotInTime" in row.failure


async def test_fund_jobs__a_round_of_drafts_without_tokens__hold_up_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("market.service.fund_jobs.MAX_JOBS_A_ROUND", 3)
    await world.register()
    for salt in range(100, 103):
        spec = market_spec(salt=salt)
        await world.post(spec)
        world.chain.state.tokens[spec.poster] = 0
    world.wait(1)
    honest = market_spec(salt=999)
    await world.post(honest)
    world.chain.state.tokens[honest.poster] = 0

    await world.tick()
    world.chain.give_tokens(honest.poster, BaseUnits(honest.budget))
    await world.tick()

    assert (await world.job(honest.job())).state == JobState.FUNDED
