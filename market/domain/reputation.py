"""What is known of an account's honesty and of its liveness, apart from each other? Pure.

Honesty is a Beta posterior over audited peer-steps (Josang and Ismail 2002), prior Beta(1, 1): with
m matches and n mismatches Beta(1 + m, 1 + n). What counts is its lower credible bound, the 5 %
quantile, not its mean: a newcomer has a mean of 1/2 and a bound of 1/20. Only work that strangers
did again counts, so work that nobody looked at earns no name (BOINC's trap).
For whole a, b the distribution is exact: I_x(a, b) = P(Binomial(a + b - 1, x) >= a), so the bound
is the largest multiple of 1/10000 at which that is at most 1/20: rounded down.
More than `MOST` matches say nothing new: one mismatch costs as much after ten thousand of them as
after five hundred. Mismatches are never forgotten; nothing depends on a clock.

Liveness is a moving average of duties kept (1) and missed (0), each weighing 1/16, in 1e-6, from
1/2 on. A missed report, data that were not there, a lease that was lost: dying is no lie, so none
of this touches honesty, and honesty touches no liveness.

Nothing here decides how often somebody is audited (docs/protocol.md 7: the rate follows the money
at risk). It is shown, and it orders equal asks; see `standing`.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import cache

MOST = 500  # matches, and mismatches, that count
QUANTILE = Fraction(1, 20)
SCALE = 10_000  # of bounds and of standings
LIVE = 10**6  # of liveness
MEMORY = 16  # duties: a duty's weight is 1 / MEMORY


class Outcome(StrEnum):
    """What a seal settled about an account."""

    MATCH = "match"
    """Its peer-step, or its report that was repeated, is what a stranger found too."""
    MISMATCH = "mismatch"
    """It was convicted by two others, as peer or as auditor; an open case is none."""
    KEPT = "kept"
    """It reported in time, or its lease came to its end."""
    MISSED = "missed"
    """It did not report, did not have its data, or lost its lease."""


@dataclass(frozen=True)
class Reputation:
    """Counts of all outcomes, and the liveness that they led to. Begin with `Reputation()`."""

    matches: int = 0
    mismatches: int = 0
    kept: int = 0
    missed: int = 0
    liveness: int = LIVE // 2  # 1e-6

    def after(self, outcome: Outcome) -> "Reputation":
        """With one more outcome."""
        match outcome:
            case Outcome.MATCH:
                return replace(self, matches=self.matches + 1)
            case Outcome.MISMATCH:
                return replace(self, mismatches=self.mismatches + 1)
            case Outcome.KEPT:
                risen = self.liveness + (LIVE - self.liveness) // MEMORY
                return replace(self, kept=self.kept + 1, liveness=risen)
            case Outcome.MISSED:
                fallen = self.liveness - self.liveness // MEMORY
                return replace(self, missed=self.missed + 1, liveness=fallen)

    @property
    def mean(self) -> Fraction:
        """Mean of the posterior."""
        matches, mismatches = self._counted
        return Fraction(1 + matches, 2 + matches + mismatches)

    @property
    def bound(self) -> int:
        """Lower credible bound of the posterior, 1e-4, rounded down."""
        return _bound(*self._counted)

    @property
    def _counted(self) -> tuple[int, int]:
        return min(self.matches, MOST), min(self.mismatches, MOST)


def standing(reputation: Reputation) -> int:
    """Who comes first among equal asks: the higher one. Honesty first, liveness within it."""
    return reputation.bound * (LIVE + 1) + reputation.liveness


def is_trusted(reputation: Reputation) -> bool:
    """Whether an account is matched at all: known to be worse than a stranger, it is not."""
    return reputation.bound >= NEWCOMER


@cache
def _bound(matches: int, mismatches: int) -> int:
    low, high = 0, SCALE  # at `low` the probability is at most the quantile, at `high` above it
    while high - low > 1:
        middle = (low + high) // 2
        if _is_at_most_quantile(middle, matches + 1, mismatches + 1):
            low = middle
        else:
            high = middle
    return low


def _is_at_most_quantile(x: int, a: int, b: int) -> bool:
    """Whether I_x(a, b) <= 1/20 at x / SCALE; sums the shorter tail of the binomial."""
    num_trials = a + b - 1
    whole: int = SCALE**num_trials
    if b <= a:
        above = _tail(SCALE - x, x, num_trials, b)  # at most b - 1 failures
    else:
        above = whole - _tail(x, SCALE - x, num_trials, a)  # not: at most a - 1 successes
    return above * QUANTILE.denominator <= whole * QUANTILE.numerator


def _tail(hit: int, miss: int, num_trials: int, num_terms: int) -> int:
    """Sum of C(n, j) hit^j miss^(n - j) for j below `num_terms`."""
    term: int = miss**num_trials
    total = term
    for j in range(1, num_terms):
        # Exact: term is C(n, j - 1) hit^(j - 1) miss^(n - j + 1), and miss > 0 below.
        term = term * (num_trials - j + 1) * hit // (j * miss)
        total += term
    return total


NEWCOMER = Reputation().bound
"""What an account of which nothing is known has: 1/20."""
