"""Phases of a round, from what a coordinator tells."""

from tallystick.watch.phases import Passed, Phase, next_phase

Told = tuple[str, int, int]  # event, step, microseconds


def passed(*told: Told) -> list[Passed]:
    """The phases that these lines end."""
    now: Phase | None = None
    found = []
    for event, step, at_us in told:
        now, ended = next_phase(now, event, step, at_us)
        if ended is not None:
            found.append(ended)
    return found


def test_next_phase__a_whole_round__three_phases_without_a_gap() -> None:
    assert passed(
        ("opened", 1, 10),
        ("peer_joined", 1, 15),
        ("claim_stored", 1, 20),
        ("shard_stored", 1, 25),
        ("claim_stored", 1, 30),  # a later one begins no phase
        ("round_closed", 1, 40),
        ("claim_stored", 1, 50),
        ("seal_stored", 1, 70),
        ("claim_stored", 2, 90),
    ) == [
        Passed("work", 1, 10, 10),
        Passed("commit", 1, 20, 20),
        Passed("reduce", 1, 40, 30),
        Passed("work", 2, 70, 20),
    ]


def test_next_phase__restart_in_the_middle__what_nobody_saw_begin_is_not_reported() -> None:
    assert passed(
        ("claim_stored", 3, 10),
        ("opened", 3, 20),
        ("round_closed", 3, 30),
        ("seal_stored", 3, 50),
    ) == [Passed("reduce", 3, 30, 20)]
