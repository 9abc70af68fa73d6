"""What happens to the children's children when `up` is killed? This process ends them.

The death signal reaches direct children only; Celery's pool, Postgres' backends and hosted jobs
have parents of their own. The guard holds the reading end of a pipe whose writing end only `up`
has: end of file means that `up` is gone, however it went. Then everything that carries its id
is killed. It ignores the signals of a terminal and imports the standard library only.
"""

import os
import signal
import sys
from pathlib import Path

from tallystick.up.processes import kill_all, leftovers


def wait_for_end(descriptor: int) -> None:
    """Return when the last writing end of the pipe has been closed."""
    while os.read(descriptor, 4096):
        pass


def main(arguments: list[str]) -> int:
    """Wait for the end of `up`, then kill what is left; 1 if something would not die."""
    up_id, postgres_folder = arguments[0], Path(arguments[1])
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wait_for_end(sys.stdin.fileno())
    remaining = kill_all(lambda: leftovers(up_id, postgres_folder=postgres_folder))
    for identity in remaining:
        print(f"pid {identity.pid} would not die", file=sys.stderr)
    return 1 if remaining else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
