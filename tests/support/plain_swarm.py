"""What a job of `CountingCompute` comes to without a swarm: one compute a stage, one loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from contracts.terms.ids import Digest, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import JobSpec
from tests.support.fakes.counting import CountingCompute
from training.stages.torch_free import num_groups


@dataclass
class PlainRun:
    """Roots of the weights of each stage after the last step; losses by step, 1e-6."""

    weights: list[Digest] = field(default_factory=list)
    losses: dict[int, int] = field(default_factory=dict)
    validation: dict[int, int] = field(default_factory=dict)


def plain_run(
    spec: JobSpec, units_of: Mapping[int, Sequence[ItemNumber]] | None = None
) -> PlainRun:
    """Every step with its units in order, by default all, and the validation that is due.

    A step of `units_of` without units changes nothing.
    """
    batch, run = spec.batch, PlainRun()
    stages = [CountingCompute(batch.chunks, s, batch.stages) for s in range(batch.stages)]
    for step in range(1, batch.steps + 1):
        units = range(batch.units_per_step) if units_of is None else units_of[step]
        if units:
            losses = [_unit(stages, StepNumber(step), ItemNumber(unit)) for unit in units]
            run.losses[step] = _mean(losses)
            for stage in stages:
                stage.apply([piece.data for piece in stage.gradient()], sealed_norm=1)
        if step % batch.validate_every == 0 or step == batch.steps:
            groups = range(num_groups(batch.rows_per_unit))
            run.validation[step] = _mean([_group(stages, ItemNumber(group)) for group in groups])
    run.weights = [stage.roots().weights for stage in stages]
    return run


def _unit(stages: list[CountingCompute], step: StepNumber, unit: ItemNumber) -> int:
    x: bytes | None = None
    for stage in stages:
        passed = stage.forward(step, unit, x)
        x = passed.y.data if passed.y else None
    assert passed.loss is not None
    dx = passed.dx
    for stage in reversed(stages[:-1]):
        assert dx is not None
        dx = stage.backward(step, unit, None, dx.data).dx
    return passed.loss


def _group(stages: list[CountingCompute], group: ItemNumber) -> int:
    x: bytes | None = None
    for stage in stages:
        passed = stage.evaluate(group, x)
        x = passed.y.data if passed.y else None
    assert passed.loss is not None
    return passed.loss


def _mean(losses: list[int]) -> int:
    return (2 * sum(losses) + len(losses)) // (2 * len(losses))
