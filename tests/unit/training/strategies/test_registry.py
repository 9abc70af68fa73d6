"""Strategies by name."""

from tests.support.history import MODEL, make_spec
from training.strategies.every_step.rules import EveryStep
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
