"""A market in which there is something to see on every page, over a chain in memory."""

from dataclasses import dataclass
from typing import Any

from contracts.terms.amounts import PricePerPflop
from contracts.terms.ids import Address, JobId
from contracts.terms.moments import UnixMillis
from market.bodies.jobs import PostReports, StepReport
from market.bodies.routes import POST_EVIDENCE
from market.bodies.signing import reports_digest
from market.service.claims import claim_job
from market.service.store_reports import store_reports
from tests.integration.market.client import sdk
from tests.integration.market.test_checkpoints import claim, told
from tests.integration.market.test_checks import checked
from tests.integration.market.test_convictions import evidence, note, ruled, slashable
from tests.support.databases import new_world
from tests.support.history import JobMaker, claims_in, make_digest, make_wallet
from tests.support.market_world import MANIFEST, World, market_spec, sign_digest

PRICE = 10**11
HOSTILE = "a <b>liar</b><script>document.title = 1</script>"


@dataclass(frozen=True)
class Showcase:
    """The market, and what to look at."""

    world: World
    checked: JobId  # audits matched
    running: JobMaker  # reports, claims, a checkpoint
    convicted: JobId  # a slash was announced
    waiting: JobId  # nobody offers what it wants
    paid: Address  # has earned in the running job
    convict: Address


def report(step: int) -> StepReport:
    """What a coordinator says of a step."""
    return StepReport(
        step=step,
        loss_millionths=5_000_000 - 300_000 * step,
        tokens_per_second=1000 + step,
        at=UnixMillis(1_700_000_000_000 + 2000 * step),
        validation_millionths=5_000_000 if step % 2 else None,
    )


def signed_reports(maker: JobMaker, *steps: int) -> PostReports:
    """Reports as the coordinator posts them."""
    reports = tuple(report(step) for step in steps)
    signature = sign_digest(maker.session, reports_digest(maker.spec.job(), reports))
    return PostReports(reports=reports, signature=signature)


async def showcase() -> Showcase:
    """One of everything."""
    world = new_world()
    drawn = await _checked(world)
    convicted = await _convicted(world)
    running = await _running(world)
    for salt, name in enumerate(("dan", "hal"), 5):
        await _paying(world, name, salt)
    for name in ("eve", "fay", "ida", "jon", "kit"):  # more than stand in one line of a cell
        await world.offer(name, PRICE)
    await world.offer("gil", 2 * PRICE)
    waiting = await _waiting(world)
    for _ in range(5):
        world.wait(6)
        await world.tick()
        for name in ("ann", "cem"):
            await world.beat(name)
    return Showcase(
        world,
        drawn,
        running,
        convicted,
        waiting,
        paid=make_wallet("cem").account,
        convict=make_wallet("bob").account,
    )


async def _begun(world: World, provider: str, **changed: Any) -> JobMaker:
    """A job that is matched with one provider."""
    await world.offer(provider, PRICE)
    spec = market_spec(**changed)
    await world.post(spec)
    await world.tick()
    (lease,) = await world.beat(provider)
    member = await world.accept(provider, lease)
    await world.tick()
    return world.maker(spec, (member, lease))


async def _checked(world: World) -> JobId:
    opened = await checked(world)
    await opened.work()
    await opened.draw(1)
    (case,) = (case for case, _ in opened.docket.open.values())
    await opened.report(case)
    return opened.job


async def _convicted(world: World) -> JobId:
    maker = await _begun(world, "bob", salt=2, name=HOSTILE)
    await world.seal(maker)
    work = claims_in(maker.items, "work")[0]
    await note(world, ruled(maker, slashable(maker, work.digest())))
    async with sdk(world) as client:
        await client.call(
            POST_EVIDENCE, evidence(world, maker, work.digest()), job=maker.spec.job()
        )
    for _ in range(2):
        world.wait(5)
        await world.tick()
        await world.sync()
    return maker.spec.job()


async def _running(world: World) -> JobMaker:
    maker = await _begun(world, "cem", salt=3, name="a running job")
    job, account = maker.spec.job(), maker.members[0].wallet.account
    await world.grant(job, cem=maker.spec.budget * 3 // 4)
    await world.seal(maker, 4)
    await claim_job(job, world.now, world.new_work(), world.ports, [account])
    await world.sync()
    await world.seal(maker, 2)
    said = signed_reports(maker, *range(1, 7))
    await store_reports(maker.spec.job(), said.reports, said.signature, world.new_work())
    await _checkpoint(world, maker)
    return maker


async def _paying(world: World, provider: str, salt: int) -> None:
    """A job that pays one more account."""
    maker = await _begun(world, provider, salt=salt, name=f"a job of {provider}'s")
    await world.seal(maker, salt)


async def _checkpoint(world: World, maker: JobMaker) -> None:
    blob = make_digest("weights")
    world.blobs.blobs[blob] = MANIFEST
    await told(world, maker, claim(maker, maker.members[0].session, step=6, blob=blob))


async def _waiting(world: World) -> JobId:
    spec = market_spec(salt=4, name="a job that pays little", price_ceiling=PricePerPflop(10**9))
    await world.post(spec)
    return spec.job()
