"""How long does a test wait for what is to happen? So long that no verdict depends on speed.

A limit only ends what hangs. Tests write it as seconds that are plenty on a quiet machine, and
`patience` makes of it what is plenty on this one: `GENEROUS` times more, and by as much more as a
fixed piece of work takes longer here than on the machine that the limits were written on. All
cores do that work at once, so a quota, other work beside it and slow cores all count. It is done
once a run, and told to the run's other processes by the environment.
"""

import os
import subprocess
import sys
from functools import cache

GENEROUS = 3.0
LONGEST = 60.0
"""Times a limit, at most: what hangs ends some day."""

LIMIT = 600.0
"""Seconds of a test, and of a run in which no test ends, on any machine."""

SECONDS_OF_WORK = 0.20
"""That `_WORK` took on each of two quiet cores of x86_64, CPython 3.11."""

_WORK = """
import time
began = time.perf_counter()
sum(number * number for number in range(3_000_000))
print(time.perf_counter() - began)
"""
_TOLD = "TESTS_PATIENCE"


def patience(seconds: float) -> float:
    """What `seconds` on a quiet machine are here, and more than enough."""
    return seconds * factor()


def limit(seconds: float) -> float:
    """How long a test may take here: `patience(seconds)`, `LIMIT` at most."""
    return min(patience(seconds), LIMIT)


@cache
def factor() -> float:
    """How many times longer than on a quiet machine is waited."""
    if _TOLD not in os.environ:
        os.environ[_TOLD] = str(factor_at(_seconds_of_work() / SECONDS_OF_WORK))
    return float(os.environ[_TOLD])


def factor_at(slowness: float) -> float:
    """The same for a machine on which work takes `slowness` times longer."""
    return min(LONGEST, GENEROUS * max(1.0, slowness))


def _seconds_of_work() -> float:
    command = [sys.executable, "-I", "-S", "-c", _WORK]
    num_cores = len(os.sched_getaffinity(0))
    cores = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(num_cores)]
    return max(float(core.communicate()[0]) for core in cores)
