"""How a draft is funded: by its permit, or by what its poster deposited himself."""

import pytest

from contracts.terms.amounts import BaseUnits, format_tokens
from contracts.terms.messages import JobSpec
from market.domain.jobs import JobState
from tests.support.market_world import World, market_spec


async def opened(world: World, spec: JobSpec, amount: int) -> None:
    """The poster opens its job on chain, before the market hears of it."""
    world.chain.give_tokens(spec.poster, amount)
    world.chain.open_as_poster(spec, amount)
    await world.sync()


async def test_fund_jobs__opened_with_its_budget_before_it_was_posted__is_funded(
    world: World,
) -> None:
    await world.register()
    spec = market_spec()
    await opened(world, spec, spec.budget)

    await world.post(spec)
    await world.tick()

    assert (await world.job(spec.job())).state == JobState.FUNDED


async def test_sync__opened_with_less_than_its_budget__is_no_funded_job(world: World) -> None:
    await world.register()
    spec = market_spec()
    await world.post(spec)
    world.chain.open_as_poster(spec, spec.budget - 1)

    await world.sync()
    before = (await world.job(spec.job())).state
    world.chain.top_up(spec.job(), spec.poster, 1)
    await world.sync()

    assert before == JobState.DRAFT
    assert (await world.job(spec.job())).state == JobState.FUNDED


async def test_fund_jobs__opened_with_less_than_its_budget__fails_and_says_why(
    world: World,
) -> None:
    await world.register()
    spec = market_spec()
    await world.post(spec)
    world.chain.open_as_poster(spec, 1)
    await world.offer("ann", 10**11)

    await world.tick()

    row = await world.job(spec.job())
    assert row.state == JobState.FAILED
    assert (
        row.failure is not None
        and f"0.000001 of {format_tokens(spec.budget)} tokens" in row.failure
    )
    assert await world.beat("ann") == ()


async def test_fund_jobs__a_round_of_drafts_opened_with_less__hold_up_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("market.service.fund_jobs.MAX_JOBS_A_ROUND", 3)
    await world.register()
    for nonce in range(100, 103):
        spec = market_spec(nonce=nonce)
        await opened(world, spec, BaseUnits(1))
        await world.post(spec)
    world.wait(1)
    honest = market_spec(nonce=999)
    await world.post(honest)

    await world.tick()
    await world.tick()

    assert (await world.job(honest.job())).state == JobState.FUNDED
