"""What benchmarks of real processes share: CPU time of a process, and how figures spread."""

import os
import statistics
from collections.abc import Sequence
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")  # a second


def cpu_seconds(pid: int, *, children: bool = False) -> float:
    """CPU seconds of a process so far, 0.0 if it is gone.

    Args:
        pid: Which one.
        children: With those of children that it has waited for.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    fields = stat[11 : 15 if children else 13]  # utime, stime, cutime, cstime
    return sum(map(int, fields)) / _TICKS


def spread(values: Sequence[float], digits: int) -> dict[str, float]:
    """Median, least and most, rounded."""
    return {
        "median": round(statistics.median(values), digits),
        "least": round(min(values), digits),
        "most": round(max(values), digits),
    }
