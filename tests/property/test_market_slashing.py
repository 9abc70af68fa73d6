"""Any convictions against any stake: caps hold, nothing is made or lost.

Whatever is convicted, all slashes together take at most what one case may; at least half of each is
burned; the challenger has at most a fifth; the job gets at most what it paid or owed; whoever
stages convictions against himself gets back less than half of what they take, and takes nothing
from a case that is settled with them beyond its share.
"""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from contracts.terms.amounts import UINT96_MAX, BaseUnits
from contracts.terms.ids import Address, Digest, JobId
from market.domain import slashing

JOB, CHEAT = JobId(b"j" * 32), Address(b"c" * 20)
FINDERS = (Address(b"1" * 20), Address(b"2" * 20), CHEAT)
AMOUNTS = st.one_of(st.integers(0, 50), st.integers(0, UINT96_MAX))


@dataclass(frozen=True)
class Situation:
    """Convictions against one stake."""

    wanted: tuple[tuple[int, int, int], ...]  # of the stake, owed, who found it
    slashable: int
    announced: int
    max_slash: int
    max_bounty: int
    min_burn: int


SITUATIONS = st.builds(
    Situation,
    wanted=st.lists(st.tuples(AMOUNTS, AMOUNTS, st.integers(0, 2)), min_size=1, max_size=5).map(
        tuple
    ),
    slashable=AMOUNTS,
    announced=AMOUNTS,
    max_slash=st.integers(1, 10_000),
    max_bounty=st.integers(0, 2_000),
    min_burn=st.integers(5_000, 8_000),
)


def check(now: Situation) -> None:
    """All that holds of the slashes in a situation."""
    convictions = [
        slashing.Conviction(
            Digest(bytes([number]) * 32), JOB, CHEAT, BaseUnits(wanted), BaseUnits(owed),
            FINDERS[finder],
        )
        for number, (wanted, owed, finder) in enumerate(now.wanted)
    ]  # fmt: skip
    slashes = slashing.settle_together(
        convictions,
        slashable=BaseUnits(now.slashable),
        announced=BaseUnits(now.announced),
        rules=slashing.SlashRules(now.max_slash, now.max_bounty, now.min_burn),
    )
    by_evidence = {slash.evidence: slash for slash in slashes}
    cap = max(0, now.slashable * now.max_slash // 10_000 - now.announced)
    asked = sum(each.wanted for each in convictions)
    total = sum(slash.amount for slash in slashes)
    assert len(by_evidence) == len(slashes)
    assert min(cap, asked) - len(convictions) < total <= min(cap, asked) or not asked
    for each in convictions:
        slash = by_evidence.get(each.evidence)
        share = each.wanted * min(cap, asked) // asked if asked else 0
        assert (slash.amount if slash else 0) == share
        if slash is not None:
            check_split(slash, each.owed, now)


def check_split(slash: slashing.Slash, owed: int, now: Situation) -> None:
    """What StakeRegistry checks, and what it cannot know."""
    given = slash.restitution + slash.bounty
    assert slash.amount > 0 and slash.restitution >= 0 and slash.bounty >= 0
    assert slash.burned == slash.amount - given
    assert given <= slash.amount * (10_000 - now.min_burn) // 10_000
    assert 2 * slash.burned >= slash.amount
    assert slash.bounty <= slash.amount * now.max_bounty // 10_000
    assert slash.restitution <= owed
    assert slash.challenger != slash.account or not slash.bounty


@given(SITUATIONS)
def test_settle_together__any_convictions__keeps_every_cap(now: Situation) -> None:
    check(now)
