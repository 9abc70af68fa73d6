"""Two markets with a checked job: one whose work still waits, one that is over and paid."""

from dataclasses import dataclass
from typing import Any

from contracts.terms.ids import JobId, StepNumber
from contracts.terms.messages import MILLION
from market.bodies.routes import GET_STEP, GET_STEPS, GET_WORK
from market.bodies.tracing import WorkTraceView
from tallystick.sdk.client import MarketClient
from tests.integration.market.client import sdk
from tests.integration.market.test_earnings import PEOPLE, claim
from tests.support.databases import new_world
from tests.support.history import JobMaker
from tests.support.market_story import DRAWN, Story, begin_story
from tests.support.market_world import World

SOME = DRAWN.model_copy(update={"floor": 6 * MILLION // 10})
"""So often that of a few peer-steps some are drawn and some are not."""


SALT = 10
"""Of a job in whose story a lie is drawn, work that matched is paid, and some is not drawn."""


@dataclass(frozen=True)
class Evidence:
    """A market, its checked job, and the trace of each peer-step in it."""

    world: World
    job: JobId
    traces: tuple[WorkTraceView, ...]
    unchecked: JobMaker  # another job, that nobody checks; its one seal is in no batch yet

    def path(self, trace: WorkTraceView) -> str:
        """Where the page of a trace is."""
        return f"/audit/{trace.job.hex()}/steps/{trace.step}/work/{trace.peer.hex()}"

    def one(self, **wanted: Any) -> WorkTraceView:
        """A trace in this state, whose draw and outcome are these."""
        return next(
            each for each in self.traces if {name: _say(each)[name] for name in wanted} == wanted
        )


def _say(trace: WorkTraceView) -> dict[str, Any]:
    assert trace.audits is not None
    draw, outcome = trace.audits.draw.drawn, trace.audits.outcome
    return {"state": trace.state, "drawn": draw, "outcome": outcome}


async def early_evidence() -> Evidence:
    """Work that waits: for beacons, for reports, for its seals."""
    world = new_world()
    story = await begin_story(world, audit=SOME, salt=SALT)
    await story.work(4)
    return await _shown(world, story)


async def late_evidence() -> Evidence:
    """All is settled: paid and claimed, or forfeited by a lie and by missed reports."""
    world = new_world()
    story = await begin_story(world, audit=SOME, salt=SALT)
    await story.work(4)
    await story.clear_up()
    for _ in range(4):
        await story.pass_time()
    async with sdk(world) as client:
        for name in PEOPLE:
            await claim(story, client, name)
    return await _shown(world, story)


async def _shown(world: World, story: Story) -> Evidence:
    unchecked = await world.start_job("dan", salt=8, open_by=world.by)
    await world.seal(unchecked)
    async with sdk(world) as client:
        traces = await _traces(story.job, client)
    return Evidence(world, story.job, traces, unchecked)


async def _traces(job: JobId, client: MarketClient) -> tuple[WorkTraceView, ...]:
    found = []
    for step in (await client.call(GET_STEPS, job=job)).steps:
        for line in (await client.call(GET_STEP, job=job, step=StepNumber(step.step))).lines:
            if line.kind == "work":
                found.append(
                    await client.call(GET_WORK, job=job, step=StepNumber(step.step), peer=line.peer)
                )
    return tuple(found)
