"""A job from offer to the last token that comes back, through every use case."""

from contracts.terms.amounts import BaseUnits
from market.domain.jobs import JobState
from market.service.rows import (
    BatchRow,
    BudgetRow,
    DueRow,
    FreeMoneyRow,
    LeaseRow,
    LimitRow,
    SealRow,
)
from tests.support.escrow_model import TAIL
from tests.support.market_world import STAKE, World


async def test_job__one_provider_trains_it__is_paid_at_once_and_the_rest_goes_back(
    world: World,
) -> None:
    maker = await world.start_job()
    job, budget = maker.spec.job(), maker.spec.budget
    provider = maker.members[0].wallet.account
    assert (await world.job(job)).state == JobState.MATCHED
    await world.grant(job, ann=budget)

    for step in range(1, 7):
        maker.seal_step(last=step == 6)
        await world.send(maker)
        world.wait(3)
        await world.tick()

    earned, row = maker.seals[-1].seal.earned, await world.job(job)
    async with world.new_work() as work:
        seal, limit = (
            await work[SealRow].get(job, row.step),
            await work[LimitRow].get(job, provider),
        )
        (lease,) = await work[LeaseRow].where(job=job)
    assert (row.state, lease.state) == (JobState.FINISHED, "ended")
    assert seal is not None and limit is not None
    assert limit.claimed == limit.earned == seal.vested == earned > 0  # in the round of its seal

    await world.quit("ann", job, keep=earned)
    await world.close(job)
    await world.tick()
    assert (await world.job(job)).state == JobState.CLOSED
    world.wait(TAIL + 1)
    for _ in range(4):
        await world.tick()
        world.wait(4)

    async with world.new_work() as work:
        after, held = await work[LimitRow].get(job, provider), await work[BudgetRow].get(job)
        free = {each.account: each.amount for each in await work[FreeMoneyRow].where()}
        due, batches = await work[DueRow].where(), await work[BatchRow].where()
    assert after is not None and (after.stake, after.limit) == (0, earned)
    assert held is not None and held.funded == held.committed == earned
    assert free[provider] == STAKE + earned
    assert free[maker.spec.poster] == BaseUnits(budget - earned)
    assert due == [] and all(batch.block and batch.coin for batch in batches)
