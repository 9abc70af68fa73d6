"""Reputations, for any outcomes in any order; each property with lines that break it.

* the bound rises with matches, falls with mismatches, and is below the mean
* it is the largest multiple of 1/10000 whose probability is at most 1/20, by exact fractions
* honesty does not depend on duties, nor on the order of audits; liveness on duties alone
"""

from fractions import Fraction
from math import comb
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from market.domain import reputation
from tests.support.mutation import mutant

COUNTS = st.integers(0, 40) | st.integers(490, 510)
FEW = st.integers(0, 12)
ANY = st.sampled_from(["match", "mismatch", "kept", "missed"])
OUTCOMES = st.lists(ANY, max_size=30) | st.lists(st.just("kept"), min_size=10, max_size=30)


def below(x: Fraction, matches: int, mismatches: int) -> Fraction:
    """Probability of Beta(1 + matches, 1 + mismatches) below x, term by term."""
    a, n = matches + 1, matches + mismatches + 1
    return sum((comb(n, j) * x**j * (1 - x) ** (n - j) for j in range(a, n + 1)), Fraction(0))


def check_monotone(module: ModuleType) -> None:
    """More matches never lower the bound, more mismatches never raise it; strictly while small."""

    @settings(max_examples=150, deadline=None, derandomize=True, report_multiple_bugs=False)
    @given(COUNTS, FEW)
    def check(matches: int, mismatches: int) -> None:
        now = module.Reputation(matches, mismatches)
        matched, lied = (now.after(module.Outcome(each)) for each in ("match", "mismatch"))
        assert lied.bound < now.bound <= matched.bound
        assert matches > 40 or now.bound < matched.bound
        assert Fraction(now.bound, module.SCALE) < now.mean
        assert lied.mean < now.mean <= matched.mean

    check()


def check_exact(module: ModuleType) -> None:
    """The bound is where the definition says, with no float in sight."""

    @settings(max_examples=80, deadline=None, derandomize=True, report_multiple_bugs=False)
    @given(FEW, FEW)
    def check(matches: int, mismatches: int) -> None:
        bound = module.Reputation(matches, mismatches).bound
        at, above = (Fraction(x, module.SCALE) for x in (bound, bound + 1))
        assert below(at, matches, mismatches) <= Fraction(1, 20)
        assert below(above, matches, mismatches) > Fraction(1, 20)

    check()


def check_apart(module: ModuleType) -> None:
    """Audits and duties are counted apart, each all of them."""

    @settings(max_examples=150, deadline=None, derandomize=True, report_multiple_bugs=False)
    @given(OUTCOMES)
    def check(names: list[str]) -> None:
        found = only_audits = only_duties = module.Reputation()
        for outcome in map(module.Outcome, names):
            found = found.after(outcome)
            if outcome in ("match", "mismatch"):
                only_audits = only_audits.after(outcome)
            else:
                only_duties = only_duties.after(outcome)
        assert (found.bound, found.mean) == (only_audits.bound, only_audits.mean)
        assert found.liveness == only_duties.liveness
        assert 0 <= found.liveness <= module.LIVE
        counts = (found.matches, found.mismatches, found.kept, found.missed)
        assert counts == tuple(map(names.count, ("match", "mismatch", "kept", "missed")))
        last = names[-1] if names else ""
        shorter = module.Reputation()
        for outcome in map(module.Outcome, names[:-1]):
            shorter = shorter.after(outcome)
        assert last != "kept" or shorter.liveness <= found.liveness
        assert last != "missed" or found.liveness < shorter.liveness or shorter.liveness < 16

    check()


def test_reputation__any_counts__rises_with_matches_and_falls_with_mismatches() -> None:
    check_monotone(reputation)


def test_reputation__any_counts__bound_is_exact() -> None:
    check_exact(reputation)


def test_reputation__any_outcomes__honesty_and_liveness_are_apart() -> None:
    check_apart(reputation)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("matches=self.matches + 1", "matches=self.matches"),
        ("mismatches=self.mismatches + 1", "matches=self.matches + 1"),
        ("return _bound(*self._counted)", "return _bound(*reversed(self._counted))"),
        ("QUANTILE = Fraction(1, 20)", "QUANTILE = Fraction(19, 20)"),
    ],
)
def test_mutated_reputation__counts_wrongly__breaks_its_direction(old: str, new: str) -> None:
    with pytest.raises(AssertionError):
        check_monotone(mutant(reputation, old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "whole - _tail(x, SCALE - x, num_trials, a)",
            "whole - _tail(x, SCALE - x, num_trials, b)",
        ),
        ("for j in range(1, num_terms)", "for j in range(1, num_terms + 1)"),
        ("while high - low > 1", "while high - low > 2"),
        ("matches + 1, mismatches + 1)", "matches + 1, mismatches + 2)"),
    ],
)
def test_mutated_reputation__sums_wrongly__breaks_exactness(old: str, new: str) -> None:
    with pytest.raises(AssertionError):
        check_exact(mutant(reputation, old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("missed=self.missed + 1, liveness=fallen", "mismatches=self.mismatches + 1"),
        ("self.liveness - self.liveness // MEMORY", "self.liveness + self.liveness // MEMORY"),
        ("(LIVE - self.liveness) // MEMORY", "LIVE // MEMORY"),
    ],
)
def test_mutated_reputation__mixes_them_up__breaks_their_separation(old: str, new: str) -> None:
    with pytest.raises(AssertionError):
        check_apart(mutant(reputation, old, new))
