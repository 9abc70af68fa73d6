"""What a poster is advised to change, in jobs that are signed: applied, the job is matched."""

from dataclasses import replace
from typing import Any

import pytest

from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from market.bodies.jobs import AdviceView, ChangeView, Excluded
from market.domain.admission import could_be_posted
from market.domain.matching import Bundle, judge
from market.domain.offers import Candidate
from market.domain.quote import WhyNot, need_of, quote, why_no_bundle
from market.domain.sizes import Terms, cut_of, job_cost, other_cuts
from market.service.coding import WHY_NOT
from tests.support.dockets import audit_spec
from tests.support.history import START
from tests.unit.market.test_admission import spec
from tests.unit.market.test_quote import AROUND, NOW, TABLE, offer

CEILING = spec().price_ceiling


def changes_of(asked: JobSpec, offers: list[Candidate]) -> tuple[ChangeView, ...]:
    found = quote(asked, offers, AROUND, NOW)
    assert found.price_at_asks is None and found.advice is not None
    return found.advice.changes


def applied(asked: JobSpec, changes: tuple[ChangeView, ...]) -> JobSpec:
    """The job with these changes of numbers."""
    return asked.model_copy(update={each.key: each.to for each in changes})


def three(**changed: Any) -> list[Candidate]:
    return [replace(offer(number, 10**10), **changed) for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("offers", "change"),
    [
        (
            three(free_stake=BaseUnits(900_000)),
            ChangeView(key="min_stake", was=1_000_000, to=900_000),
        ),
        (
            three(available_from=UnixSeconds(START + 60)),
            ChangeView(key="wait_until", was=START, to=START + 60),
        ),
    ],
    ids=lambda each: each.key if isinstance(each, ChangeView) else "",
)
def test_advice__one_thing_is_short__names_it_and_applied_it_matches(
    offers: list[Candidate], change: ChangeView
) -> None:
    asked = spec()

    changes = changes_of(asked, offers)

    assert changes == (change,)
    now = NOW if change.key != "wait_until" else type(NOW)(change.to * 1000)
    then = [replace(each, heard_at=now) for each in offers]
    changed = asked if change.key == "wait_until" else applied(asked, changes)
    assert quote(changed, then, AROUND, now).price_at_asks is not None


def test_advice__two_things_are_short__names_both() -> None:
    offers = three(price=PricePerPflop(CEILING + 1), free_stake=BaseUnits(999_000))

    changes = changes_of(spec(), offers)

    assert [each.key for each in changes] == ["price_ceiling", "min_stake"]
    assert quote(applied(spec(), changes), offers, AROUND, NOW).price_at_asks is not None


def test_advice__higher_ceiling__says_the_budget_that_it_takes() -> None:
    offers = [offer(number, CEILING + CEILING // 10) for number in (1, 2, 3)]

    advice = quote(spec(), offers, AROUND, NOW).advice

    assert advice is not None
    assert advice.budget == job_cost(spec(), PricePerPflop(CEILING + CEILING // 10))
    dearer = spec(budget=advice.budget)
    raised = applied(dearer, changes_of(spec(), offers))
    assert quote(raised, offers, AROUND, NOW).fits


def test_advice__nobody_is_there_or_all_are_silent__is_none() -> None:
    assert quote(spec(), [], AROUND, NOW).advice is None
    assert quote(spec(), three(heard_at=None), AROUND, NOW).advice is None


def test_advice__checked_job_whose_stake_covers_no_higher_price__is_another() -> None:
    asked = spec(audit=audit_spec(thresholds=TABLE.digest()), min_stake=BaseUnits(10**6))
    terms = Terms(asked.price_ceiling, asked.min_stake, asked.deadline, NOW, cut_of(asked))

    def ceiling(factor: int) -> PricePerPflop:
        return PricePerPflop(factor * CEILING)

    def may_pay(factor: int) -> bool:
        return could_be_posted(asked, replace(terms, price_ceiling=ceiling(factor)))

    most = next(factor for factor in range(1, 1000) if not may_pay(factor + 1))
    within, beyond = three(price=ceiling(most)), three(price=ceiling(most + 1))
    assert changes_of(asked, within) == (
        ChangeView(key="price_ceiling", was=CEILING, to=ceiling(most)),
    )
    assert [each.key for each in changes_of(asked, beyond)] == ["price_ceiling", "peers_per_stage"]


def test_advice__leases_stand_already__only_numbers_are_relaxed() -> None:
    asked = spec()
    need, dear = need_of(asked, NOW, TABLE), [offer(1, CEILING + 1)]

    why = why_no_bundle(asked, need, judge(need, dear), Bundle(1, 0))

    assert why.advice is not None
    assert why.advice.changes == (ChangeView(key="price_ceiling", was=CEILING, to=CEILING + 1),)


def test_cuts__other_numbers_of_stages__have_less_work_each_and_want_more_owners() -> None:
    asked = spec()

    cuts = {(cut.stages, cut.peers_per_stage): cut for cut in other_cuts(asked)}

    layers = asked.model.num_layers
    assert set(cuts) == {(s, p) for s in range(1, layers + 1) for p in (1, 2, 3)} - {(1, 3)}
    assert cuts[1, 2].memory_bytes == cut_of(asked).memory_bytes
    assert cuts[2, 3].dearest_unit < cut_of(asked).dearest_unit
    assert cuts[2, 3].slots == 6


@pytest.mark.parametrize(
    "why",
    [
        WhyNot(),
        WhyNot((Excluded(constraint="price", offers=3, would_fit="price_ceiling 5"),)),
        WhyNot(
            (Excluded(constraint="price", offers=3, would_fit="price_ceiling 5"),),
            AdviceView(
                changes=(ChangeView(key="min_stake", was=2**90, to=1),),
                size=7,
                budget=BaseUnits(2**80),
            ),
        ),
    ],
    ids=["nothing", "reasons", "reasons and advice"],
)
def test_why_not__stored_and_read__is_the_same(why: WhyNot) -> None:
    assert WHY_NOT.validate_json(WHY_NOT.dump_json(why)) == why
