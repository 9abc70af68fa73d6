"""Pauses between tries."""

from training.backoff import Backoff


def test_backoff__tries_that_fail__wait_longer_up_to_the_bound_and_never_all_alike() -> None:
    spans = []
    for _ in range(20):
        backoff = Backoff(1.0, 5.0)
        spans.append([backoff.next() for _ in range(5)])

    bounds = [(0.5, 1), (1, 2), (2, 4), (2.5, 5), (2.5, 5)]
    assert all(
        low <= s <= high for each in spans for s, (low, high) in zip(each, bounds, strict=True)
    )
    assert len({each[0] for each in spans}) > 1
