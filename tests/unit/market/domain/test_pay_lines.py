"""Where each line of an account's pay is, and why it waits."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.terms.amounts import BaseUnits, Flops, PricePerPflop
from contracts.terms.ids import Address, Digest, PeerId, StageIndex, StepNumber
from market.domain.earnings import (
    Around,
    Claim,
    OwnPay,
    paid_parts,
    parts_of,
    parts_of_all,
    reason_of,
    state_of,
)
from market.domain.jobs import JobState
from verification.earnings import Held, Line, Standings

RUNNING = Around(JobState.RUNNING, ended=False, window=3, has_ended=False)
SHORT = Around(JobState.FAILED, ended=False, window=3, has_ended=True)


def line(amount: int, *, start: int = 0, held: Held = "vested", number: int = 1) -> Standings:
    """A line of `amount` that begins where `start` has vested before it."""
    name, peer = Digest(bytes(32)), PeerId(bytes(32))
    step = StepNumber(number)
    found = Line(
        number, "work", Address(bytes(20)), peer, StageIndex(0), step, 0, step, name, None, peer,
        1, Flops(1), PricePerPflop(1), None,
    )  # fmt: skip
    return Standings(found, held, BaseUnits(amount), BaseUnits(start))


def pay(vested: int, limit: int, claimed: int, earned: int | None = None) -> OwnPay:
    """What an account has."""
    return OwnPay(
        earned=BaseUnits(vested if earned is None else earned),
        vested=BaseUnits(vested),
        limit=BaseUnits(limit),
        claimed=BaseUnits(claimed),
    )


def reason(found: Standings, own: OwnPay, around: Around, **more: Any) -> str | None:
    """The code of why a line waits."""
    state = state_of(found, parts_of(found, own))
    said = reason_of(state, None, around, worth=found.amount, lost_by=None, **more)
    return None if said is None else said.code


@given(st.lists(st.integers(0, 50), max_size=8), st.data())
def test_parts__lines_that_vested__sum_to_what_was_claimed_is_due_and_lies_above(
    amounts: list[int], data: st.DataObject
) -> None:
    vested = sum(amounts)
    limit = data.draw(st.integers(0, vested + 10))
    own = pay(vested, limit, data.draw(st.integers(0, min(vested, limit))))
    starts = [sum(amounts[:place]) for place in range(len(amounts))]
    lines = [line(amount, start=start) for amount, start in zip(amounts, starts, strict=True)]

    parts = [parts_of(each, own) for each in lines]

    assert [sum(dict(each).values()) for each in parts] == amounts
    assert sum(each.claimed for each in parts) == own.claimed
    assert sum(each.vested for each in parts) == own.due
    assert sum(each.over_limit for each in parts) == own.over_limit
    assert sum(dict(parts_of_all(own, BaseUnits(0), BaseUnits(0))).values()) == own.earned


def test_parts_of_all__what_is_frozen_and_lost__is_not_waiting() -> None:
    parts = parts_of_all(pay(40, 30, 10, earned=100), BaseUnits(5), BaseUnits(7))

    assert (parts.waiting, parts.frozen, parts.forfeited) == (48, 5, 7)
    assert (parts.vested, parts.over_limit, parts.claimed) == (20, 10, 10)


def test_paid_parts__claims_end_within_lines__tell_each_part_once() -> None:
    claims = [
        Claim(BaseUnits(until), block, Digest(bytes([block]) * 32))
        for block, until in ((1, 15), (2, 18), (3, 40))
    ]
    first, second = line(20), line(10, start=20)

    found = [[(each.block, each.amount) for each in paid_parts(x, claims)] for x in (first, second)]

    assert found == [[(1, 15), (2, 3), (3, 2)], [(3, 10)]]
    assert paid_parts(line(20, held="waiting"), claims) == ()


@pytest.mark.parametrize(
    ("held", "own", "around", "code"),
    [
        ("vested", pay(20, 20, 20), RUNNING, None),
        ("vested", pay(20, 20, 5), RUNNING, "claim"),
        ("vested", pay(20, 10, 10), RUNNING, "grant"),
        ("vested", pay(20, 10, 10), SHORT, "ended"),
        ("waiting", pay(0, 20, 0), SHORT, "seal"),
        ("frozen", pay(0, 20, 0), SHORT, "seal"),
    ],
)
def test_reason__where_the_line_is__says_what_ends_its_wait(
    held: Held, own: OwnPay, around: Around, code: str | None
) -> None:
    assert reason(line(20, held=held), own, around) == code
