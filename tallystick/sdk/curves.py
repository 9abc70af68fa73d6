"""How a job's training went, step by step: what its coordinator reported and its seals say.

A step is final when a later one is reported; until then its validation loss may still come.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.terms.messages import MILLION
from market.bodies.jobs import JobView, StepReport
from market.bodies.routes import GET_STEPS
from market.bodies.tracing import StepView
from tallystick.sdk.client import MarketClient


@dataclass(frozen=True)
class Point:
    """A step with an update. Losses in nats per token, `time` in Unix seconds."""

    step: int  # of its seal
    time: float
    loss: float  # mean over what it trained on
    validation_loss: float | None
    tokens: int  # trained on so far
    tokens_per_second: int
    peers: int
    bytes: int  # that a peer sends to average the update, by the JobSpec


async def points_of(client: MarketClient, view: JobView, *, after: int = 0) -> list[Point]:
    """The steps of a job beyond step `after`, ascending."""
    reports = [report for report in view.reports if report.step > after]
    if not reports:
        return []
    sealed = await client.whole(GET_STEPS, job=view.job, after=reports[0].step - 1)
    steps = {step.step: step for step in sealed.steps}  # a seal is there before its report is
    return [_point(each, steps[each.step]) for each in reports if each.step in steps]


def _point(report: StepReport, step: StepView) -> Point:
    validation = report.validation_millionths
    return Point(
        step=report.step,
        time=report.at / 1000,
        loss=report.loss_millionths / MILLION,
        validation_loss=None if validation is None else validation / MILLION,
        tokens=step.tokens_so_far,
        tokens_per_second=report.tokens_per_second,
        peers=step.peers,
        bytes=step.exchanged,
    )


def wall_seconds(points: Sequence[Point]) -> float:
    """From the begin of the first step to the end of the last one."""
    if not points:
        return 0.0
    first = points[0].tokens / max(1, points[0].tokens_per_second)
    return points[-1].time - points[0].time + first
