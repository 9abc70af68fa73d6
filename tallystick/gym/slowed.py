"""A machine that is slower than this one, for demos and tests on one machine. Numbers stay equal.

After each pass the slowed stage sleeps in proportion to the CPU time that the pass took, so a peer
with factor 3 takes three times as long as its neighbour on the same cores and computes the same
bytes. CPU time, not wall time: neighbours that crowd the cores would slow it twice.
"""

import functools
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from contracts.terms.errors import WrongConfiguration
from training.worker.ports import Compute

P = ParamSpec("P")
T = TypeVar("T")

MAX_FACTOR = 1000.0
PASSES = ("forward", "backward", "evaluate", "measure")
"""What is timed at joining, routed and paid; the rest of a step stays as quick as it is."""


def slow_down(
    compute: Compute,
    factor: float,
    *,
    cpu_seconds: Callable[[], float] = time.thread_time,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Make each pass of `compute` take `factor` times its time from now on.

    Args:
        compute: One stage, with one thread of computation.
        factor: 1 for the machine as it is.
        cpu_seconds: Clock of what the calling thread has used.
        sleep: Waits this many seconds.

    Raises:
        WrongConfiguration: the factor is not between 1 and 1000.
    """
    if not 1.0 <= factor <= MAX_FACTOR:
        raise WrongConfiguration(f"a slowdown is between 1 and {MAX_FACTOR:.0f}, not {factor}")
    if factor == 1.0:
        return

    is_inside = False  # a pass may be made of another, which then counts already

    def slowed(work: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(work)
        def slowly(*args: P.args, **kwargs: P.kwargs) -> T:
            nonlocal is_inside
            if is_inside:
                return work(*args, **kwargs)
            is_inside, began = True, cpu_seconds()
            try:
                return work(*args, **kwargs)
            finally:
                is_inside = False
                sleep((factor - 1) * (cpu_seconds() - began))

        return slowly

    for name in PASSES:
        setattr(compute, name, slowed(getattr(compute, name)))
