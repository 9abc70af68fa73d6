"""Pay that seals freeze, forfeit or give back: the ledger says after each what the seal says.

Any work, any waiting pay moved between accounts and the reserved ones, any of it vested: balances
are the leaves, nothing is made or lost, and a seal by which something falls is refused.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address, JobId
from contracts.terms.merkle import FORFEITED, FROZEN
from market.domain import ledger

JOB, BUDGET = JobId(b"j" * 32), BaseUnits(10**6)
ACCOUNTS = (FROZEN, FORFEITED, *(Address(bytes([number]) * 20) for number in (7, 8, 9)))
PLACES = st.integers(0, len(ACCOUNTS) - 1)

Step = tuple[list[int], list[tuple[int, int, int]], list[int]]
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(
        st.lists(st.integers(0, 50), min_size=5, max_size=5),  # earned by each
        st.lists(st.tuples(PLACES, PLACES, st.integers(0, 100)), max_size=4),  # moved, in per cent
        st.lists(st.integers(0, 100), min_size=5, max_size=5),  # vested of what waits
    ),
    min_size=1,
    max_size=6,
)


def leaves(waiting: list[int], vested: list[int]) -> tuple[PayLeaf, ...]:
    """What a seal says; an account without pay has no leaf."""
    said = (
        PayLeaf(account, BaseUnits(waits + has), BaseUnits(has))
        for account, waits, has in zip(ACCOUNTS, waiting, vested, strict=True)
        if waits + has
    )
    return tuple(sorted(said, key=lambda leaf: leaf.account))


def run(steps: list[Step]) -> None:
    """Seals one after the other, each booked and compared."""
    balances = ledger.book({}, ledger.deposit(JOB, BUDGET))
    waiting, vested, before = [0] * 5, [0] * 5, tuple[PayLeaf, ...]()
    for work, moves, parts in steps:
        for place, amount in enumerate(work):
            waiting[place] += amount
        for source, target, part in moves:
            moved = waiting[source] * part // 100
            waiting[source] -= moved
            waiting[target] += moved
        for place, part in enumerate(parts):
            ripe = waiting[place] * part // 100
            waiting[place] -= ripe
            vested[place] += ripe
        after = leaves(waiting, vested)
        balances = ledger.book(balances, ledger.sealed(JOB, before, after))
        before = after
        for place, account in enumerate(ACCOUNTS):
            assert balances.get(ledger.earned(JOB, account), 0) == waiting[place]
            assert balances.get(ledger.vested(JOB, account), 0) == vested[place]
        assert balances[ledger.escrow(JOB)] == BUDGET - sum(waiting) - sum(vested)


@given(STEPS)
def test_sealed__any_pay_frozen_and_forfeited__is_what_the_ledger_says(steps: list[Step]) -> None:
    run(steps)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=5, max_size=5), PLACES)
def test_sealed__something_falls__is_a_bug_of_ours(pay: list[tuple[int, int]], place: int) -> None:
    waiting, vested = [each[0] for each in pay], [each[1] for each in pay]
    before = leaves(waiting, [each + 1 for each in vested])
    fewer = [each + (index != place) for index, each in enumerate(vested)]

    with pytest.raises(InvariantBroken):
        ledger.sealed(JOB, before, leaves(waiting, fewer))
