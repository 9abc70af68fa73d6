"""How a verdict reads."""

import json

import pytest

from tallystick.audit import report
from tests.support.audited import settled
from tests.support.fake_chain import SHIPS
from tests.support.history import DOMAIN
from verification.audit_file import Verdict, verify


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    return verify(settled().data, SHIPS, anchor=settled().anchor, settlement=DOMAIN.settlement)


def test_lines__anchored_verdict__ends_with_all_of_it(verdict: Verdict) -> None:
    last = list(report.lines(verdict))[-1]

    assert last == (
        "anchored: 6 steps, escrow in 100.000000 = paid 4.000030 + refunded 95.999970"
        " + remaining 0.000000, work unchecked"
    )


def test_lines__every_account__is_named_with_its_pay(verdict: Verdict) -> None:
    text = "\n".join(report.lines(verdict))

    assert all(account.hex() in text for account in verdict.accounts)
    assert "nobody did it again" in text


def test_data__verdict__is_json_with_money_as_strings(verdict: Verdict) -> None:
    found = json.loads(json.dumps(report.data(verdict)))

    assert found["verdict"] == "anchored"
    assert found["escrow"]["paid"] == "4000030"
    assert sum(int(each["paid"]) for each in found["accounts"].values()) == 4_000_030
