"""Whoever lends a machine goes on using it: a peer stands back for everything else that runs there.

The kernel gives a process that is `nice` less of a core that others want, and all of one that
nobody wants.
"""

import contextlib
import os
from pathlib import Path

NICE = 5
"""A third of the weight of a process that is not nice (each unit is a factor of 1.25)."""
MAX_NICE = 19
_OF_SESSION = Path("/proc/self/autogroup")


def stand_back(nice: int, of_session: Path = _OF_SESSION) -> None:
    """Be as nice as that, with all threads that are begun from now on; 0 changes nothing.

    Where Linux groups processes by session (sched_autogroup(7)), niceness counts inside of one
    only, so a process that leads its session sets that of its group, too.

    Args:
        nice: 0 to 19, as for nice(1).
        of_session: Where that of the session's group is written, if anywhere.
    """
    if nice == 0:
        return
    os.setpriority(os.PRIO_PROCESS, 0, max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # a kernel without groups, or a container's
            of_session.write_text(str(nice), encoding="ascii")
