"""What a conviction takes and who gets it; any history is in tests/property."""

from dataclasses import replace

import pytest

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import Address, Digest, JobId
from market.domain.slashing import Conviction, Slash, SlashRules, settle_together

RULES = SlashRules(max_slash=10_000, max_bounty=2_000, min_burn=5_000)
CHEAT, FINDER = Address(bytes([1]) * 20), Address(bytes([2]) * 20)


def conviction(number: int = 1, *, wanted: int = 100, owed: int = 1000) -> Conviction:
    return Conviction(
        Digest(bytes([number]) * 32),
        JobId(b"j" * 32),
        CHEAT,
        BaseUnits(wanted),
        BaseUnits(owed),
        FINDER,
    )


def settled(
    *convictions: Conviction, slashable: int = 1000, announced: int = 0, rules: SlashRules = RULES
) -> tuple[Slash, ...]:
    return settle_together(
        convictions,
        slashable=BaseUnits(slashable),
        announced=BaseUnits(announced),
        rules=rules,
    )


def parts(slash: Slash) -> tuple[int, int, int]:
    return slash.bounty, slash.restitution, slash.burned


def test_settle_together__one_conviction__splits_by_the_rules() -> None:
    (slash,) = settled(conviction())

    assert slash.amount == 100
    assert parts(slash) == (20, 30, 50)
    assert (slash.challenger, slash.account) == (FINDER, CHEAT)


def test_settle_together__job_owed_less_than_its_part__rest_is_burned() -> None:
    (slash,) = settled(conviction(owed=7))

    assert parts(slash) == (20, 7, 73)


def test_settle_together__several__share_one_stake_in_proportion() -> None:
    first, second = settled(conviction(1, wanted=300), conviction(2, wanted=100), slashable=200)

    assert (first.amount, second.amount) == (150, 50)


def test_settle_together__odd_amounts__dust_is_burned_or_left() -> None:
    slashes = settled(conviction(1, wanted=5), conviction(2, wanted=5), slashable=7)

    assert [each.amount for each in slashes] == [3, 3]
    assert [parts(each) for each in slashes] == [(0, 1, 2), (0, 1, 2)]


def test_settle_together__two_accounts__is_a_bug_of_ours() -> None:
    with pytest.raises(InvariantBroken):
        settled(conviction(1), replace(conviction(2), account=FINDER))
