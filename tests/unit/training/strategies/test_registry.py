"""Strategies by name; what one asks of a machine."""

import pytest

from contracts.terms.errors import Refused
from tests.support.history import MODEL, make_spec
from training.strategies.every_step.rules import EveryStep
from training.strategies.port import Machine
from training.strategies.registry import rules_of

SPEC = make_spec(
    model=MODEL.model_copy(update={"num_layers": 3}),
    stages=3,
    item_flops=(1, 3, 2),
    layer_ends=(1, 2, 3),
    steps=2,
    units_per_step=4,
)


def test_rules_of__name_of_a_job__the_rules_that_it_signs() -> None:
    assert isinstance(rules_of(SPEC), EveryStep)


def test_cost__of_the_costliest_stage__and_refused_by_a_machine_that_cannot_hold_it() -> None:
    large = Machine(memory_bytes=2**40, flops_per_second=1, bytes_per_second=1)

    cost = EveryStep().cost(SPEC, large)

    assert cost.item_flops == 3
    model = SPEC.model
    assert cost.item_bytes == 4 * 4 * SPEC.batch.rows_per_unit * model.sequence_length * model.width
    with pytest.raises(Refused):
        EveryStep().cost(SPEC, Machine(cost.memory_bytes - 1, 1, 1))
