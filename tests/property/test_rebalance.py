"""Moves between groups, for every placement that hypothesis can think of."""

from dataclasses import replace
from fractions import Fraction
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from contracts.terms.ids import Address, PeerId, StageIndex
from tests.support.rounds import member
from training.strategies.every_step.rebalance import KEPT_OWNERS, Move, rebalance
from training.strategies.port import Member

PERIOD = 300_000
FLOPS = (3, 2, 7, 2)
GROUPS = range(len(FLOPS))
MANY = 1000  # moves; the longest way of 14 peers is far shorter

places = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 5), st.sampled_from(GROUPS), st.booleans()),
    max_size=14,
).map(
    lambda rows: [
        member(
            PeerId(bytes([number, has_pending] * 16)),
            group,
            of=Address(bytes([owner]) * 20),
            rate=rate * 10**6,
        )
        for number, (rate, owner, group, has_pending) in enumerate(rows)
    ]
)


def next_move(placed: list[Member], since_move: int = PERIOD) -> Move | None:
    pending = {each.peer for each in placed if each.peer[1]}
    return rebalance(placed, FLOPS, since_move=since_move, period=PERIOD, pending=pending)


def after(placed: list[Member], move: Move) -> list[Member]:
    """Everybody where they are then; the rate is that of items of the new group."""
    factor = Fraction(FLOPS[move.source], FLOPS[move.target])
    return [
        replace(each, group=move.target, rate=int(each.rate * factor))
        if each.peer == move.peer
        else each
        for each in placed
    ]


def sums(placed: list[Member]) -> list[int]:
    return [sum(each.rate for each in placed if each.group == group) for group in GROUPS]


def owners(placed: list[Member], group: StageIndex) -> int:
    return len({each.owner for each in placed if each.group == group})


@given(places)
def test_rebalance__until_nobody_moves__minimum_never_falls_owners_stay_and_it_ends(
    placed: list[Member],
) -> None:
    for _ in range(MANY):
        move = next_move(placed)
        if move is None:
            break
        mover = next(each for each in placed if each.peer == move.peer)
        then = after(placed, move)

        assert (mover.group, mover.peer[1]) == (move.source, False)
        assert sums(placed)[move.target] == min(sums(placed)) <= min(sums(then))
        assert sorted(sums(then)) > sorted(sums(placed))
        left = owners(then, move.source)
        assert left >= min(KEPT_OWNERS, owners(placed, move.source)) > 0
        placed = then
    else:
        raise AssertionError("moves do not end")


@given(places, st.integers(0, PERIOD - 1))
def test_rebalance__within_a_period__no_second_move(placed: list[Member], since_move: int) -> None:
    assert next_move(placed, since_move) is None


@given(places, st.randoms(use_true_random=False))
def test_rebalance__peers_in_another_order__the_same_move(
    placed: list[Member], random: Random
) -> None:
    other = list(placed)
    random.shuffle(other)

    assert next_move(other) == next_move(placed)
