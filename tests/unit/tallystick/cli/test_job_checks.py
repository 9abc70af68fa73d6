"""How `tallystick job checks` reads."""

from typing import Any

import pytest

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, PeerId, StageIndex
from market.bodies import (
    OddsView,
    PeerChecksView,
    RatesView,
    ReceivedView,
    ReputationView,
)
from tallystick.cli.job_views import checks_rows

STRANGER = ReputationView(
    honesty=500, honesty_mean=5000, matches=0, mismatches=0, liveness=500_000, kept=0, missed=0
)


def view(**changed: Any) -> PeerChecksView:
    """A peer that did 40 peer-steps, of which four were drawn."""
    values: dict[str, Any] = {
        "peer": PeerId(b"p" * 32),
        "account": Address(b"a" * 20),
        "stage": StageIndex(2),
        "peer_steps": 40,
        "rates": RatesView(least=50_000, mean=100_000, greatest=625_000),
        "reports": 3,
        "missed": 1,
        "received": ReceivedView(drawn=4, open=1, matched=2, mismatched=1, unrepeated=0, missing=0),
        "odds": (
            OddsView(falsified=40, strangers="1/32", largest_owner="32/243", whole_stage="0x1/0x3"),
        ),
        "stake": BaseUnits(5_000_000),
        "stake_hours": 1250,
        "convicted_at": 17,
        "reputation": STRANGER,
    }
    return PeerChecksView(**(values | changed))


def test_checks_rows__peer_that_was_audited__has_rates_audits_odds_and_stake() -> None:
    rows = checks_rows(view())

    assert rows["q: least, mean, greatest"] == "5.00%, 10.00%, 62.50%"
    assert rows["audits made"] == "3, 1 missed"
    assert rows["audits received"] == (
        "4 drawn: 2 matched, 1 mismatched, 0 unrepeated, 0 missing, 1 open"
    )
    assert rows["P(undetected), 40 false"] == "0.0313, 0.132, 0.334"  # rounded up
    assert rows["stake"] == "5.000000, 1.250 hours of its income here"
    assert rows["convicted"] == "in the seal of step 17"


@pytest.mark.parametrize("gone", ["q: least, mean, greatest", "P(undetected), 40 false"])
def test_checks_rows__auditor_from_outside__has_no_work_of_its_own(gone: str) -> None:
    outside = view(stage=None, peer_steps=0, rates=None, odds=(), stake_hours=None)

    rows = checks_rows(outside)

    assert gone not in rows
    assert rows["stake"] == "5.000000"
