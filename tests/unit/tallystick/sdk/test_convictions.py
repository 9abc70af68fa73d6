"""What people read of a conviction: every state has its words, and the split adds up."""

from typing import Any, get_args

import pytest

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, Digest, JobId, PeerId, StepNumber
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.bodies import ConvictionView, SlashState, SlashView
from tallystick.cli.job_views import conviction_table
from tallystick.sdk.convictions import ENDED, split_of, state_of, told_to_owner

EVIDENCE, TRANSACTION = Digest(b"e" * 32), Digest(b"t" * 32)
STATES = get_args(SlashState)


def slash(state: Any, **changed: Any) -> SlashView:
    values: dict[str, Any] = {
        "evidence": EVIDENCE,
        "job": JobId(b"j" * 32),
        "account": Address(b"a" * 20),
        "state": state,
        "wanted": BaseUnits(3_000_000),
        "amount": BaseUnits(2_000_000),
        "restitution": BaseUnits(100_000),
        "bounty": BaseUnits(400_000),
        "burned": BaseUnits(0),
        "challenger": Address(b"c" * 20),
        "convicted_at": UnixMillis(0),
        "case": 1,
        "window_ends": UnixSeconds(1_750_000_000) if state == "announced" else None,
        "contest": None,
        "announced_by": None,
        "ended_by": TRANSACTION if state in ENDED else None,
    }
    return SlashView(**(values | changed))


def conviction(shown: SlashView | None) -> ConvictionView:
    return ConvictionView(
        job=JobId(b"j" * 32),
        subject=Digest(b"s" * 32),
        step=StepNumber(4),
        account=Address(b"a" * 20),
        wanted=BaseUnits(3_000_000),
        owed=BaseUnits(100_000),
        auditors=(PeerId(b"p" * 32),),
        slash=shown,
    )


def test_state_of__every_state__has_words_of_its_own() -> None:
    said = {state_of(conviction(None)), *(state_of(conviction(slash(each))) for each in STATES)}

    assert len(said) == len(STATES) + 1
    assert set(ENDED) < set(STATES)


def test_state_of__announced__says_until_when_it_can_be_contested() -> None:
    assert "until 2025-06-15 15:06:40 UTC" in state_of(conviction(slash("announced")))
    assert "until its window ends" in state_of(conviction(slash("announced", window_ends=None)))


@pytest.mark.parametrize(
    ("state", "burned", "total"), [("announced", 0, "2.000000"), ("executed", 700_000, "1.200000")]
)
def test_split_of__announced_or_taken__adds_up(state: str, burned: int, total: str) -> None:
    parts = split_of(slash(state, burned=BaseUnits(burned))).split(" = ")

    assert parts[0] == total
    amounts = [float(each.split()[0]) for each in parts[1].split(" + ")]
    assert sum(amounts) == pytest.approx(float(total))


def test_told_to_owner__by_state__says_what_it_costs_and_what_to_do() -> None:
    noted, announced, executed = (
        told_to_owner(conviction(each)) for each in (None, slash("announced"), slash("executed"))
    )

    assert noted.startswith(f"convicted in job {(b'j' * 6).hex()}: noted")
    assert noted.endswith("3.000000 tokens of stake are at risk")
    for words in ("job evidence", "audit rerun", "provider contest"):
        assert f"tallystick {words}" in announced
    assert EVIDENCE.hex() in announced and TRANSACTION.hex() in executed


def rows_of(shown: SlashView | None) -> dict[str, str]:
    """What a person is shown, by its name."""
    names, values = conviction_table(conviction(shown)).columns
    return dict(zip(map(str, names.cells), map(str, values.cells), strict=True))


def test_conviction_table__by_state__has_what_there_is_to_know() -> None:
    noted, announced = rows_of(None), rows_of(slash("announced", announced_by=TRANSACTION))
    dropped = rows_of(slash("dropped", contest=Digest(b"o" * 32)))

    assert noted["who may show it"] == (b"p" * 32).hex() and "evidence" not in noted
    assert announced["evidence"] == EVIDENCE.hex() and announced["stake"].startswith("2.000000 = ")
    assert announced["announced in"] == f"0x{TRANSACTION.hex()}" and "ended in" not in announced
    assert dropped["contest"] == (b"o" * 32).hex() and "stake" not in dropped
    assert dropped["ended in"] == f"0x{TRANSACTION.hex()}"
