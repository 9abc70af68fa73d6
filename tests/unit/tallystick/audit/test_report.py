"""How a verdict reads."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from tallystick.audit import report
from tests.support.audited import audited, paid_job, running_job
from tests.support.fake_chain import SHIPS
from tests.support.history import START, make_session
from verification.audit.audit_file import Verdict, verify
from verification.draws.odds import Odds


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    return verify(paid_job().data, SHIPS, pins=paid_job().pins)


def checked(verdict: Verdict) -> Verdict:
    """The verdict of a checked job whose peer ann could hide one peer-step of 20, or five."""
    hidden = Fraction(19, 20)
    stated = tuple(
        Odds(falsified, Fraction(1, 2) ** falsified, Fraction(2, 3) ** falsified, hidden**falsified)
        for falsified in (1, 5)
    )
    return replace(
        verdict,
        odds={make_session("ann").peer: stated},
        work="audited where it was drawn",
    )


def test_body__checked_job__has_odds_as_exact_rationals(verdict: Verdict) -> None:
    found = json.loads(report.body(checked(verdict)).model_dump_json())

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


def test_lines__account_that_ended_above_its_limit__says_so() -> None:
    market, job = running_job(name="ended", steps=4)
    account = job.members[0].wallet.account
    vested = next(leaf.vested for leaf in job.seals[-1].pay if leaf.account == account)
    market.write_account(job, account, limit=vested - 5, end=START, ended=1, slashAmount=7)
    market.write_job(job, closedAt=START + 60)

    found = list(report.lines(verify(audited(market, job).data, SHIPS)))

    assert "  vested above it               0.000005" in found
    assert "  announced slash               0.000007" in found
    assert "  ended             2025-06-15 15:06:40 UTC" in found
    assert "  closed            2025-06-15 15:07:40 UTC" in found


def test_lines__no_storage_proved__says_so(verdict: Verdict) -> None:
    accounts = {who: replace(each, channel=None) for who, each in verdict.accounts.items()}

    found = list(report.lines(replace(verdict, escrow=None, accounts=accounts, anchored=False)))

    assert "storage             unproved: the node could not prove any" in found
    assert found[-1].startswith("self-consistent but unanchored: 6 steps, storage unproved, work")
