"""Jobs side by side: their losses by step and by tokens, what they cost, how they differ. Pure.

A cell of a curve is the mean loss since the row before, so that one step's noise counts little.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import ceil
from typing import Any

from contracts.terms.ids import JobIdField
from contracts.terms.messages import MILLION, JobSpec
from contracts.terms.signatures import decode_signed, expect
from market.bodies.base import Body, Money, Wide
from market.bodies.jobs import JobOutcome, JobView
from tallystick.sdk.curves import Point, wall_seconds
from training.config import train_config

ROWS = 12
"""Of a curve, at most."""
_LEFT_OUT = {
    "kind", "poster", "coordinator", "salt", "name", "burst", "rate", "open_by", "deadline",
    "memory_bytes", "item_flops",
}  # fmt: skip
"""Of a JobSpec: who orders when, and what follows from the rest."""


class ComparedJob(Body):
    """A job beside others; losses in 1e-6 nats per token."""

    columns = (
        "job", "name", "outcome", "strategy", "step", "tokens", "loss_millionths",
        "validation_millionths", "cost", "seconds",
    )  # fmt: skip

    job: JobIdField
    name: str
    outcome: JobOutcome
    strategy: str
    step: int  # the newest with an update; 0: none
    tokens: Wide
    loss_millionths: int | None  # of that step
    validation_millionths: int | None  # the newest
    validated_step: int | None
    cost: Money  # what providers have earned
    seconds: int  # from the begin of the first step to the end of the last


class CurveRow(Body):
    """Losses up to a step, or up to so many tokens; one a job, None where it had ended before."""

    up_to: Wide
    losses_millionths: tuple[int | None, ...]


class Setting(Body):
    """A number of the JobSpec that is not the same in all jobs; empty: it has none."""

    name: str
    values: tuple[str, ...]


class Comparison(Body):
    """Jobs in the order in which they were named."""

    jobs: tuple[ComparedJob, ...]
    by_step: tuple[CurveRow, ...]
    by_tokens: tuple[CurveRow, ...]
    settings: tuple[Setting, ...]


def compare(jobs: Sequence[tuple[JobView, Sequence[Point]]]) -> Comparison:
    """Each job's newest numbers, the curves of all, and the settings in which they differ."""
    curves = [points for _, points in jobs]
    return Comparison(
        jobs=tuple(_compared(view, points) for view, points in jobs),
        by_step=tuple(_curve(curves, lambda point: point.step)),
        by_tokens=tuple(_curve(curves, lambda point: point.tokens)),
        settings=tuple(_differing([_settings(_spec_of(view)) for view, _ in jobs])),
    )


def _compared(view: JobView, points: Sequence[Point]) -> ComparedJob:
    last = points[-1] if points else None
    validated = [
        (each.step, each.validation_loss) for each in points if each.validation_loss is not None
    ]
    validated_step, validation = validated[-1] if validated else (None, None)
    spec = _spec_of(view)
    return ComparedJob(
        job=view.job,
        name=spec.name,
        outcome=view.outcome,
        strategy=spec.strategy,
        step=0 if last is None else last.step,
        tokens=0 if last is None else last.tokens,
        loss_millionths=None if last is None else _millionths(last.loss),
        validation_millionths=None if validation is None else _millionths(validation),
        validated_step=validated_step,
        cost=view.earned,
        seconds=round(wall_seconds(points)),
    )


def _spec_of(view: JobView) -> JobSpec:
    return expect(decode_signed(view.signed), JobSpec).message


def _curve(curves: Sequence[Sequence[Point]], place: Callable[[Point], int]) -> Iterator[CurveRow]:
    """At most `ROWS` rows, evenly spaced up to the end of the longest curve."""
    end = max((place(points[-1]) for points in curves if points), default=0)
    number = min(ROWS, end)
    before = 0
    for row in range(1, number + 1):
        up_to = ceil(end * row / number)
        means = tuple(_mean(points, place, before, up_to) for points in curves)
        if any(mean is not None for mean in means):
            yield CurveRow(up_to=up_to, losses_millionths=means)
            before = up_to


def _mean(
    points: Sequence[Point], place: Callable[[Point], int], after: int, up_to: int
) -> int | None:
    start, end = (bisect_right(points, each, key=place) for each in (after, up_to))
    losses = [point.loss for point in points[start:end]]
    return _millionths(sum(losses) / len(losses)) if losses else None


def _millionths(loss: float) -> int:
    return round(loss * MILLION)


def _settings(spec: JobSpec) -> dict[str, str]:
    """What a spec orders, by its path; of the optimizer in the units of a job file."""
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch)
    values = {key: each for key, each in spec.value().items() if key not in _LEFT_OUT}
    optimizer = asdict(config.optimizer)
    del optimizer["total_steps"]  # these are the batch's
    return dict(_leaves(values | {"optimizer": optimizer}))


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{name}.")
        elif value is not None:
            shown = value.hex()[:12] if isinstance(value, bytes) else str(value)
            yield f"{path}{name}", shown


def _differing(jobs: Sequence[Mapping[str, str]]) -> Iterator[Setting]:
    for name in dict.fromkeys(name for job in jobs for name in job):
        values = tuple(job.get(name, "") for job in jobs)
        if len(set(values)) > 1:
            yield Setting(name=name, values=values)
