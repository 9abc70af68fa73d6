"""What people read of a conviction: every state has its words, and the split adds up."""

from typing import Any, get_args

import pytest

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, Digest, JobId, PeerId, StepNumber
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.bodies.settlement import ConvictionView, SlashState, SlashView
from tallystick.sdk.convictions import ENDED, split_of, state_of

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


@pytest.mark.parametrize(
    ("state", "burned", "total"), [("announced", 0, "2.000000"), ("executed", 700_000, "1.200000")]
)
def test_split_of__announced_or_taken__adds_up(state: str, burned: int, total: str) -> None:
    parts = split_of(slash(state, burned=BaseUnits(burned))).split(" = ")

    assert parts[0] == total
    amounts = [float(each.split()[0]) for each in parts[1].split(" + ")]
    assert sum(amounts) == pytest.approx(float(total))
