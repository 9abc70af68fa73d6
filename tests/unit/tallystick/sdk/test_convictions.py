"""What people read of a conviction: every state has its words."""

from typing import Any, get_args

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, Digest, JobId, PeerId, StepNumber
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.bodies.slashes import ConvictionView, SlashState, SlashView
from tallystick.sdk.convictions import ENDED, state_of, told_to_owner

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
        "convicted_at": UnixMillis(0),
        "burns_from": UnixSeconds(1_750_000_000) if state == "announced" else None,
        "answer": None,
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
        auditors=(PeerId(b"p" * 32),),
        slash=shown,
    )


def test_state_of__every_state__has_words_of_its_own() -> None:
    said = {state_of(conviction(None)), *(state_of(conviction(slash(each))) for each in STATES)}

    assert len(said) == len(STATES) + 1
    assert set(ENDED) < set(STATES)


def test_told_to_owner__announced__says_how_much_until_when_and_how_to_look() -> None:
    words = told_to_owner(conviction(slash("announced")))

    assert "2.000000 tokens will be taken" in words and "2025-06-15" in words
    assert "tallystick audit rerun" in words
