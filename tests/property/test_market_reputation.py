"""Reputations, for any outcomes in any order.

* the bound rises with matches, falls with mismatches, and is below the mean
* it is the largest multiple of 1/10000 whose probability is at most 1/20, by exact fractions
* honesty does not depend on duties, nor on the order of audits; liveness on duties alone
"""

from fractions import Fraction
from math import comb

from hypothesis import given
from hypothesis import strategies as st

from market.domain import reputation

COUNTS = st.integers(0, 40) | st.integers(490, 510)
FEW = st.integers(0, 12)
ANY = st.sampled_from(["match", "mismatch", "kept", "missed"])
OUTCOMES = st.lists(ANY, max_size=30) | st.lists(st.just("kept"), min_size=10, max_size=30)


def below(x: Fraction, matches: int, mismatches: int) -> Fraction:
    """Probability of Beta(1 + matches, 1 + mismatches) below x, term by term."""
    a, n = matches + 1, matches + mismatches + 1
    return sum((comb(n, j) * x**j * (1 - x) ** (n - j) for j in range(a, n + 1)), Fraction(0))


@given(COUNTS, FEW)
def test_reputation__any_counts__rises_with_matches_and_falls_with_mismatches(
    matches: int, mismatches: int
) -> None:
    """More matches never lower the bound, more mismatches never raise it; strictly while small."""
    now = reputation.Reputation(matches, mismatches)
    matched, lied = (now.after(reputation.Outcome(each)) for each in ("match", "mismatch"))
    assert lied.bound < now.bound <= matched.bound
    assert matches > 40 or now.bound < matched.bound
    assert Fraction(now.bound, reputation.SCALE) < now.mean
    assert lied.mean < now.mean <= matched.mean


@given(FEW, FEW)
def test_reputation__any_counts__bound_is_exact(matches: int, mismatches: int) -> None:
    """The bound is where the definition says, with no float in sight."""
    bound = reputation.Reputation(matches, mismatches).bound
    at, above = (Fraction(x, reputation.SCALE) for x in (bound, bound + 1))
    assert below(at, matches, mismatches) <= Fraction(1, 20)
    assert below(above, matches, mismatches) > Fraction(1, 20)


@given(OUTCOMES)
def test_reputation__any_outcomes__honesty_and_liveness_are_apart(names: list[str]) -> None:
    """Audits and duties are counted apart, each all of them."""
    found = only_audits = only_duties = reputation.Reputation()
    for outcome in map(reputation.Outcome, names):
        found = found.after(outcome)
        if outcome in ("match", "mismatch"):
            only_audits = only_audits.after(outcome)
        else:
            only_duties = only_duties.after(outcome)
    assert (found.bound, found.mean) == (only_audits.bound, only_audits.mean)
    assert found.liveness == only_duties.liveness
    assert 0 <= found.liveness <= reputation.LIVE
    counts = (found.matches, found.mismatches, found.kept, found.missed)
    assert counts == tuple(map(names.count, ("match", "mismatch", "kept", "missed")))
    last = names[-1] if names else ""
    shorter = reputation.Reputation()
    for outcome in map(reputation.Outcome, names[:-1]):
        shorter = shorter.after(outcome)
    assert last != "kept" or shorter.liveness <= found.liveness
    assert last != "missed" or found.liveness < shorter.liveness or shorter.liveness < 16
