"""How a draft is funded: by its permit, or by its poster himself."""

import pytest

from contracts.terms.amounts import BaseUnits
from contracts.terms.escrow_messages import Close
from contracts.terms.moments import UnixSeconds
from market.domain.jobs import JobState
from tests.support.history import START
from tests.support.market_world import World, market_spec


@pytest.mark.parametrize(
    ("before", "state"),
    [("", "funded"), ("opened", "funded"), ("opened and closed", "closed")],
    ids=["by its permit", "opened before", "opened and closed before"],
)
async def test_fund_jobs__posted__is_as_the_chain_says(
    world: World, before: str, state: JobState
) -> None:
    await world.register()
    spec = market_spec()
    if before:  # by its poster, before the market heard of the job
        world.chain.give_tokens(spec.poster, spec.budget)
        world.chain.open_as_poster(spec.header())
        await world.sync()
    if "closed" in before:
        world.chain.order(Close(job=spec.job(), by=world.by))
        await world.sync()

    await world.post(spec)
    await world.tick()

    assert (await world.job(spec.job())).state == state


@pytest.mark.parametrize("why", ["NotInTime", "InsufficientBalance"])
async def test_fund_jobs__permit_is_over_or_its_poster_has_no_tokens__fails_and_says_why(
    world: World, why: str
) -> None:
    await world.register()
    spec = market_spec(open_by=UnixSeconds(START + 20))
    await world.post(spec)
    if why == "NotInTime":
        world.wait(21)
    else:
        world.chain.state.tokens[spec.poster] = 0

    await world.tick()

    row = await world.job(spec.job())
    assert row.state == JobState.FAILED
    assert row.failure is not None and why in row.failure


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
