"""How a verdict reads."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from contracts.terms.amounts import BaseUnits
from tallystick.audit import report
from tests.support.audited import settled
from tests.support.fake_chain import SHIPS
from tests.support.history import DOMAIN, make_session
from verification.audit.audit_file import Verdict, verify
from verification.draws.odds import Odds


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    return verify(settled().data, SHIPS, anchor=settled().anchor, settlement=DOMAIN.settlement)


def audited(verdict: Verdict) -> Verdict:
    """The verdict of a checked job whose peer ann could hide one peer-step of 20, or five."""
    hidden = Fraction(19, 20)
    stated = tuple(
        Odds(falsified, Fraction(1, 2) ** falsified, Fraction(2, 3) ** falsified, hidden**falsified)
        for falsified in (1, 5)
    )
    return replace(
        verdict,
        odds={make_session("ann").peer: stated},
        forfeited=BaseUnits(1_500_000),
        work="audited where it was drawn",
    )


def test_data__checked_job__has_odds_as_exact_rationals(verdict: Verdict) -> None:
    found = json.loads(json.dumps(report.data(audited(verdict))))

    assert found["forfeited"] == "1500000"
    assert found["odds"] == {
        make_session("ann").peer.hex(): [
            {
                "falsified": 1,
                "strangers": "1/2",
                "largest_owner": "2/3",
                "whole_stage": "19/20",
            },
            {
                "falsified": 5,
                "strangers": "1/32",
                "largest_owner": "32/243",
                "whole_stage": "2476099/3200000",
            },
        ]
    }
