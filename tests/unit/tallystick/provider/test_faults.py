"""How often is an owner told of a fault that lasts?"""

from tallystick.provider.background import Faults


class Log:
    """Lines, and a clock that stands still unless it is told."""

    def __init__(self) -> None:
        self.now, self.said = 0.0, list[str]()
        self.faults = Faults(self.said.append, lambda: self.now)


def test_tell__for_two_hours_in_changing_words__five_lines_and_one_at_the_end() -> None:
    log = Log()

    for beat in range(720):
        log.now = 10.0 * beat
        log.faults.tell("market", f"waiting: {'no route' if beat % 2 else 'timed out'}")
    log.faults.over("market")

    assert log.said == [
        "waiting: timed out",
        "waiting: timed out (for 0:01:00 now)",
        "waiting: timed out (for 0:06:00 now)",
        "waiting: timed out (for 0:21:00 now)",
        "waiting: timed out (for 1:21:00 now)",
        "over after 1:59:50: waiting: no route",
    ]
