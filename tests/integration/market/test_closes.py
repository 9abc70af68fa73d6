"""Closes that no `last` seal brings: one seal closes the job, is paid by, and is refunded by."""

import pytest

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Conflict
from contracts.terms.ids import JobId
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from market.domain.jobs import JobState
from market.service.close_jobs import close_jobs
from market.service.pass_time import pass_deadlines
from market.service.ports import CloseProof, JobNow
from market.service.reputation import reputations_of
from market.service.rows import DebitRow, LeaseRow
from market.service.settle_epoch import load_settlement
from tests.support.history import START, JobMaker, make_wallet
from tests.support.market_world import World, market_spec

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
        row = await world.job(job)
        if row.state == JobState.REFUNDED and row.settled:
            break
    assert row.state == JobState.REFUNDED


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
    await world.ports.close(maker.spec, proof_of(maker, 0), kept_open=0)

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
    await world.ports.close(maker.spec, proof_of(maker, -1), kept_open=0)
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


async def waiting(world: World, **changed: object) -> JobSpec:
    """A job that is funded and has no leases."""
    await world.register()
    spec = market_spec(**changed)
    await world.post(spec)
    await world.tick()
    return spec


async def leases_of(world: World, job: JobId) -> list[str]:
    async with world.new_work() as work:
        return [lease.state for lease in await work[LeaseRow].where(job=job)]


async def missed(world: World, name: str) -> int:
    account = make_wallet(name).account
    work = world.new_work()
    async with work:
        return (await reputations_of([account], work))[account].missed


async def test_close__poster_closes_a_job_that_waits__nobody_is_leased_and_all_goes_back(
    world: World,
) -> None:
    spec = await waiting(world)

    world.chain.close_as_poster(spec)
    await world.offer("ann", 10**11)
    await until_over(world, spec.job())

    assert await leases_of(world, spec.job()) == []
    assert await missed(world, "ann") == 0
    assert (await world.ports.account(spec.poster)).token == spec.budget


async def test_close__poster_closes_before_a_stake_is_reserved__provider_is_free_and_blameless(
    world: World,
) -> None:
    spec = await waiting(world)
    await world.offer("ann", 10**11)
    await world.clear()
    (lease,) = await world.beat("ann")
    await world.accept("ann", lease)

    world.chain.close_as_poster(spec)
    await world.tick()

    offer = await world.offer_row("ann")
    assert await leases_of(world, spec.job()) == ["lapsed"]
    assert (offer.lease, offer.blocked_until) == (None, 0)
    assert await missed(world, "ann") == 0


async def test_close__poster_closes_a_matched_job_that_works__is_kept_open_by_its_seal(
    world: World,
) -> None:
    maker = await world.start_job()
    world.chain.close_as_poster(maker.spec)
    await world.tick()
    maker.seal_step()
    await world.send(maker)
    await world.tick()
    known = len(maker.items)
    maker.seal_step(last=True)
    await world.send(maker, known)

    await until_over(world, maker.spec.job())

    assert await paid(world, maker) == maker.seals[-1].seal.earned > 0


async def test_close__kept_open_by_a_seal_that_nobody_sent_us__stops_no_other_job(
    world: World,
) -> None:
    maker = await world.start_job(deadline=DEADLINE)
    maker.seal_step()
    world.chain.close_as_poster(maker.spec)
    await world.ports.answer_close(maker.spec, proof_of(maker, 0), kept_open=0)
    other = await world.start_job("bob", nonce=2, deadline=UnixSeconds(DEADLINE + 1))

    await until_over(world, other.spec.job())

    assert (await world.job(maker.spec.job())).state == JobState.FAILED


async def test_close__undone_by_the_newest_seal_and_again_by_an_older__is_answered_again(
    world: World,
) -> None:
    maker = await abandoned(world)
    job, newest = maker.spec.job(), maker.seals[-1].seal
    world.wait(59)
    await world.ports.close(maker.spec, proof_of(maker, -2), kept_open=0)  # in silence
    await world.tick()
    reopened = await world.ports.job(job)
    world.wait(60)  # so that it ends at the same moment
    await world.ports.close(maker.spec, proof_of(maker, 0), kept_open=reopened.kept_open)

    await until_over(world, job)

    assert (reopened.state, reopened.kept_open) == ("open", newest.step + 1)
    assert (await world.ports.job(job)).seals == newest.step + 1
    assert await paid(world, maker) == newest.earned


async def test_close__forgotten_and_never_sent_again__job_trains_on_and_is_paid(
    world: World,
) -> None:
    maker = await world.start_job()
    world.chain.close_as_poster(maker.spec)
    await world.tick()
    noted = await world.job(maker.spec.job())

    world.chain.forget(1, for_good=True)
    for _ in range(14):
        world.wait(6)
        await world.tick()
    forgotten = await world.job(maker.spec.job())
    maker.seal_step(last=True)
    await world.send(maker)
    await until_over(world, maker.spec.job())

    assert noted.ends_at is not None
    assert (forgotten.due, forgotten.ends_at, forgotten.refundable_at) == (None, None, None)
    assert await paid(world, maker) == maker.seals[-1].seal.earned > 0


@pytest.mark.parametrize("more", [1, 10**9], ids=["less than it earned", "more than it earned"])
async def test_close__by_another_last_seal_of_the_same_step__pays_what_both_vest_and_others_go_on(
    world: World, more: int
) -> None:
    maker = await abandoned(world)
    other = await world.start_job("bob", nonce=2)
    known, debited = len(maker.items), await paid(world, maker)
    maker.seal_step(last=True)
    shown = proof_of(maker, -1)
    seal = shown.seal.message.model_copy(update={"vested": BaseUnits(debited + more)})
    signed = maker.coordinator.sign(seal, maker.domain)
    await world.ports.close(maker.spec, CloseProof(signed, shown.pay), kept_open=0)
    for _ in range(3):
        world.wait(6)
        await world.tick()
    await world.send(maker, known)
    for _ in range(3):
        other.seal_step()
    await world.send(other)

    for _ in range(8):
        world.wait(6)
        await world.tick()

    assert await paid(world, maker) == min(debited + more, maker.seals[-1].seal.vested)
    assert await paid(world, other) == other.seals[-1].seal.vested > 0


async def test_close__by_a_last_seal_that_vests_more_than_the_escrow__pays_what_was_earned(
    world: World,
) -> None:
    maker = await abandoned(world)
    newest = proof_of(maker, -1)
    changes = {"last": True, "vested": BaseUnits(10**18)}
    signed = maker.coordinator.sign(newest.seal.message.model_copy(update=changes), maker.domain)
    await world.ports.close(maker.spec, CloseProof(signed, newest.pay), kept_open=0)

    await until_over(world, maker.spec.job())

    assert await paid(world, maker) == newest.seal.message.earned
    assert (await world.job(maker.spec.job())).settled


async def test_close__by_a_seal_that_earned_more_than_the_escrow__is_over_and_others_are_paid(
    world: World,
) -> None:
    maker = await abandoned(world)
    other = await world.start_job("bob", nonce=2)
    newest = proof_of(maker, -1)
    changes = {"last": True, "earned": BaseUnits(10**18), "vested": BaseUnits(10**18)}
    signed = maker.coordinator.sign(newest.seal.message.model_copy(update=changes), maker.domain)
    await world.ports.close(maker.spec, CloseProof(signed, newest.pay), kept_open=0)
    for _ in range(3):
        other.seal_step()
    await world.send(other)

    await until_over(world, maker.spec.job())

    assert await paid(world, other) == other.seals[-1].seal.vested > 0


@pytest.mark.parametrize("is_paid_late", [False, True])
async def test_close__draft_failed_without_a_deposit__chain_is_not_asked_until_there_is_one(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_paid_late: bool
) -> None:
    await world.register()
    spec = market_spec(deadline=DEADLINE)
    await world.post(spec)
    world.chain.give_tokens(spec.poster, BaseUnits(-spec.budget))  # it spends them elsewhere
    await world.tick()
    await world.tick()
    failed, asked = await world.job(spec.job()), list[JobId]()
    if is_paid_late:
        permit = await world.give_tokens(spec, "poster")
        signed = make_wallet("poster").sign(spec, world.domain)
        await world.ports.open_job(signed, permit.deadline, permit.signature)
        await until_over(world, spec.job())
        assert failed.state == JobState.FAILED
        return

    async def noted(job: JobId) -> JobNow:
        asked.append(job)
        return await plain(job)

    plain = world.ports.job
    monkeypatch.setattr(world.ports, "job", noted)
    for _ in range(5):
        world.wait(5)
        await world.tick()

    assert (failed.state, asked) == (JobState.FAILED, [])


async def test_close__chain_refuses_one__jobs_behind_it_are_closed_and_it_is_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    started = [
        await world.start_job(name, nonce=nonce, deadline=DEADLINE)
        for nonce, name in enumerate(("ann", "bob"))
    ]
    unsent, behind = sorted(started, key=lambda maker: maker.spec.job())
    for maker in started:
        for _ in range(3):
            maker.seal_step()
    await world.send(behind)
    await world.ports.close(unsent.spec, proof_of(unsent, -2), kept_open=0)  # in silence
    await world.ports.answer_close(unsent.spec, proof_of(unsent, -1), kept_open=0)

    await until_over(world, behind.spec.job())

    assert await paid(world, behind) == behind.seals[-1].seal.earned
    assert f"{unsent.spec.job().hex()} is not closed: contract_refused: HasSeals" in caplog.text
