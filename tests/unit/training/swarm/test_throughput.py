"""How fast a peer seems to be."""

import pytest

from training.swarm.throughput import ALPHA, Throughput


def test_throughput__nothing_measured__is_the_prior() -> None:
    assert Throughput(prior=3.5).samples_per_second == 3.5


def test_throughput__first_answer__counts_in_full() -> None:
    measured = Throughput(prior=3.5).after(samples=2, seconds=1)

    assert measured.samples_per_second == pytest.approx(2.0)


def test_throughput__two_answers__later_one_weighs_more() -> None:
    measured = Throughput(prior=1.0).after(1, 1.0).after(1, 2.0)

    mean = ((1 - ALPHA) * ALPHA * 1.0 + ALPHA * 2.0) / (1 - (1 - ALPHA) ** 2)
    # The first update of the running mean is ALPHA x 1.0, as the mean begins at zero.
    assert measured.samples_per_second == pytest.approx(1 / mean)


def test_throughput__no_time_at_all__stays_finite() -> None:
    assert Throughput(prior=1.0).after(1, 0.0).samples_per_second == pytest.approx(10**6)
