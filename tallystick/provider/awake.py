"""Was this machine asleep, or this process stopped? Told from three clocks, by how they moved.

CLOCK_BOOTTIME goes on while a machine sleeps, CLOCK_MONOTONIC does not; both go on while a process
is stopped, and neither moves when somebody sets the clock. Units: seconds.
"""

import time
from collections.abc import Collection
from typing import NamedTuple

GAP = 10.0  # less is a machine with much to do


class Clocks(NamedTuple):
    """One look at all of them."""

    wall: float
    monotonic: float
    boot: float


def read_clocks() -> Clocks:
    """Now."""
    return Clocks(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))


def interruption(before: Clocks, after: Clocks, waited: float) -> str | None:
    """What came between two looks that are meant to be `waited` apart; None: nothing to tell."""
    ran = after.monotonic - before.monotonic
    slept = after.boot - before.boot - ran
    turned = after.wall - before.wall - (after.boot - before.boot)
    if slept > GAP:
        return f"this machine was asleep for {slept:.0f} s"
    if ran - waited > GAP:
        return f"this agent was stopped for {ran - waited:.0f} s"
    if abs(turned) > GAP:
        way = "forward" if turned > 0 else "back"
        return f"this machine's clock was turned {way} by {abs(turned):.0f} s"
    return None


def aftermath(held: Collection[bytes], live: Collection[bytes]) -> str:
    """What became of the leases that an agent held, as the market says when it is back."""
    kept = len(set(held) & set(live))
    lost = len(held) - kept
    if not held:
        return "no lease was held, and the offer is spoken for again"
    parts = [f"{kept} of {len(held)} leases go on"]
    if lost:
        parts.append(f"{lost} were given to others: what is sealed without its peer is not paid")
    return "; ".join(parts)
