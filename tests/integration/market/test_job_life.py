"""A job from offer to refund through every use case."""

from contracts.terms.amounts import BaseUnits
from market.domain.jobs import JobState
from market.service.reconcile import Booked
from market.service.rows import BatchRow, EpochRow, LeaseRow
from market.service.settle_epoch import load_settlement
from market.service.show_jobs import job_view
from tests.support.market_world import World


async def run_to_end(world: World) -> None:
    for _ in range(12):
        world.wait(6)
        await world.tick()


async def test_job__one_provider_trains_it__everything_is_paid_and_refunded(world: World) -> None:
    maker = await world.start_job()
    job, provider = maker.spec.job(), maker.members[0].wallet.account

    assert (await world.job(job)).state == JobState.MATCHED
    for step in range(1, 7):
        maker.seal_step(last=step == 6)
        await world.send(maker)
        world.wait(8)
        await world.tick()
    assert (await world.job(job)).state in (JobState.FINISHED, JobState.CLOSED)
    await run_to_end(world)
    async with world.new_work() as work:
        settlement = await load_settlement(work)
        epochs = await work[EpochRow].where()
        batches = await work[BatchRow].where()
    owed = settlement.claim_proof(provider)[0].cumulative
    world.chain.claim(provider, owed)
    await world.tick()

    row = await world.job(job)
    async with world.new_work() as work:
        view = await job_view(row, work, Booked())
    earned = maker.seals[-1].seal.earned
    assert row.state == JobState.REFUNDED
    assert len(epochs) >= 2 and all(epoch.state == "final" for epoch in epochs)
    assert all(batch.block and batch.coin for batch in batches)
    assert view.paid == view.earned == view.vested == view.debited == earned == owed > 0
    assert view.escrowed == maker.spec.budget
    assert BaseUnits(view.paid + view.refunded) == view.escrowed
    assert view.reconciled
    async with world.new_work() as work:
        (lease,) = await work[LeaseRow].where(job=job)
    assert (lease.state, lease.stake_state) == ("ended", "released")
