"""A job whose coordinator is gone for good: one seal closes it, is paid by, and is refunded by."""

import pytest

from contracts.terms.errors import Conflict
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixSeconds
from market.domain.jobs import JobState
from market.service.close_jobs import close_jobs
from market.service.pass_time import pass_deadlines
from market.service.ports import CloseProof
from market.service.rows import DebitRow
from market.service.settle_epoch import load_settlement
from tests.integration.market.client import ON_MEMORY
from tests.support.history import START, JobMaker
from tests.support.market_world import World

DEADLINE = UnixSeconds(START + 60)


async def abandoned(world: World, *, steps: int = 3) -> JobMaker:
    """A job with a few seals that are anchored, and no more to come."""
    maker = await world.start_job(deadline=DEADLINE)
    for _ in range(steps):
        maker.seal_step()
    await world.send(maker)
    await world.tick()
    return maker


async def until_over(world: World, job: JobId) -> None:
    for _ in range(24):
        world.wait(6)
        await world.tick()
    assert (await world.job(job)).state == JobState.REFUNDED


async def paid(world: World, maker: JobMaker) -> int:
    """What the job has paid; its provider is the one who gets it."""
    async with world.new_work() as work:
        settlement = await load_settlement(work)
    return settlement.debited(maker.spec.job())


def proof_of(maker: JobMaker, number: int) -> CloseProof:
    """A seal of the job as somebody shows it."""
    derived = maker.seals[number]
    return CloseProof(maker.coordinator.sign(derived.seal, maker.domain), derived.pay)


async def test_close__deadline_passed_without_a_last_seal__newest_seal_is_paid_with_what_waits(
    world: World,
) -> None:
    maker = await abandoned(world)
    job, seal = maker.spec.job(), maker.seals[-1].seal

    await until_over(world, job)

    current = await world.ports.job(job)
    assert (current.seals, current.earned, current.due) == (seal.step + 1, seal.earned, seal.earned)
    assert await paid(world, maker) == seal.earned > seal.vested
    assert (await world.job(job)).settled
    async with world.new_work() as work:
        debits = await work[DebitRow].where(job=job, signed=False)
    assert {debit.seal for debit in debits} == {seal.digest()}


async def test_close__newest_seal_is_not_anchored_yet__waits_for_it(world: World) -> None:
    maker = await abandoned(world)
    known = len(maker.items)
    world.wait(61)
    maker.seal_step()
    await world.send(maker, known)
    await pass_deadlines(world.now, world.new_work())

    early = await close_jobs(world.now, world.new_work(), world.ports)
    await until_over(world, maker.spec.job())

    assert early == []
    assert (await world.ports.job(maker.spec.job())).seals == 5
    assert await paid(world, maker) == maker.seals[-1].seal.earned


async def test_close__somebody_shows_an_older_seal__is_answered_with_the_newest(
    world: World,
) -> None:
    maker = await abandoned(world)
    world.wait(61)
    await world.ports.close(maker.spec, proof_of(maker, 0))

    await until_over(world, maker.spec.job())

    assert (await world.ports.job(maker.spec.job())).seals == 4
    assert await paid(world, maker) == maker.seals[-1].seal.earned


async def test_close__by_a_seal_that_nobody_sent_us__pays_when_it_comes_and_others_meanwhile(
    world: World,
) -> None:
    maker = await abandoned(world)
    other = await world.start_job("bob", nonce=2)
    known = len(maker.items)
    maker.seal_step()
    world.wait(61)
    await world.ports.close(maker.spec, proof_of(maker, -1))
    for _ in range(3):
        other.seal_step()
    await world.send(other)
    for _ in range(5):
        world.wait(6)
        await world.tick()
    before, of_others = await paid(world, maker), await paid(world, other)

    await world.send(maker, known)
    await until_over(world, maker.spec.job())

    assert before < maker.seals[-2].seal.earned  # what had vested, and no more
    assert of_others == other.seals[-1].seal.vested > 0
    assert await paid(world, maker) == maker.seals[-1].seal.earned


@ON_MEMORY
async def test_close__sealed_after_the_close_was_final__is_refused_and_pays_nothing(
    world: World,
) -> None:
    maker = await abandoned(world)
    for _ in range(14):
        world.wait(6)
        await world.tick()
    shown = maker.seals[-1].seal
    assert (await world.ports.job(maker.spec.job())).state == "closed"
    known = len(maker.items)
    maker.seal_step(last=True)

    with pytest.raises(Conflict, match="closed by an earlier seal"):
        await world.send(maker, known)
    await until_over(world, maker.spec.job())

    assert await paid(world, maker) == shown.earned < maker.seals[-1].seal.earned
