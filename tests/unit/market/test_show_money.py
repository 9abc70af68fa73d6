"""What is shown of a job's money: what comes back when, what is due, and when to warn."""

from typing import Any

import pytest

from contracts.governance.escrow import Budget, EscrowTimes
from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, JobId
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.bodies.money import JobMoney, ReturnView
from market.service.rows import LimitRow
from market.service.show_money import account_money, returns_of, warning_of
from market.web.pages.jobs import parts_of_budget

TIMES = EscrowTimes(margin=60, announce=10, execute=20, tail=300)
JOB, ANN, BOB = JobId(bytes(32)), Address(b"a" * 20), Address(b"b" * 20)
OPEN = Budget(funded=1000, committed=400)


def limit(account: Address = ANN, **changed: Any) -> LimitRow:
    """An account's row."""
    values: dict[str, Any] = {
        "limit": 200, "claimed": 0, "earned": 0, "stake": 50, "end": 0, "slash_amount": 0,
        "slash_from": 0,
    }  # fmt: skip
    return LimitRow(job=JOB, account=account, **(values | changed))


def leaf(account: Address = ANN, *, earned: int, vested: int) -> dict[Address, PayLeaf]:
    """A tree of one leaf."""
    return {account: PayLeaf(account, BaseUnits(earned), BaseUnits(vested))}


def back(at: int | None, amount: int) -> ReturnView:
    """What comes back."""
    return ReturnView(
        at=None if at is None else UnixSeconds(at),
        amount=BaseUnits(amount),
        what="free" if at is None else "unspent",
    )


def test_returns__accounts_that_ended__come_back_a_tail_after_each_end() -> None:
    rows = [limit(end=1000), limit(BOB, end=2000, claimed=120), limit(Address(b"c" * 20))]

    found = returns_of(OPEN, rows, leaf(earned=70, vested=10), TIMES.tail)

    assert found == (back(None, 600), back(1300, 130), back(2300, 80))


def test_returns__closed_job__comes_back_a_tail_after_the_earlier_end() -> None:
    closed = Budget(funded=400, committed=400, closed_at=1500)
    rows = [limit(end=1000), limit(BOB, earned=150)]

    assert returns_of(closed, rows, {}, TIMES.tail) == (back(1300, 200), back(1800, 50))


def test_account__vested_above_the_limit__is_due_up_to_it() -> None:
    view = account_money(limit(claimed=30), leaf(earned=500, vested=300)[ANN], OPEN, TIMES)

    assert (view.due, view.earned, view.vested, view.end, view.slash) == (170, 500, 300, None, None)


def test_account__announced_slash_of_one_that_ended__says_until_when() -> None:
    row = limit(end=1000, slash_amount=40, slash_from=1100)

    view = account_money(row, None, OPEN, TIMES)

    assert view.slash is not None and (view.end, view.releasable_at) == (1000, 1300)
    assert (view.slash.amount, view.slash.burns_from) == (40, 1100)


@pytest.mark.parametrize(
    ("burst", "an_hour", "earned", "warns"),
    [(200, 0, 0, False), (199, 0, 0, True), (150, 0, 50, False), (10, 9, 0, False)],
)
def test_warning__limits_ahead_of_work__comes_beyond_burst_and_a_day_of_work(
    burst: int, an_hour: int, earned: int, warns: bool
) -> None:
    rows = [limit(), limit(BOB, end=1000)]
    leaves = leaf(earned=earned, vested=0) if earned else {}

    assert (warning_of(rows, leaves, burst, BaseUnits(an_hour)) is not None) == warns


@pytest.mark.parametrize(("earned", "vested", "claimed"), [(300, 200, 100), (500, 450, 100)])
def test_parts_of_budget__earned_within_and_above_the_limits__sum_to_what_was_brought(
    earned: int, vested: int, claimed: int
) -> None:
    amounts: dict[str, Any] = {
        "funded": 1000, "committed": 400, "free": 600, "claimed": claimed, "earned": earned,
        "vested": vested, "burst": 0, "rate": 1, "allowance": 0, "committed_an_hour": 0,
    }  # fmt: skip
    money = JobMoney(
        job=JOB, poster=ANN, clock=UnixMillis(0), warning=None, closed_at=None,
        releasable_at=None, returns=(), num_accounts=0, accounts=(),
        **amounts,
    )  # fmt: skip

    parts = {part.name: part.amount for part in parts_of_budget(money)}

    assert sum(parts.values()) == 1000 and min(parts.values()) >= 0
    assert (parts["claimed"], parts["free"]) == (claimed, 600)
