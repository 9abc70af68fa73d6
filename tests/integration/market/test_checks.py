"""What the API says of a job's checking, and which offers a checked job takes."""

import json
from fractions import Fraction
from pathlib import Path

from contracts.terms.history import Leaves
from contracts.terms.ids import JobId, StageIndex, StepNumber
from contracts.terms.messages import MILLION, StepBeacon
from market.bodies.routes import GET_CHECKS, GET_JOB
from market.service.auditors import list_of_job
from market.service.fund_jobs import fund_jobs
from market.service.rows import LeaseRow
from tests.integration.market.client import sdk
from tests.integration.market.test_auditors import AUDIT
from tests.integration.market.test_slash_verbs import market, said
from tests.support.dockets import distances_of
from tests.support.history import make_digest, make_session, make_wallet, report_claim
from tests.support.market_world import LeasedMaker, World, market_spec
from verification.docket import Docket, begin_job
from verification.draws.cases import Case
from verification.draws.odds import read_exact

DRAWN = AUDIT.model_copy(update={"floor": MILLION, "sums": 0})
STAGE = StageIndex(0)


class Checked:
    """A job of ann's alone, which `out1` audits from outside; everything is drawn."""

    def __init__(self, world: World, maker: LeasedMaker) -> None:
        self.world, self.maker, self.sent = world, maker, 1
        self.job: JobId = maker.spec.job()

    @property
    def docket(self) -> Docket:
        """After the newest seal."""
        assert isinstance(self.maker.record.checking, Docket)
        return self.maker.record.checking

    async def send(self) -> None:
        """Post what is new."""
        await self.world.send(self.maker, self.sent)
        self.sent = len(self.maker.items)

    async def work(self) -> None:
        """A step of units."""
        self.maker.seal_step()
        await self.send()

    async def draw(self, of: int) -> None:
        """The beacon of a step, in a seal of its own."""
        beacon = StepBeacon(
            job=self.job,
            step=StepNumber(self.maker.record.step + 1),
            of=StepNumber(of),
            batch=make_digest("batch"),
            block=of,
            beacon=make_digest("beacon", of),
        )
        self.maker.seal([self.maker.session.sign(beacon)])
        await self.send()

    async def report(self, case: Case) -> None:
        """The auditor says that it matches."""
        auditor = make_session("audit out1")
        claim, leaf = report_claim(
            self.job, auditor.peer, "match", distances_of(STAGE, self.maker.spec, "match"),
            round=case.step, group=case.stage, subject=case.subject, attempt=case.attempt,
        )  # fmt: skip
        self.maker.seal([auditor.sign(claim), Leaves(claim.digest(), (leaf,))])
        await self.send()


async def checked(world: World) -> Checked:
    """An opened job, with its list of auditors."""
    await world.audit("out1")
    begun = await world.start_job(audit=DRAWN)
    async with world.new_work() as work:
        block, listed = await list_of_job(begun.spec.job(), work)
    opened = Checked(world, begun.opened_anew(opening_block=block, outside=listed, begin=begin_job))
    await opened.send()
    return opened


async def millis_leased(world: World, job: JobId) -> int:
    """Since ann's lease was reserved."""
    (lease,) = await world.rows(LeaseRow, job=job)
    return world.now - lease.reserved_at


async def test_checks__work_that_was_drawn_and_matched__is_shown_with_its_odds(
    world: World,
) -> None:
    opened = await checked(world)
    world.wait(3600)
    await opened.work()
    worked = await millis_leased(world, opened.job)
    await opened.draw(1)
    (case,) = (case for case, _ in opened.docket.open.values())

    async with sdk(world) as client:
        before = await client.call(GET_CHECKS, job=opened.job)
        await opened.report(case)
        after = await client.call(GET_CHECKS, job=opened.job, falsified=1)
    async with sdk(world) as another:
        assert (
            await another.call(GET_CHECKS, job=opened.job, falsified=1) == after
        )  # read from the beginning

    ann = next(each for each in after.peers if each.stage is not None)
    auditor = next(each for each in after.peers if each.stage is None)
    pay = {leaf.account: leaf.earned for leaf in opened.maker.seals[0].pay}
    assert (before.checking, before.step, after.step) == ("on", 2, 3)
    assert before.peers[0].received.open == 1 and ann.received.open == 0
    assert (ann.received.drawn, ann.received.matched, ann.peer_steps) == (1, 1, 1)
    assert ann.rates is not None and ann.rates.least == ann.rates.greatest == MILLION
    assert [read_exact(each.strangers) for each in ann.odds] == [Fraction(1, 100)]
    assert ann.odds[0].whole_stage == ann.odds[0].strangers  # nobody else is in the stage
    assert ann.account == make_wallet("ann").account and ann.convicted_at is None
    assert ann.stake == opened.maker.spec.min_stake
    assert ann.stake_hours == ann.stake * worked // (3600 * pay[ann.account])
    assert ann.reputation.matches == 1
    assert (auditor.account, auditor.reports) == (make_wallet("out1").account, 1)
    assert (auditor.peer_steps, auditor.rates, auditor.stake_hours) == (0, None, None)


async def test_checks__unchecked_job__says_that_checking_is_off(world: World) -> None:
    maker = await world.start_job()

    async with sdk(world) as client:
        view = await client.call(GET_CHECKS, job=maker.spec.job())

    assert (view.checking, view.peers) == ("off", ())


# -------------------------------------------------------------------------------------- admission


async def test_clear__device_that_nobody_measured__gets_no_seat_in_a_checked_job_and_says_why(
    world: World,
) -> None:
    await world.register()
    await world.offer("odd", 10**10, device_class="abacus")
    spec = market_spec(audit=DRAWN)
    await world.post(spec)
    await fund_jobs(world.now, world.new_work(), world.ports)
    await world.sync()

    none = await world.clear()
    async with sdk(world) as client:
        shown = await client.call(GET_JOB, job=spec.job())
    await world.offer("ann", 10**11)
    (lease,) = await world.clear()

    assert none == [] and [each.constraint for each in shown.not_matched] == ["device"]
    assert "cpu/x86_64/AVX2" in shown.not_matched[0].would_fit
    assert lease.account == make_wallet("ann").account


# ----------------------------------------------------------------------------------- the verb


def test_job_checks__work_that_was_drawn__is_shown_to_people_and_programs(
    world: World, tmp_path: Path
) -> None:
    async def drawn(world: World) -> JobId:
        opened = await checked(world)
        await opened.work()
        await opened.draw(1)
        return opened.job

    with market(world, drawn) as (job, url):
        table = said(tmp_path, url, "job", "checks", job.hex(), "--falsified", "1")
        data = said(tmp_path, url, "job", "checks", job.hex(), "-o", "json")
        shown = said(tmp_path, url, "job", "show", job.hex())

    for words in ("100.00%, 100.00%, 100.00%", "1 drawn", "0.01, 0.01, 0.01", "stake", "1 open"):
        assert words in table.stdout
    assert json.loads(data.stdout)["peers"][0]["odds"][0]["strangers"] == "1/100"
    assert "on: 100.0% of the work" in shown.stdout
