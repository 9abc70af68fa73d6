"""Phases of a step, from what a coordinator tells."""

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


def test_next_phase__a_whole_step__three_phases_without_a_gap() -> None:
    assert passed(
        ("opened", 1, 10),
        ("peer_joined", 1, 15),
        ("step_closed", 1, 20),
        ("grad_commit_stored", 1, 25),
        ("average_set_stored", 1, 40),
        ("seal_stored", 1, 70),
        ("step_closed", 2, 90),
    ) == [
        Passed("work", 1, 10, 10),
        Passed("commit", 1, 20, 20),
        Passed("sum", 1, 40, 30),
        Passed("work", 2, 70, 20),
    ]


def test_next_phase__revised_close__is_the_same_commit_phase() -> None:
    assert passed(
        ("opened", 1, 0), ("step_closed", 1, 10), ("step_closed", 1, 20), ("seal_stored", 1, 50)
    ) == [Passed("work", 1, 0, 10), Passed("commit", 1, 10, 40)]


def test_next_phase__restart_in_the_middle__what_nobody_saw_begin_is_not_reported() -> None:
    assert passed(
        ("step_closed", 3, 10),
        ("opened", 3, 20),
        ("average_set_stored", 3, 30),
        ("seal_stored", 3, 50),
    ) == [Passed("sum", 3, 30, 20)]
