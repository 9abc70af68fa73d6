"""Does a slowed strategy take its time, and compute the same?"""

from functools import partial
from typing import Any

from contracts.terms.ids import StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from tallystick.gym.hooks import Slowed
from tests.support.fakes.counting import CountingStrategy, rows_of
from tests.support.fakes.memory_source import MemorySource, at_once
from tests.support.history import make_spec

ITEM = ItemNumber(2)


class Clock:
    """CPU time that grows by 0.5 s from one look to the next, and what was slept."""

    def __init__(self) -> None:
        self.used, self.slept = 0.0, list[float]()

    def cpu_seconds(self) -> float:
        """What the thread has used."""
        self.used += 0.5
        return self.used

    def sleep(self, seconds: float) -> None:
        """Note it."""
        self.slept.append(seconds)


async def test_slowed__a_pass__sleeps_in_proportion_and_changes_no_number() -> None:
    make, clock, leaves = partial(CountingStrategy, make_spec()), Clock(), []
    slowed: Any = Slowed(make, at_once, 4.0, cpu_seconds=clock.cpu_seconds, sleep=clock.sleep)
    for strategy in (make(at_once), slowed):
        strategy.start(strategy.first_state(StageIndex(0)), StepNumber(1))
        leaves.append(await strategy.run(ITEM, "whole", MemorySource(rows_of)))

    assert leaves[0] == leaves[1]
    assert clock.slept == [1.5]
