"""Are costs of checking taken per unit and step, against the same round, without the replays?"""

from dataclasses import replace

import pytest

from tests.benchmarks.audit_overhead_rounds import Turn, cost, costs, together, used

PLAIN = Turn(
    steps=5, units=100, timed_steps=4, timed_seconds=8.0, all_seconds=10.0, peer_cpu=20.0,
    other_cpu=1.0, replay_cpu=0.0, pass_cpu=0.0, replayed_units=0, sent_bytes=5_000_000,
)  # fmt: skip


def test_cost__turn_with_replays__beyond_is_what_they_do_not_explain() -> None:
    checked = replace(PLAIN, peer_cpu=31.0, replay_cpu=10.0, pass_cpu=8.0, replayed_units=50)

    found = cost(checked, PLAIN)

    assert found.compute == pytest.approx(55.0)
    assert found.replays == pytest.approx(50.0)
    assert found.passes == pytest.approx(40.0)
    assert found.beyond == pytest.approx(5.0)
    assert found.replayed == pytest.approx(50.0)


def test_cost__twice_as_many_steps_and_units__is_taken_per_unit_and_step() -> None:
    twice = together([PLAIN, PLAIN])

    found = cost(twice, PLAIN)

    assert found.wall == found.wall_with_audits == found.compute == pytest.approx(0.0)
    assert found.traffic == found.others == pytest.approx(0.0)


def test_cost__audits_that_lag__are_in_one_of_the_two_wall_times() -> None:
    found = cost(replace(PLAIN, all_seconds=12.0), PLAIN)

    assert found.wall == pytest.approx(0.0)
    assert found.wall_with_audits == pytest.approx(20.0)


def test_costs__a_slow_round__is_compared_with_itself() -> None:
    slow = replace(PLAIN, peer_cpu=40.0)
    rounds = [
        {"off": PLAIN, "on": replace(PLAIN, peer_cpu=21.0)},
        {"off": slow, "on": replace(PLAIN, peer_cpu=44.0)},
        {"off": PLAIN, "on": replace(PLAIN, peer_cpu=20.0)},
    ]

    found = costs(rounds, "on", "off")["compute"]

    assert found == {"median": 5.0, "least": 0.0, "most": 10.0, "together": 6.25}


def test_used__all_rounds__is_of_one_step() -> None:
    rounds = [{"off": PLAIN}, {"off": replace(PLAIN, sent_bytes=15_000_000)}]

    assert used(rounds, "off") == {
        "wall, s": 2.0, "peers, CPU s": 4.0, "replays, CPU s": 0.0,
        "coordinator and trainer, CPU s": 0.2, "sent, MB": 2.0,
    }  # fmt: skip
