"""The audit explorer: every path of a trace folds to the root that it names, as a browser would."""

from collections.abc import Iterable

import pytest

from contracts.terms.digest import digest, keccak
from contracts.terms.errors import NotFound
from contracts.terms.ids import PeerId, StepNumber
from market.bodies.routes import GET_SPEND, GET_STEP, GET_STEPS, GET_WORK
from market.bodies.tracing import (
    AnchoredView,
    AuditsView,
    PlainStep,
    StepLineView,
    StepView,
    WorkTraceView,
)
from market.service.rows import BatchRow
from tallystick.sdk.client import MarketClient
from tests.integration.market.client import sdk
from tests.integration.market.test_earnings import PEOPLE, account_of, claim
from tests.integration.market.test_running import check_spend
from tests.support.history import claims_in
from tests.support.market_story import Story, begin_story
from tests.support.market_world import World


def plain(leaf: bytes, siblings: Iterable[PlainStep]) -> bytes:
    node = leaf
    for each in siblings:
        node = keccak(b"\6" + (each.hash + node if each.left else node + each.hash))
    return node


def check_anchored(trace: WorkTraceView, step: int, seal: bytes, found: AnchoredView) -> None:
    assert found.leaf == keccak(b"\5" + trace.job + step.to_bytes(8, "big") + seal)
    assert plain(found.leaf, found.siblings) == found.anchor.batch


def check_pay(trace: WorkTraceView) -> None:
    slip = trace.pay
    assert slip is not None
    amounts = slip.earned.to_bytes(10, "big") + slip.vested.to_bytes(10, "big")
    assert slip.leaf == keccak(b"\x08" + slip.account + amounts)
    assert plain(slip.leaf, slip.siblings) == slip.pay_root
    if slip.anchored is not None:
        check_anchored(trace, slip.step, slip.seal, slip.anchored)


def check_draw(audits: AuditsView) -> None:
    draw = audits.draw
    if draw.drawn is None:
        assert draw.beacon is None and draw.prf is None
        return
    numerator, denominator = map(int, draw.rate.split("/"))
    assert draw.beacon is not None and draw.step_beacon is not None and draw.prf is not None
    assert draw.prf == digest("draw", draw.step_beacon + draw.name)
    is_below = int.from_bytes(draw.prf, "big") * denominator < numerator * 2**256
    assert draw.drawn == is_below
    for report in audits.reports:
        asked = [r.auditors for r in audits.rounds if r.round == report.round]
        assert any(report.auditor in each for each in asked)
        if report.repeat is not None:
            check_draw(report.repeat)


def check_trace(trace: WorkTraceView) -> None:
    sealed = trace.sealed
    assert sealed.leaf == keccak(b"\7" + trace.work_claim.claim)
    assert plain(sealed.leaf, sealed.siblings) == sealed.messages_root
    if trace.anchored is not None:
        check_anchored(trace, sealed.step, sealed.seal, trace.anchored)
    if trace.audits is not None:
        check_draw(trace.audits)
    if trace.pay is not None:
        check_pay(trace)


def check_round(step: StepView, work: list[StepLineView], story: Story) -> None:
    """A step's figures are those of its lines: each stage works on all of the text."""
    spec, stages = story.maker.record.spec, {line.stage for line in work}
    items = sum(line.units for line in work) // max(1, len(stages))
    assert step.tokens == items * spec.batch.rows_per_unit * spec.model.sequence_length
    assert step.peers == len({line.peer for line in work})
    assert not {line.account for line in work}.intersection(step.missed_by)
    assert (step.exchanged > 0) == (step.peers > len(stages))


async def traces(story: Story, client: MarketClient) -> list[WorkTraceView]:
    """The traces of all work of a job, each checked."""
    found = []
    for step in (await client.call(GET_STEPS, job=story.job)).steps:
        page = await client.call(GET_STEP, job=story.job, step=StepNumber(step.step))
        assert page.step == step and page.next is None and page.num_lines == len(page.lines)
        check_round(step, [line for line in page.lines if line.kind == "work"], story)
        for line in page.lines:
            if line.kind == "work":
                number = StepNumber(line.work_step)
                trace = await client.call(
                    GET_WORK, job=story.job, step=number, peer=line.peer, seq=line.seq
                )
                check_trace(trace)
                assert trace.amount == line.amount
                found.append(trace)
    return found


async def test_trace__beginning_of_a_story__every_path_folds_to_its_root(
    world: World,
) -> None:
    story = await begin_story(world)
    await story.work(2)
    for _ in range(4):
        await story.idle()
    for _ in range(3):
        await story.pass_time()
    async with sdk(world) as client:
        found = await traces(story, client)
    assert found and any(trace.pay for trace in found)


@pytest.mark.nightly
async def test_trace__whole_story__every_path_folds_and_all_pay_is_claimed_or_lost(
    world: World,
) -> None:
    story = await begin_story(world)
    await story.work(3)
    async with sdk(world) as client:
        early = await traces(story, client)
        await story.clear_up()
        for _ in range(12):
            await story.pass_time()
        for name in PEOPLE:
            await claim(story, client, name)
        late = await traces(story, client)
        steps = (await client.call(GET_STEPS, job=story.job)).steps
        last = await check_spend(story, client)
        tail = await client.call(GET_SPEND, job=story.job, after=last.step - 2)
    assert last.state == "finished" and last.outlook is None
    assert last.claimed + last.forfeited == last.earned and tail.steps == last.steps[-2:]
    assert any(trace.audits and trace.audits.draw.drawn is None for trace in early)
    assert {trace.state for trace in late} == {"claimed", "forfeited"}
    check_lie(late)
    paid = [trace for trace in late if trace.state == "claimed"]
    assert all(trace.pay and sum(e.amount for e in trace.claims) == trace.amount for trace in paid)
    outcomes = {trace.audits.outcome for trace in late if trace.audits}
    assert outcomes >= {"matched", "mismatched"}
    assert sum(step.outcomes.open for step in steps) == 0
    assert all(step.anchor for step in steps)
    roots = {batch.root for batch in await world.rows(BatchRow)}
    assert {trace.anchored.anchor.batch for trace in late if trace.anchored} <= roots


def check_lie(late: list[WorkTraceView]) -> None:
    """Who lied is shown with distances beyond what is allowed, and is not paid."""
    (lie, *_) = [each for each in late if each.audits and each.audits.outcome == "mismatched"]
    assert lie.audits is not None and lie.account == account_of("bob")
    rulings = [each.what for each in lie.audits.rulings]
    assert rulings[0] == "drawn" and "accused" in rulings and "convicted" in rulings
    guilty = [each for each in lie.audits.reports if each.verdict == "mismatch"]
    assert len({each.auditor for each in guilty}) >= 2
    assert all(d.distance > d.allowed for d in guilty[0].distances)
    assert lie.pay is None and lie.state == "forfeited"


async def test_trace__unchecked_job__has_no_draw(world: World) -> None:
    maker = await world.start_job()
    await world.seal(maker)
    await world.tick()
    job = maker.spec.job()
    async with sdk(world) as client:
        trace = await client.call(
            GET_WORK, job=job, step=StepNumber(1), peer=maker.members[0].session.peer
        )
        (step,) = (await client.call(GET_STEPS, job=job)).steps
        assert (await client.call(GET_STEPS, job=job, after=1)).steps == ()
    check_trace(trace)
    assert trace.audits is None and trace.anchored is not None and trace.state == "waiting"
    assert (step.merged, step.drawn, step.beacon) == (1, 0, None)
    assert step.round_closed is not None and step.updates == 1


async def test_trace__work_of_a_void_round__is_found_once_a_later_seal_holds_it(
    world: World,
) -> None:
    maker = await world.start_job()
    maker.seal_step(update=False)
    await world.send(maker)
    job, claims = maker.spec.job(), claims_in(maker.items, "work")
    step, peer = StepNumber(1), claims[0].peer
    async with sdk(world) as client:
        with pytest.raises(NotFound):
            await client.call(GET_WORK, job=job, step=step, peer=peer)
        closed = maker.closed(claims)
        maker.seal([maker.session.sign(closed), *maker.bucket_claims(closed, claims)])
        await world.send(maker)
        trace = await client.call(GET_WORK, job=job, step=step, peer=peer)
        void, update = (await client.call(GET_STEPS, job=job)).steps
    check_trace(trace)
    assert (trace.step, trace.sealed.step, trace.work_claim.claim) == (1, 2, claims[0].digest())
    assert [(each.merged, each.updates) for each in (void, update)] == [(0, 0), (1, 1)]


async def test_trace__nothing_there__is_not_found(world: World) -> None:
    maker = await world.start_job()
    await world.seal(maker)
    job, peer = maker.spec.job(), maker.members[0].session.peer
    async with sdk(world) as client:
        for of, step, whom, seq in (
            (job, 2, peer, 0), (job, 1, PeerId(bytes(32)), 0), (job, 1, peer, 7),
            (bytes(32), 1, peer, 0),
        ):  # fmt: skip
            with pytest.raises(NotFound):
                await client.call(GET_WORK, job=of, step=StepNumber(step), peer=whom, seq=seq)
        with pytest.raises(NotFound):
            await client.call(GET_STEP, job=job, step=StepNumber(2))
