"""May a caller ask once more? A token bucket, kept as one moment. Pure.

A bucket holds `burst` tokens, is refilled with `per_second` a second, and every request takes one.
All that has to be remembered is when it will be full again (the generic cell rate algorithm, ITU-T
I.371), so storage keeps one integer a caller, and nothing of a caller whose bucket is full.
Moments are microseconds of one clock, whichever.
"""

from dataclasses import dataclass

SECOND = 1_000_000


@dataclass(frozen=True)
class Rate:
    """How often."""

    per_second: int
    burst: int

    @property
    def interval(self) -> int:
        """Microseconds until a token comes back."""
        return max(1, SECOND // self.per_second)


@dataclass(frozen=True)
class Allowance:
    """What became of a request, and what is left."""

    is_admitted: bool
    limit: int
    remaining: int
    full_in: int  # microseconds
    retry_in: int  # microseconds; 0 if it was admitted


def take(full_at: int, now: int, rate: Rate) -> tuple[int, Allowance]:
    """Take a token from the bucket that is full at `full_at`; when it is full afterwards.

    A request that is refused takes none.
    """
    after = max(full_at, now) + rate.interval
    room = now + rate.burst * rate.interval - after
    if room < 0:
        return full_at, Allowance(False, rate.burst, 0, full_at - now, -room)
    return after, Allowance(True, rate.burst, room // rate.interval, after - now, 0)
