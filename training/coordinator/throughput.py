"""How fast a peer is, as who routes sees it: samples per second, smoothed. Pure.

An exponential moving average of seconds per sample, corrected for its start at zero as hivemind's
`PerformanceEMA` is: mean_n = (1 - a) mean_(n-1) + a x, divided by 1 - (1 - a)^n, with a = 0.1.
Before the first answer it is what the coordinator measured when the peer joined.
"""

from dataclasses import dataclass, replace

ALPHA = 0.1


@dataclass(frozen=True)
class Throughput:
    """Samples per second of one peer; `prior` until something is measured."""

    prior: float
    mean: float = 0.0  # seconds per sample, not corrected
    num_updates: int = 0

    def after(self, samples: float, seconds: float) -> "Throughput":
        """With one more answer that took `seconds` for `samples`; faster than a clock is 1 us."""
        fresh = max(seconds, 1e-6) / samples
        mean = (1 - ALPHA) * self.mean + ALPHA * fresh
        return replace(self, mean=mean, num_updates=self.num_updates + 1)

    @property
    def samples_per_second(self) -> float:
        """What is expected of its next answer."""
        if not self.num_updates:
            return self.prior
        return (1 - (1 - ALPHA) ** self.num_updates) / self.mean
