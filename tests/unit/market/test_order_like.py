"""What does an order of a job that is there already change of it?"""

from typing import Any

import pytest

from contracts.terms.amounts import BaseUnits
from market.bodies.jobs import CloneJob
from market.service.order_like import order_like
from tests.support.history import OPTIMIZER, make_spec, make_wallet
from tests.support.local_jobs import of_local_steps

LONG = OPTIMIZER.model_copy(update={"warmup_steps": 50})
FEW, MANY = of_local_steps(inner_steps=3, segments=2), of_local_steps(inner_steps=20)


@pytest.mark.parametrize(
    ("changed", "warmup"),
    [
        ({}, 4),
        (of_local_steps(inner_steps=3, segments=2), 24),
        (of_local_steps(inner_steps=20), 50),
    ],
    ids=["every step", "fewer local steps", "more local steps"],
)
def test_order_like__fewer_steps_than_the_warm_up__it_ends_with_the_optimizers_last(
    changed: dict[str, Any], warmup: int
) -> None:
    spec = make_spec(optimizer=LONG, steps=60, **changed)
    wish = CloneJob(
        like=spec.job(),
        poster=make_wallet("somebody").account,
        name="again",
        steps=4,
        budget=BaseUnits(10**9),
        price_ceiling=spec.price_ceiling,
        deadline=spec.deadline,
    )

    ordered = order_like(spec, wish, coordinator=spec.coordinator, salt=2)

    assert ordered.batch == spec.batch.model_copy(update={"steps": 4})
    assert ordered.optimizer.warmup_steps == warmup
