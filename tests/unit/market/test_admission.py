"""May this job be posted? What would fit is in each refusal."""

from dataclasses import replace
from typing import Any

import pytest

from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop
from contracts.terms.errors import Conflict, Expired, Forbidden, NotFound, Refused, Unaffordable
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from market.domain.admission import Surroundings, check_job, needed_memory, signed_flops
from market.domain.pricing import job_cost
from tests.support.history import START, make_spec, make_wallet

AROUND = Surroundings(UnixSeconds(START), 20, missing_blobs=(), coordinator_known=True)
POSTER, COORDINATOR = make_wallet("poster"), make_wallet("coordinator")


def spec(**changed: Any) -> JobSpec:
    """A job that is admitted, but for what changed."""
    first = make_spec(POSTER, COORDINATOR, price_ceiling=PricePerPflop(10**12))
    fitting = first.model_copy(
        update={"unit_flops": signed_flops(first), "memory_bytes": needed_memory(first)}
    )
    cost = job_cost(fitting, fitting.price_ceiling)
    money = {"budget": BaseUnits(cost), "epoch_cap": BaseUnits(cost)}
    return fitting.model_copy(update=money | changed)


def refusal(changed: JobSpec, around: Surroundings = AROUND) -> Refused:
    with pytest.raises(Refused) as caught:
        check_job(changed, around)
    return caught.value


def test_check_job__all_fits__is_admitted() -> None:
    check_job(spec(), AROUND)


def test_check_job__budget_below_cost__says_budget_ceiling_and_steps_that_fit() -> None:
    asked = spec(budget=BaseUnits(spec().budget // 2))

    found = refusal(asked)

    assert isinstance(found, Unaffordable)
    check_job(spec(budget=BaseUnits(int(str(found.data["budget_would_fit"])))), AROUND)
    ceiling = PricePerPflop(int(str(found.data["price_ceiling_would_fit"])))
    check_job(asked.model_copy(update={"price_ceiling": ceiling}), AROUND)
    steps = found.data["steps_would_fit"]
    assert isinstance(steps, int)
    batch = asked.batch.model_copy(update={"steps": steps})
    optimizer = asked.optimizer.model_copy(update={"warmup_steps": 0})
    check_job(asked.model_copy(update={"batch": batch, "optimizer": optimizer}), AROUND)


def test_check_job__epoch_cap_below_what_vests_at_once__says_which_fits() -> None:
    found = refusal(spec(epoch_cap=BaseUnits(1)))

    assert isinstance(found, Unaffordable)
    check_job(spec(epoch_cap=BaseUnits(int(str(found.data["epoch_cap_would_fit"])))), AROUND)


def test_check_job__deadline_too_near__says_which_fits() -> None:
    found = refusal(spec(deadline=UnixSeconds(START + 10)))

    assert isinstance(found, Expired)
    check_job(spec(deadline=found.data["would_fit"]), AROUND)


def test_check_job__other_flops_than_the_models__says_which_fit() -> None:
    found = refusal(spec(unit_flops=(Flops(1),)))

    assert isinstance(found, Conflict)
    assert found.data["would_fit"] == [str(each) for each in spec().unit_flops]


def test_check_job__memory_below_the_largest_stage__says_how_much_fits() -> None:
    found = refusal(spec(memory_bytes=1))

    check_job(spec(memory_bytes=found.data["would_fit"]), AROUND)


def test_check_job__sizes_that_do_not_divide__is_refused() -> None:
    model = spec().model.model_copy(update={"num_heads": 3})

    assert "num_heads" in refusal(spec(model=model)).message


@pytest.mark.parametrize(
    ("around", "error"),
    [
        (replace(AROUND, missing_blobs=("manifest",)), NotFound),
        (replace(AROUND, coordinator_known=False), Forbidden),
    ],
)
def test_check_job__manifest_or_coordinator_unknown__is_refused(
    around: Surroundings, error: type[Refused]
) -> None:
    assert isinstance(refusal(spec(), around), error)
