"""However a caller spreads his requests, no span of time admits more than the bucket promises."""

from hypothesis import given
from hypothesis import strategies as st

from market.domain.limits import SECOND, Rate, take

PAUSES = st.lists(st.integers(0, SECOND), max_size=60)


@given(PAUSES, st.integers(1, 20), st.integers(1, 10))
def test_take__any_pauses__admit_burst_and_rate_at_most(
    pauses: list[int], per_second: int, burst: int
) -> None:
    rate, full_at, now = Rate(per_second, burst), 0, SECOND
    admitted: list[int] = []
    for pause in pauses:
        now += pause
        full_at, allowance = take(full_at, now, rate)
        assert 0 <= allowance.remaining < burst
        if allowance.is_admitted:
            admitted.append(now)

    for first in range(len(admitted)):
        for last in range(first, len(admitted)):
            span = admitted[last] - admitted[first]
            assert last - first + 1 <= burst + span // rate.interval + 1


@given(st.integers(1, 20), st.integers(1, 10), st.integers(0, 50))
def test_take__at_the_rate__is_never_refused(per_second: int, burst: int, number: int) -> None:
    rate, full_at, now = Rate(per_second, burst), 0, SECOND
    for _ in range(number):
        full_at, allowance = take(full_at, now, rate)
        assert allowance.is_admitted
        now += rate.interval
