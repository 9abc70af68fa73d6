"""An outside auditor bonds in a job before the job's list names it."""

from collections.abc import Sequence

import pytest

from contracts.keys.wallet import Wallet
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import BadSignature, Conflict, NotFound
from contracts.terms.escrow_messages import Bond
from contracts.terms.ids import Address, JobId
from market.bodies.offers import PostBond
from market.bodies.routes import POST_AUDITOR_BOND, POST_AUDITOR_HEARTBEAT
from market.service.auditors import PATIENCE_MILLIS, fix_auditors, list_of_job
from market.service.orders import relay_orders
from market.service.rows import AuditBondRow, AuditorListRow, LimitRow
from tests.integration.market.client import sdk
from tests.integration.market.test_auditors import AUDIT
from tests.support.history import make_wallet
from tests.support.market_world import STAKE, World, market_spec

ANN, OUT, OUT2 = (make_wallet(name).account for name in ("ann", "out1", "out2"))
BONDED = 1_000_000  # min_stake of the test's job


async def asking(world: World, *outside: str) -> JobId:
    """A checked job whose one lease is accepted, and that asks those outside for a bond."""
    for name in outside:
        await world.audit(name)
    await world.register()
    await world.offer("ann", 10**11)
    spec = market_spec(audit=AUDIT)
    await world.post(spec)
    await world.tick()
    (lease,) = await world.beat("ann")
    await world.accept("ann", lease)
    return spec.job()


async def bond_of(world: World, job: JobId, name: str = "out1") -> AuditBondRow:
    return await world.row(AuditBondRow, job, make_wallet(name).account)


async def staked(world: World, job: JobId) -> int:
    return sum(row.stake for row in await world.rows(LimitRow, job=job, account=OUT))


async def listed(world: World, job: JobId) -> dict[str, int] | None:
    """Names and stakes of those on a job's list; None if it is not fixed."""
    names = {make_wallet(name).account: name for name in ("out1", "out2")}
    async with world.new_work() as work:
        if await work[AuditorListRow].get(job) is None:
            return None
        _, found = await list_of_job(job, work)
    return {names[each.account]: each.stake for each in found.auditors}


async def test_fix_auditors__one_never_bonds__is_left_out_after_the_patience_and_no_later(
    world: World,
) -> None:
    job = await asking(world, "out1", "out2")
    asked_at = (await bond_of(world, job, "out2")).asked_at
    await world.bond("out1")
    await world.tick()
    early = await listed(world, job)

    world.wait((asked_at + PATIENCE_MILLIS - world.now) // 1000 + 1)
    await world.tick()

    assert early is None
    assert await listed(world, job) == {"out1": BONDED}
    assert (await bond_of(world, job, "out2")).state == "refused"


async def test_fix_auditors__one_bonds_while_the_chain_is_read__is_listed_by_the_next_round(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await asking(world, "out1", "out2")
    await world.bond("out1")
    await world.tick()
    read = world.chain.channels

    async def overtaken(places: Sequence[tuple[JobId, Address]]) -> object:
        found = await read(places)
        await world.sync()
        return found

    world.chain.order(Bond(job=job, account=OUT2, stake=BaseUnits(BONDED), by=world.by))
    with monkeypatch.context() as patched:
        patched.setattr(world.chain, "channels", overtaken)
        early = await fix_auditors(world.now, world.new_work(), world.ports)
    await world.tick()

    assert early == [] and await listed(world, job) == {"out1": BONDED, "out2": BONDED}


async def test_fix_auditors__balance_is_gone_when_the_bond_is_sent__is_left_out(
    world: World,
) -> None:
    job = await asking(world, "out1")
    await world.bond("out1")
    world.chain.withdraw(OUT, STAKE)
    await world.sync()

    await world.tick()
    world.wait(PATIENCE_MILLIS // 1000 + 1)
    await world.tick()

    assert await listed(world, job) == {}
    assert (await bond_of(world, job)).state == "refused" and not await staked(world, job)


async def test_fix_auditors__bond_is_sent_and_not_confirmed_yet__is_waited_for(
    world: World,
) -> None:
    job = await asking(world, "out1")
    await world.bond("out1")
    world.chain.order(Bond(job=job, account=ANN, stake=BaseUnits(BONDED), by=world.by))
    await world.sync()  # the providers have bonded before; the auditor's bond needs some blocks
    await relay_orders(job, world.now, world.new_work(), world.ports)

    world.wait(PATIENCE_MILLIS // 1000 + 1)
    await world.beat("ann")
    early = await fix_auditors(world.now, world.new_work(), world.ports)
    await world.tick()

    assert early == [] and await listed(world, job) == {"out1": BONDED}


async def test_sync_chain__bond_is_forgotten__is_sent_again(world: World) -> None:
    job = await asking(world, "out1")
    await world.bond("out1")
    await world.tick()

    world.chain.forget(2)
    for _ in range(2):
        world.wait(5)
        await world.tick()

    assert await listed(world, job) == {"out1": BONDED}
    assert await staked(world, job) == BONDED


async def test_heartbeat_auditor__asked__is_told_job_price_and_stake_until_it_has_answered(
    world: World,
) -> None:
    job = await asking(world, "out1")
    async with sdk(world) as client:
        first = await client.call(POST_AUDITOR_HEARTBEAT, world.auditor_beat("out1"), account=OUT)
        await world.bond("out1")
        after = await client.call(POST_AUDITOR_HEARTBEAT, world.auditor_beat("out1"), account=OUT)

    assert [(each.job, each.price, each.stake) for each in first.asked] == [
        (job, AUDIT.price, BONDED)
    ]
    assert after.asked == () and first.jobs == after.jobs == ()


async def test_accept_bond__what_was_not_asked__is_refused(world: World) -> None:
    job = await asking(world, "out1")
    ours = make_wallet("out1")

    def signed(by: Wallet = ours, **changed: object) -> PostBond:
        said = Bond(job=job, account=OUT, stake=BaseUnits(BONDED), by=world.by)
        return PostBond(bond=by.sign(said.model_copy(update=changed), world.domain).encoded())

    async with sdk(world) as client:
        with pytest.raises(Conflict):
            await client.call(POST_AUDITOR_BOND, signed(stake=BaseUnits(BONDED - 1)), account=OUT)
        with pytest.raises(BadSignature):
            await client.call(POST_AUDITOR_BOND, signed(by=make_wallet("out2")), account=OUT)
        with pytest.raises(NotFound):
            await client.call(POST_AUDITOR_BOND, signed(job=JobId(b"j" * 32)), account=OUT)
        with pytest.raises(NotFound):
            await client.call(POST_AUDITOR_BOND, signed(), account=make_wallet("out2").account)
        for _ in range(2):
            first = await client.call(POST_AUDITOR_BOND, signed(), account=OUT)
        await world.tick()
        late = await client.call(POST_AUDITOR_BOND, signed(), account=OUT)

    assert (first.state, late.state) == ("accepted", "bonded")
    assert await listed(world, job) == {"out1": BONDED}
