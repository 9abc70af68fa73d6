"""Is what would admit an offer said in units of people?"""

import pytest

from market.bodies.advice import would_fit


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("price_ceiling 1000000000", "price_ceiling 1000 tokens"),
        ("min_stake 45583", "min_stake 0.045583 tokens"),
        ("deadline 1700000000", "deadline 2023-11-14 22:13:20 UTC"),
        ("deadline 99999999999999999999", "deadline 99999999999999999999"),
        ("memory_bytes 1610612736", "memory 1.5 GiB"),
        ("an agent that answers", "an agent that answers"),
    ],
)
def test_would_fit__number__is_in_tokens_or_utc(text: str, said: str) -> None:
    assert would_fit(text) == said
