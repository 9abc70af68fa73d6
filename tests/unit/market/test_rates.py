"""Buckets: how many requests at once, and when the next."""

from market.domain.limits import SECOND, Rate, take

RATE = Rate(per_second=2, burst=3)


def test_take__full_bucket__admits_the_burst_and_then_says_when() -> None:
    full_at, seen = 0, []
    for _ in range(4):
        full_at, allowance = take(full_at, 10 * SECOND, RATE)
        seen.append((allowance.is_admitted, allowance.remaining, allowance.full_in))

    assert seen == [
        (True, 2, SECOND // 2),
        (True, 1, SECOND),
        (True, 0, SECOND * 3 // 2),
        (False, 0, SECOND * 3 // 2),
    ]
    assert allowance.retry_in == SECOND // 2
