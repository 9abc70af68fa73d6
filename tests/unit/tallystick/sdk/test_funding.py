"""How much a coordinator may set aside follows from the work, and never passes the budget."""

from contracts.terms.amounts import BaseUnits
from contracts.terms.messages import JobSpec
from tallystick.sdk.funding import funding_of, taken
from tallystick.sdk.job_spec import with_funding
from tests.unit.tallystick.sdk.test_job_file import job, spec_of

ROOMY = {"price_ceiling": 1_000_000, "budget": 1_000_000, "steps": 1000}


def spec(**changed: object) -> JobSpec:
    return spec_of(job(**(ROOMY | changed)))


def test_funding_of__members_and_spares__first_limits_are_of_an_hour_of_rounds() -> None:
    one = funding_of(spec(), 100 * 3600)
    more = funding_of(spec(spares=2), 100 * 3600)

    assert one.rounds == 10 and one.first_limits == 10 * one.round
    assert more.first_limits == 3 * one.first_limits
    assert one.burst == -(-5 * one.first_limits // 4)


def test_funding_of__longer_computing__pays_less_an_hour() -> None:
    hour, day = funding_of(spec(), 3600), funding_of(spec(), 24 * 3600)

    assert hour.an_hour > 23 * day.an_hour
    assert taken(None, 24 * 3600) == 3600 and taken(None, 600) == 60 and taken(7, 600) == 7


def test_funding_of__small_budget__is_the_most_that_may_be_committed() -> None:
    assert funding_of(spec(budget="0.000001"), 60).burst == 1


def test_with_funding__said_in_the_file__stays() -> None:
    said = job(**ROOMY, burst=3, rate=2)

    spec = with_funding(spec_of(said), said, 60)

    assert (spec.burst, spec.rate) == (BaseUnits(3_000_000), BaseUnits(2_000_000))
