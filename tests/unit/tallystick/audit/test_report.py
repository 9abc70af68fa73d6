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


def test_lines__anchored_verdict__ends_with_all_of_it(verdict: Verdict) -> None:
    last = list(report.lines(verdict))[-1]

    assert last == (
        "anchored: 6 steps, escrow in 100.000000 = paid 4.000030 + refunded 95.999970"
        " + remaining 0.000000, work unchecked"
    )


def test_lines__seals_that_no_batch_holds__are_said_not_to_count(verdict: Verdict) -> None:
    checked = {**verdict.checked, "seals in no batch": 2}

    found = list(report.lines(replace(verdict, checked=checked)))

    assert "  later ones        2 in no batch: no figure here counts them" in found
    assert found[-1].startswith("anchored: 6 steps (2 later ones in no batch, not counted), escrow")


def test_lines__every_account__is_named_with_its_pay(verdict: Verdict) -> None:
    text = "\n".join(report.lines(verdict))

    assert all(account.hex() in text for account in verdict.accounts)
    assert "nobody did it again" in text


def test_data__verdict__is_json_with_money_as_strings(verdict: Verdict) -> None:
    found = json.loads(json.dumps(report.data(verdict)))

    assert found["verdict"] == "anchored"
    assert found["escrow"]["paid"] == "4000030"
    assert sum(int(each["paid"]) for each in found["accounts"].values()) == 4_000_030


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


def test_lines__checked_job__states_odds_with_their_volume(verdict: Verdict) -> None:
    found = list(report.lines(audited(verdict)))

    at = found.index(f"peer                0x{make_session('ann').peer.hex()}")
    assert found[at - 1].startswith("P(undetected) of so many false peer-steps")
    assert found[at + 1].split() == ["1", "0.5", "0.667", "0.95"]
    assert found[at + 2].split() == ["5", "0.0313", "0.132", "0.774"]  # rounded up


def test_lines__checked_job__says_what_was_forfeited_and_that_work_was_audited(
    verdict: Verdict,
) -> None:
    found = list(report.lines(audited(verdict)))

    assert "forfeited                       1.500000" in found
    assert "work                audited where it was drawn" in found
    assert found[-1].endswith("work audited where it was drawn")


def test_lines__unchecked_job__says_nothing_of_odds_and_forfeits(verdict: Verdict) -> None:
    text = "\n".join(report.lines(verdict))

    assert "P(undetected)" not in text and "forfeited" not in text


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


def test_data__unchecked_job__has_no_odds(verdict: Verdict) -> None:
    found = report.data(verdict)

    assert (found["odds"], found["forfeited"]) == ({}, "0")
