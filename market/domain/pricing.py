"""What a job costs at a price: model FLOPs of all its units, times the price, rounded down. Pure.

Invariant: whoever is paid what at prices up to `price`, all pay together is at most `job_cost`,
because a sum of floors never exceeds the floor of the sum. Units: base units, FLOPs.
"""

from collections.abc import Sequence

from contracts.terms.amounts import FLOPS_PER_PFLOP, BaseUnits, Flops, PricePerPflop, pay_for
from contracts.terms.messages import JobSpec


def step_flops(spec: JobSpec) -> Flops:
    """FLOPs of one step through all stages."""
    return Flops(spec.batch.units_per_step * sum(spec.unit_flops))


def job_flops(spec: JobSpec) -> Flops:
    """FLOPs of the whole job."""
    return Flops(spec.batch.steps * step_flops(spec))


def job_cost(spec: JobSpec, price: PricePerPflop) -> BaseUnits:
    """What the whole job costs at `price`."""
    return pay_for(job_flops(spec), price)


def affordable_price(spec: JobSpec, budget: int) -> int:
    """The highest ceiling that `budget` covers for the whole job; 0 when none does."""
    return ((budget + 1) * FLOPS_PER_PFLOP - 1) // job_flops(spec)


def affordable_steps(spec: JobSpec, budget: int) -> int:
    """How many steps `budget` covers at the spec's ceiling."""
    return ((budget + 1) * FLOPS_PER_PFLOP - 1) // (step_flops(spec) * spec.price_ceiling)


def stage_seconds(spec: JobSpec, stage_speeds: Sequence[int]) -> tuple[int, ...]:
    """Seconds of computing of each stage, rounded up.

    Args:
        spec: The job.
        stage_speeds: FLOP/s of all peers of a stage together, stage by stage.
    """
    num_units = spec.batch.steps * spec.batch.units_per_step
    return tuple(
        -(-num_units * flops // max(1, speed))
        for flops, speed in zip(spec.unit_flops, stage_speeds, strict=True)
    )
