"""What a repeat compares: the seed that it takes, and how far projections lie apart."""

from dataclasses import replace

import pytest

from contracts.terms.amounts import Flops
from contracts.terms.ids import StageIndex, StepNumber
from tests.support.dockets import peer
from tests.support.history import make_digest
from verification.auditing.loop import apart, seed_for, seed_of
from verification.cases import Case
from verification.thresholds import SATURATED

WORK = Case(
    make_digest("work"),
    "work",
    peer("ann"),
    StageIndex(0),
    StepNumber(3),
    StepNumber(3),
    Flops(10),
    make_digest("work"),
    peer("ann"),
    coin=make_digest("coin 3"),
)


def test_seed_for__work__is_the_auditors_own() -> None:
    assert seed_for(WORK, peer("bob")) == seed_of(make_digest("coin 3"), peer("bob"))
    assert seed_for(WORK, peer("bob")) != seed_for(WORK, peer("cem"))


def test_seed_for__repeat__is_that_of_the_report_whoever_repeats_it() -> None:
    coins = {"coin": make_digest("coin 5"), "seeded_by": make_digest("coin 3")}
    again = replace(WORK, kind="report", doer=peer("bob"), **coins)  # type: ignore[arg-type]

    assert seed_for(again, peer("out")) == seed_for(WORK, peer("bob"))
    assert seed_for(again, peer("oda")) == seed_for(again, peer("out"))


@pytest.mark.parametrize(
    ("stated", "replayed", "distance"),
    [
        ((), (), 0),
        ((5, -7), (5, -7), 0),
        ((5, -7), (6, -4), 3000),
        ((0,), (5, -7), SATURATED),
        ((-(2**63),), (2**63 - 1,), SATURATED),
    ],
)
def test_apart__numbers_after_each_unit__are_the_farthest_in_1e_9(
    stated: tuple[int, ...], replayed: tuple[int, ...], distance: int
) -> None:
    assert apart(stated, replayed) == distance
