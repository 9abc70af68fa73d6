"""An outside auditor's stake is reserved for a job before the job's list names it."""

from collections.abc import Callable
from typing import Any

import pytest

from contracts.keys.wallet import Wallet
from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.errors import BadSignature, Conflict, NotFound
from contracts.terms.ids import Digest, JobId, SessionKey
from contracts.terms.moments import UnixSeconds
from market.bodies.offers import AcceptLease
from market.bodies.routes import POST_AUDITOR_BOND, POST_AUDITOR_HEARTBEAT
from market.domain.jobs import JobState
from market.domain.slashing import Conviction
from market.service.audit_bonds import PATIENCE_MILLIS
from market.service.auditors import list_of_job
from market.service.reserve_stakes import reserve_stakes
from market.service.rows import AuditBondRow, AuditorListRow
from market.service.slash import convict
from tests.integration.market.client import sdk
from tests.integration.market.test_auditors import AUDIT, beat
from tests.integration.market.test_slash import check_ledger_is_the_chains, slash_of, wait_and_tick
from tests.support.history import START, make_session, make_wallet
from tests.support.market_world import STAKE, World, bond_accept, market_spec

OUT = make_wallet("out1").account
RESERVED = 1_000_000  # min_stake of the test's job


async def asking(world: World, **changed: Any) -> JobId:
    """A checked job whose one lease is accepted, and that asks who is outside for stake."""
    await world.register()
    await world.offer("ann", 10**11)
    spec = market_spec(audit=AUDIT, **changed)
    await world.post(spec)
    await world.tick()
    (lease,) = await world.beat("ann")
    await world.accept("ann", lease)
    return spec.job()


async def bond_of(world: World, job: JobId, name: str = "out1") -> AuditBondRow:
    async with world.new_work() as work:
        row = await work[AuditBondRow].get(job, make_wallet(name).account)
    assert row is not None
    return row


async def listed(world: World, job: JobId) -> list[str] | None:
    """Names of those on a job's list; None if it is not fixed."""
    names = {make_wallet(name).account: name for name in ("out1", "out2", "out3", "bob")}
    async with world.new_work() as work:
        if await work[AuditorListRow].get(job) is None:
            return None
        _, found = await list_of_job(job, work)
    return sorted(names[each.account] for each in found.auditors)


# ------------------------------------------------------------------------------ what it is for


def _withdraws(world: World, free: BaseUnits) -> None:
    world.chain.unbond(OUT, free)
    world.wait(61)
    world.chain.withdraw(OUT)


def _locks_it_elsewhere(world: World, free: BaseUnits) -> None:
    sham = market_spec(nonce=99)
    world.chain.give_tokens(sham.poster, sham.budget)
    world.chain.open_as_poster(sham, sham.budget)
    promise = AuditBondRow(
        sham.job(), OUT, make_session("sham").key, "", PricePerPflop(1), free, world.now
    )
    world.chain.reserve_as_provider(bond_accept(promise))


@pytest.mark.parametrize("leave", [_withdraws, _locks_it_elsewhere])
async def test_slash__auditor_takes_its_free_stake_away__pays_in_full_from_what_is_reserved(
    world: World, leave: Callable[[World, BaseUnits], None]
) -> None:
    await world.audit("out1")
    job = (await world.start_job(audit=AUDIT)).spec.job()
    assert await listed(world, job) == ["out1"]

    leave(world, (await world.ports.account(OUT)).stake.free)
    evidence = world.show(b"bundle", job)
    finder = make_wallet("finder").account
    conviction = Conviction(evidence, job, OUT, BaseUnits(RESERVED), BaseUnits(0), finder)
    await convict(conviction, world.now, world.now, world.new_work())
    await wait_and_tick(world, 5, times=4)

    slash = await slash_of(world, evidence)
    assert (slash.state, slash.bounty + slash.burned) == ("executed", RESERVED)
    assert await world.ports.slashable(job, OUT) == 0
    await check_ledger_is_the_chains(world, OUT)


# ------------------------------------------------------------------------------------ who is listed


async def test_fix_auditors__one_never_reserves__is_left_out_after_the_patience_and_no_later(
    world: World,
) -> None:
    await world.audit("out1")
    await world.audit("out2")
    job = await asking(world)
    asked_at = (await bond_of(world, job, "out2")).asked_at
    await world.bond("out1")
    await world.tick()
    early = await listed(world, job)

    world.wait((asked_at + PATIENCE_MILLIS - world.now) // 1000 + 1)
    await world.tick()

    assert early is None
    assert await listed(world, job) == ["out1"]
    assert (await bond_of(world, job, "out2")).state == "refused"


async def test_fix_auditors__all_have_reserved__is_fixed_in_the_round_that_matches_the_job(
    world: World,
) -> None:
    for name in ("out1", "out2"):
        await world.audit(name)
    job = await asking(world)
    for name in ("out1", "out2"):
        await world.bond(name)

    await world.tick()

    assert await listed(world, job) == ["out1", "out2"]
    assert (await world.ports.account(OUT)).stake.reserved == RESERVED


async def test_fix_auditors__stake_is_gone_when_it_is_relayed__is_refused_and_not_waited_for(
    world: World,
) -> None:
    await world.audit("out1")
    job = await asking(world)
    await world.bond("out1")
    world.chain.unbond(OUT, STAKE)

    await world.tick()

    assert await listed(world, job) == []
    assert (await bond_of(world, job)).state == "refused"


@pytest.mark.parametrize("is_accepted", [False, True])
async def test_reserve_stakes__somebody_else_relayed_it__counts_as_reserved(
    world: World, is_accepted: bool
) -> None:
    await world.audit("out1")
    job = await asking(world)
    if is_accepted:
        await world.bond("out1")

    world.chain.reserve_as_provider(bond_accept(await bond_of(world, job)))
    await reserve_stakes(world.now, world.new_work(), world.ports)
    await world.tick()

    assert await listed(world, job) == ["out1"]
    assert (await world.ports.account(OUT)).stake.reserved == RESERVED


async def test_reserve_stakes__killed_after_each_step__reserves_once(world: World) -> None:
    await world.audit("out1")
    job = await asking(world)
    (asked,) = await world.bond("out1")
    signed = make_wallet("out1").sign(bond_accept(asked), world.domain).encoded()

    async with sdk(world) as client:
        again = await client.call(POST_AUDITOR_BOND, AcceptLease(signed=signed), account=OUT)
        for _ in range(2):
            await reserve_stakes(world.now, world.new_work(), world.ports)
        await world.tick()
        late = await client.call(POST_AUDITOR_BOND, AcceptLease(signed=signed), account=OUT)

    assert (again.state, late.state) == ("accepted", "reserved")
    assert (await world.ports.account(OUT)).stake.reserved == RESERVED
    assert await listed(world, job) == ["out1"]


async def test_sync_chain__reservation_is_forgotten__is_sent_again_as_that_of_a_lease(
    world: World,
) -> None:
    await world.audit("out1")
    job = await asking(world)
    await world.bond("out1")
    await world.tick()

    world.chain.forget(2)
    await wait_and_tick(world, 5, times=2)

    assert await listed(world, job) == ["out1"]
    assert (await world.ports.account(OUT)).stake.reserved == RESERVED
    await check_ledger_is_the_chains(world, OUT)


# ---------------------------------------------------------------------------------- what ends it


@pytest.mark.parametrize("is_late", [False, True])
async def test_release_stakes__job_is_refunded__frees_the_bond_whether_listed_or_not(
    world: World, is_late: bool
) -> None:
    await world.audit("out1")
    job = await asking(world, deadline=UnixSeconds(START + 200))
    if not is_late:
        await world.bond("out1")
    else:
        world.wait(PATIENCE_MILLIS // 1000 + 1)
        await world.tick()
        world.chain.reserve_as_provider(bond_accept(await bond_of(world, job)))
    await world.tick()
    held = (await world.ports.account(OUT)).stake.reserved
    assert await listed(world, job) == ([] if is_late else ["out1"])

    world.wait(200)
    await wait_and_tick(world, 6, times=25)

    assert (await world.job(job)).state == JobState.REFUNDED
    assert held == RESERVED and (await world.ports.account(OUT)).stake.free == STAKE
    assert (await bond_of(world, job)).state == "released"
    await check_ledger_is_the_chains(world, OUT)


# ------------------------------------------------------------------------------------ over HTTP


async def test_heartbeat_auditor__asked__is_told_job_price_and_stake_until_it_has_answered(
    world: World,
) -> None:
    await world.audit("out1")
    job = await asking(world)
    async with sdk(world) as client:
        first = await client.call(POST_AUDITOR_HEARTBEAT, beat(world, "out1"), account=OUT)
        await world.bond("out1")
        after = await client.call(POST_AUDITOR_HEARTBEAT, beat(world, "out1"), account=OUT)

    assert [(each.job, each.price, each.stake) for each in first.asked] == [
        (job, AUDIT.price, RESERVED)
    ]
    assert after.asked == () and first.jobs == after.jobs == ()


async def test_accept_bond__what_was_not_asked__is_refused(world: World) -> None:
    await world.audit("out1")
    job = await asking(world)
    bond = await bond_of(world, job)
    ours = make_wallet("out1")

    def signed(by: Wallet = ours, **changed: object) -> AcceptLease:
        said = bond_accept(bond).model_copy(update=changed)
        return AcceptLease(signed=by.sign(said, world.domain).encoded())

    async with sdk(world) as client:
        for changed in (
            {"stake": BaseUnits(RESERVED - 1)},
            {"price": PricePerPflop(AUDIT.price + 1)},
            {"offer": Digest(b"o" * 32)},
            {"session_key": SessionKey(make_session("another").key)},
            {"device_class": "cpu"},
        ):
            with pytest.raises(Conflict):
                await client.call(POST_AUDITOR_BOND, signed(**changed), account=OUT)
        with pytest.raises(BadSignature):
            await client.call(POST_AUDITOR_BOND, signed(by=make_wallet("out2")), account=OUT)
        with pytest.raises(NotFound):
            await client.call(POST_AUDITOR_BOND, signed(job=JobId(b"j" * 32)), account=OUT)
        with pytest.raises(NotFound):
            await client.call(POST_AUDITOR_BOND, signed(), account=make_wallet("out2").account)
        world.wait(PATIENCE_MILLIS // 1000 + 1)
        await world.tick()
        with pytest.raises(Conflict):
            await client.call(POST_AUDITOR_BOND, signed(), account=OUT)

    assert await listed(world, job) == []
