"""From sealed steps to earned and vested pay."""

from typing import Any

import pytest

from contracts.governance import vesting
from contracts.governance.checking import Forfeit, Standing
from contracts.governance.pay import Lease
from contracts.governance.vesting import PayState, forfeited_by, pay_after
from contracts.terms.amounts import Flops, PricePerPflop
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address, PeerId, StepNumber

ANN, BOB = PeerId(b"a" * 32), PeerId(b"b" * 32)
WALLET, OTHER = Address(b"w" * 20), Address(b"v" * 20)
LEASES = {ANN: Lease(WALLET, PricePerPflop(1000)), BOB: Lease(OTHER, PricePerPflop(2000))}
PFLOP = 10**15


def advance(
    state: PayState,
    number: int,
    work: dict[PeerId, int],
    standing: Standing | None = None,
    *,
    last: bool = False,
) -> PayState:
    """One more step; without a standing nobody is drawn."""
    step, done = StepNumber(number), {peer: Flops(flops) for peer, flops in work.items()}
    return vesting.advance(state, step, done, standing or Standing(settled_to=step), last=last)


def paid(state: PayState) -> list[tuple[int, int]]:
    return [(leaf.earned, leaf.vested) for leaf in pay_after(state, LEASES)]


@pytest.mark.parametrize(("number", "is_over"), [(1, False), (3, False), (2, True)])
def test_advance__step_that_cannot_be_the_next__is_our_own_bug(number: int, is_over: bool) -> None:
    state = advance(PayState(window=0), 1, {}, last=is_over)

    with pytest.raises(InvariantBroken):
        advance(state, number, {})


def standing(settled_to: int, **said: Any) -> Standing:
    return Standing(settled_to=StepNumber(settled_to), **said)


def test_advance__beacons_are_late__vests_only_what_is_drawn_and_settled() -> None:
    state, seen = PayState(window=1), []
    for number, settled_to in ((1, 0), (2, 0), (3, 2), (4, 3)):
        state = advance(state, number, {ANN: PFLOP}, standing(settled_to))
        seen += paid(state)

    assert seen == [(1000, 0), (2000, 0), (3000, 1000), (4000, 2000)]


def test_advance__open_draw__holds_back_its_step_and_the_window_before_it() -> None:
    state = PayState(window=1)
    for number in (1, 2, 3, 4):
        is_open = {ANN: StepNumber(3)} if number >= 3 else {}
        said = standing(number, open_since=is_open)
        state = advance(state, number, {ANN: PFLOP, BOB: PFLOP}, said)

    assert paid(state) == [(8000, 6000), (4000, 1000)]  # Bob, then Ann

    state = advance(state, 5, {}, standing(5))

    assert paid(state) == [(8000, 8000), (4000, 4000)]


def test_advance__audit_reported__is_earned_like_work_and_waits_like_it() -> None:
    state = advance(PayState(window=1), 1, {}, standing(1, audits={BOB: Flops(PFLOP)}))

    assert paid(state) == [(2000, 0)]
    assert paid(advance(state, 2, {})) == [(2000, 2000)]


def test_advance__frozen__is_earned_and_vests_once_it_is_not() -> None:
    state = advance(PayState(window=1), 1, {ANN: PFLOP})
    state = advance(state, 2, {ANN: PFLOP}, standing(2, frozen=frozenset({ANN})))

    assert paid(state) == [(2000, 0)]

    state = advance(state, 3, {})

    assert paid(state) == [(2000, 2000)]


def test_advance__forfeited__is_earned_and_never_vests() -> None:
    state = advance(PayState(window=1), 1, {ANN: PFLOP})
    state = advance(state, 2, {ANN: PFLOP})  # one step has vested

    state = advance(state, 3, {}, standing(3, forfeits=(Forfeit(ANN),)))
    state = advance(state, 4, {ANN: PFLOP})

    state = advance(state, 5, {}, last=True)

    assert paid(state) == [(3000, 2000)]
    assert forfeited_by(state, LEASES) == {WALLET: 1000}


def test_advance__one_step_forfeited__leaves_the_others() -> None:
    state = PayState(window=5)
    for number in (1, 2):
        state = advance(state, number, {ANN: PFLOP * number})

    said = standing(3, forfeits=(Forfeit(ANN, StepNumber(2)),))
    state = advance(state, 3, {}, said, last=True)

    assert paid(state) == [(3000, 1000)]
    assert forfeited_by(state, LEASES) == {WALLET: 2000}


def test_pay_after__forfeit_between_fractions__adds_up_to_what_was_earned() -> None:
    state, third = PayState(window=0), Flops(PFLOP // 3000)
    for number in range(1, 8):
        lost = (Forfeit(ANN),) if number % 3 == 0 else ()
        said = standing(number, forfeits=lost)
        state = advance(state, number, {ANN: third}, said)

    ((earned, vested),) = paid(state)

    assert earned == 7 * third * 1000 // PFLOP
    assert vested + forfeited_by(state, LEASES)[WALLET] == earned
