"""From sealed steps to earned and vested pay."""

import pytest

from contracts.governance.vesting import Lease, PayState, StepFacts, advance, pay_after
from contracts.terms.amounts import Flops, PricePerPflop
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address, PeerId, StepNumber

ANN, BOB = PeerId(b"a" * 32), PeerId(b"b" * 32)
WALLET, OTHER = Address(b"w" * 20), Address(b"v" * 20)
LEASES = {ANN: Lease(WALLET, PricePerPflop(1000)), BOB: Lease(OTHER, PricePerPflop(2000))}
PFLOP = 10**15


def step(number: int, work: dict[PeerId, int], *, last: bool = False) -> StepFacts:
    return StepFacts(StepNumber(number), {peer: Flops(flops) for peer, flops in work.items()}, last)


def paid(state: PayState) -> list[tuple[int, int]]:
    return [(leaf.earned, leaf.vested) for leaf in pay_after(state, LEASES)]


def test_advance__window_of_two__vests_a_step_two_seals_later() -> None:
    state, seen = PayState(window=2), []
    for number in (1, 2, 3, 4):
        state = advance(state, step(number, {ANN: PFLOP}))
        seen += paid(state)

    assert seen == [(1000, 0), (2000, 0), (3000, 1000), (4000, 2000)]


def test_advance__window_of_zero__vests_at_once() -> None:
    assert paid(advance(PayState(window=0), step(1, {ANN: PFLOP}))) == [(1000, 1000)]


def test_advance__last_step__vests_everything() -> None:
    state = advance(PayState(window=5), step(1, {ANN: PFLOP}))

    state = advance(state, step(2, {BOB: PFLOP}, last=True))

    assert paid(state) == [(2000, 2000), (1000, 1000)]  # sorted by account: v before w


def test_pay_after__units_too_small_to_pay_alone__add_up_before_rounding() -> None:
    state = PayState(window=0)
    for number in range(1, 11):
        state = advance(state, step(number, {ANN: PFLOP // 4000}))

    assert paid(state) == [(2, 2)]  # ten times a quarter of a base unit


def test_pay_after__two_leases_of_one_wallet__are_one_leaf_rounded_per_lease() -> None:
    leases = {ANN: Lease(WALLET, PricePerPflop(1)), BOB: Lease(WALLET, PricePerPflop(1))}
    state = advance(PayState(window=0), step(1, {ANN: PFLOP * 3 // 2, BOB: PFLOP * 3 // 2}))

    assert [leaf.earned for leaf in pay_after(state, leases)] == [2]


def test_pay_after__work_below_a_base_unit__has_no_leaf() -> None:
    assert paid(advance(PayState(window=0), step(1, {ANN: 1}))) == []


@pytest.mark.parametrize("number", [1, 3])
def test_advance__step_that_is_not_the_next__is_our_own_bug(number: int) -> None:
    state = advance(PayState(window=0), step(1, {}))

    with pytest.raises(InvariantBroken):
        advance(state, step(number, {}))


def test_advance__step_after_the_last__is_our_own_bug() -> None:
    state = advance(PayState(window=0), step(1, {}, last=True))

    with pytest.raises(InvariantBroken):
        advance(state, step(2, {}))
