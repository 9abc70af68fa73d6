"""What a conviction takes of a stake, and until when."""

import pytest

from contracts.governance.escrow import Budget, Channel, EscrowTimes
from contracts.terms.amounts import BaseUnits
from market.domain.slashing import amount_to_announce

TIMES = EscrowTimes(margin=60, announce=10, execute=20, tail=300)
LAST = 1000 + 300 - 10 - 20
"""From then on nothing of an account that ended at 1000 can be announced."""


def amount(channel: Channel, *, closed_at: int = 0, now: int = 1000) -> int:
    return amount_to_announce(BaseUnits(100), channel, Budget(closed_at=closed_at), TIMES, now)


@pytest.mark.parametrize(("stake", "taken"), [(0, 0), (70, 70), (100, 100), (500, 100)])
def test_amount__stake__is_taken_as_far_as_it_is_wanted(stake: int, taken: int) -> None:
    assert amount(Channel(stake=stake)) == taken


@pytest.mark.parametrize(("end", "closed_at"), [(1000, 0), (0, 1000), (1000, 2000), (2000, 1000)])
def test_amount__account_has_ended__can_be_taken_until_the_stake_is_on_its_way(
    end: int, closed_at: int
) -> None:
    channel = Channel(stake=100, end=end)

    assert amount(channel, closed_at=closed_at, now=LAST - 1) == 100
    assert amount(channel, closed_at=closed_at, now=LAST) == 0
