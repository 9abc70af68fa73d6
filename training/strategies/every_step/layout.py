"""How `every_step` cuts a job: groups are stages of a pipeline, items are micro-batches. Pure."""

from fractions import Fraction

from contracts.terms.ids import StageIndex
from contracts.terms.messages import JobSpec
from training.strategies.port import Layout

GATE_EXPONENT = Fraction(-1, 2)
"""The norm of a mean gradient falls with the square root of the rows that it is made of."""


def layout(spec: JobSpec) -> Layout:
    """See `PureStrategy.layout`."""
    batch, chunking = spec.batch, spec.chunking
    stages = map(StageIndex, range(batch.stages))
    return Layout(
        outputs={stage: chunking.of_stage(stage) for stage in stages},
        items_per_round=batch.units_per_step,
        ordered_items=batch.units_per_step * batch.steps,
        rows_per_item=batch.rows_per_unit,
        gate_exponent=GATE_EXPONENT,
    )
