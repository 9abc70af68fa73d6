"""Who is outside of a job is fixed before it is opened, and its opening has to say so."""

from dataclasses import replace

import pytest

from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.auditors import AuditorList
from contracts.terms.errors import BadSignature, Conflict, Expired, InsufficientStake, NotFound
from contracts.terms.history import Kept, encode_kept
from contracts.terms.ids import Digest, JobId
from contracts.terms.messages import AuditSpec, JobOpening
from contracts.terms.moments import UnixMillis
from market.bodies.offers import AuditorJobs
from market.bodies.routes import GET_AUDITORS, POST_AUDITOR, POST_AUDITOR_HEARTBEAT
from market.service.accept_lease import accept_lease
from market.service.auditors import HEARD_MILLIS, fix_auditors, list_of_job, register_auditor
from market.service.histories import Histories
from market.service.host_jobs import claim_jobs
from market.service.rows import AuditBondRow, AuditorListRow, JobRow, LeaseRow, MessageRow
from tallystick.sdk.client import MarketClient
from tests.integration.market.client import HOST, client_of, sdk
from tests.support.history import JobMaker, make_session, make_wallet
from tests.support.market_world import STAKE, World, market_spec
from verification.distances.thresholds import shipped_calibration

OUT1 = make_session("audit out1")
AUDIT = AuditSpec(
    floor=50_000,
    sums=100_000,
    repeats=200_000,
    margin=1_250_000,
    detection=990_000,
    deadline=4,
    thresholds=shipped_calibration().digest(),
    price=PricePerPflop(1),
    budget=BaseUnits(4_000_000),
    device_class="",
)


async def fixed(world: World, job: JobId) -> tuple[int, AuditorList]:
    async with world.new_work() as work:
        return await list_of_job(job, work)


async def test_fix_auditors__matched_job__lists_who_has_bonded_is_heard_and_outside(
    world: World,
) -> None:
    keys = {name: await world.audit(name) for name in ("out1", "out2", "ann", "poster")}
    await world.audit("away")
    world.wait(HEARD_MILLIS // 1000 + 1)
    for name in keys:
        keys[name] = await world.audit(name, key=f"{name} again")
    maker = await world.start_job("ann", audit=AUDIT)

    block, listed = await fixed(world, maker.spec.job())
    async with sdk(world) as client:
        shown = AuditorList.decoded((await client.call(GET_AUDITORS, job=maker.spec.job())).encoded)

    wanted = sorted((make_wallet(name).account, 1_000_000, keys[name]) for name in ("out1", "out2"))
    assert [(each.account, each.stake, each.session_key) for each in listed.auditors] == wanted
    assert 0 < block <= (await world.ports.head()).number
    assert shown == listed


async def test_fix_auditors__later_changes__do_not_change_the_list(world: World) -> None:
    await world.audit("out1")
    maker = await world.start_job(audit=AUDIT)
    before = await fixed(world, maker.spec.job())

    await world.audit("out2")
    await world.audit("out1", key="new")
    again = await fix_auditors(world.now, world.new_work(), world.ports)

    assert again == []
    assert await fixed(world, maker.spec.job()) == before


async def test_claim_jobs__checked_job__is_handed_out_with_its_list_and_not_before(
    world: World,
) -> None:
    await world.audit("out1")
    maker = await matched_without_list(world)
    job = maker.spec.job()
    early = await claim_jobs("host", world.now, world.new_work())

    await fix_auditors(world.now, world.new_work(), world.ports)
    block, listed = await fixed(world, job)
    async with client_of(world) as client:
        answered = await client.post("/hosting/claim", headers=HOST)

    (hosted,) = answered.json()["jobs"]
    assert early.jobs == ()
    assert hosted["job"] == job.hex() and hosted["opening_block"] == block
    assert AuditorList.decoded(bytes.fromhex(hosted["auditors"])) == listed


async def matched_without_list(world: World) -> JobMaker:
    """A checked job that has its lease since a moment."""
    maker = await world.start_job(audit=AUDIT)
    async with world.new_work() as work:
        await work[AuditorListRow].remove(maker.spec.job())
        for each in await work[AuditBondRow].where(job=maker.spec.job()):
            await work[AuditBondRow].put(replace(each, listed=None))
    return maker


async def test_store_messages__opening__is_stored_if_it_names_the_list_and_its_block(
    world: World,
) -> None:
    await world.audit("out1")
    maker = await world.start_job(audit=AUDIT)
    block, listed = await fixed(world, maker.spec.job())

    wrong = ((AuditorList(auditors=()), block), (listed, block + 1), (listed, block - 1))
    for said, at in wrong:
        with pytest.raises(Conflict):
            await post_opening(world, maker, said.digest(), at)
    await post_opening(world, maker, listed.digest(), block)

    assert (await world.job(maker.spec.job())).opening_block == block


async def test_store_messages__list_after_the_opening__is_kept_and_makes_the_job_followable(
    world: World,
) -> None:
    await world.audit("out1")
    maker = await world.start_job(audit=AUDIT)
    block, listed = await fixed(world, maker.spec.job())
    await post_opening(world, maker, listed.digest(), block)

    with pytest.raises(Conflict):
        await post(world, maker, AuditorList(auditors=()))
    await post(world, maker, listed)
    await post(world, maker, listed)

    async with world.new_work() as work:
        row = await work[JobRow].get(maker.spec.job())
        assert row is not None
        fresh = Histories(world.domain)
        history = await fresh.load(row.job, row.num_messages, work)
        kinds = [each.kind for each in await work[MessageRow].where(job=row.job)]
    assert history.record is not None and history.record.outside == listed
    assert kinds == ["job_spec.v10", "job_opening.v2", "auditor_list.v1"]


async def test_store_messages__unchecked_job_names_a_list__is_refused(world: World) -> None:
    maker = await world.start_job()

    with pytest.raises(Conflict):
        await post_opening(world, maker, AuditorList(auditors=()).digest(), 1)
    with pytest.raises(NotFound):
        await fixed(world, maker.spec.job())


async def test_register_auditor__with_the_session_key_of_a_member__is_refused(world: World) -> None:
    """Whoever is listed under a member's key would be paid for what the member does."""
    await world.register()
    await world.offer("ann", 10**11)
    await world.post(market_spec(audit=AUDIT))
    await world.tick()
    (lease,) = await world.beat("ann")
    ann = await world.accept("ann", lease)
    await world.stake("thief")

    with pytest.raises(Conflict):
        said = world.sign_auditor("thief", ann.session)
        await register_auditor(said, world.now, world.new_work(), world.ports)


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_accept_lease__with_the_key_of_an_auditor__is_refused(
    world: World, is_replaced: bool
) -> None:
    """Whoever has an auditor's key would be charged, or not, for the evidence that it shows."""
    await world.audit("out1")
    await world.audit("out2")
    if is_replaced:
        await world.start_job("ann", audit=AUDIT)  # lists the key, which another one replaces
        world.wait(1)
        await world.audit("out1", key="newer")
    await world.register(names=("coordinator", "another coordinator"))
    await world.offer("thief", 1)
    await world.post(market_spec(salt=7))
    await world.tick()
    (lease,) = await world.rows(LeaseRow, account=make_wallet("thief").account)
    accept = world.accept_of(lease, make_wallet("thief"), make_session("audit out1"))
    encoded = make_wallet("thief").sign(accept, world.domain).encoded()

    with pytest.raises(Conflict):
        bond = world.sign_bond("thief", lease).encoded()
        await accept_lease(lease.lease, encoded, bond, world.now, world.new_work(), world.ports)


async def post_opening(world: World, maker: JobMaker, name: Digest, block: int) -> None:
    changes = {"outside_auditors": name, "opening_block": block}
    opening: JobOpening = maker.opening.model_copy(update=changes)
    await post(world, maker, maker.items[0], maker.coordinator.sign(opening, world.domain))


async def post(world: World, maker: JobMaker, *items: Kept) -> None:
    await world.store(maker, [encode_kept(item) for item in items])


# ------------------------------------------------------------------------------------ over HTTP


async def heard(client: MarketClient, world: World, name: str, *, by: str = "") -> AuditorJobs:
    """What the market answers to a heartbeat."""
    beat, account = world.auditor_beat(by or name), make_wallet(name).account
    return await client.call(POST_AUDITOR_HEARTBEAT, beat, account=account)


async def test_heartbeat_auditor__listed__is_told_its_jobs(world: World) -> None:
    await world.stake("out1")
    async with sdk(world) as client:
        registered = await client.call(POST_AUDITOR, world.sign_auditor("out1", OUT1))
        world.auditors["out1"] = make_session("audit out1")
        before = await heard(client, world, "out1")
        maker = await world.start_job(audit=AUDIT)
        after = await heard(client, world, "out1")

    assert registered.free == STAKE
    assert before.jobs == () and after.jobs == (maker.spec.job(),)


async def test_register_auditor__what_does_not_hold__is_refused(world: World) -> None:
    await world.stake("out1")
    await world.stake("out2")
    async with sdk(world) as client:
        await client.call(POST_AUDITOR, world.sign_auditor("out1", OUT1))
        again = await client.call(POST_AUDITOR, world.sign_auditor("out1", OUT1))
        with pytest.raises(BadSignature):
            await client.call(POST_AUDITOR, world.sign_auditor("out1", OUT1, by="out2"))
        with pytest.raises(InsufficientStake):
            await client.call(POST_AUDITOR, world.sign_auditor("poor", make_session("poor")))
        with pytest.raises(Conflict):
            await client.call(POST_AUDITOR, world.sign_auditor("out2", OUT1))
        another, before = make_session("another"), UnixMillis(world.now - 1000)
        old = world.sign_auditor("out1", another, at=before)
        with pytest.raises(Expired):
            await client.call(POST_AUDITOR, old)
        with pytest.raises(NotFound):
            await heard(client, world, "poor")
        with pytest.raises(BadSignature):
            await heard(client, world, "out1", by="out2")

    assert again.free == STAKE
