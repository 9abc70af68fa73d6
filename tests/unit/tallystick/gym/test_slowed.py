"""Does a slowed stage take its time, and compute the same?"""

from contracts.terms.ids import StepNumber
from contracts.terms.items import ItemNumber
from tallystick.gym.hooks import slow_down
from tests.support.fakes.counting import CountingCompute

STEP, UNIT = StepNumber(1), ItemNumber(2)


class Clock:
    """CPU time that grows by 0.5 s from one look to the next, and what was slept."""

    def __init__(self) -> None:
        self.used, self.slept = 0.0, [0.0]

    def cpu_seconds(self) -> float:
        """What the thread has used."""
        self.used += 0.5
        return self.used

    def sleep(self, seconds: float) -> None:
        """Note it."""
        self.slept.append(seconds)


def test_slow_down__a_pass__sleeps_in_proportion_and_changes_no_number() -> None:
    plain, slowed, clock = CountingCompute(2), CountingCompute(2), Clock()
    slow_down(slowed, 4.0, cpu_seconds=clock.cpu_seconds, sleep=clock.sleep)

    # The only stage's forward pass has its backward pass inside, which is not slowed twice.
    assert slowed.forward(STEP, UNIT, None) == plain.forward(STEP, UNIT, None)

    assert clock.slept[1:] == [1.5]
    assert slowed.gradient() == plain.gradient()
