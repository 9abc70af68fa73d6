"""Which processes are ours, and are they alive?

A process is a pid and the moment it started (field 22 of /proc/<pid>/stat, in clock ticks since
boot): a pid alone may have been given to a stranger since. A zombie counts as dead. Signals go
through a pidfd, so they cannot hit a successor. Every child carries TALLYSTICK_UP_ID (this start
of `up`) and TALLYSTICK_SERVICE in its environment, and so do its own children: that is how
leftovers are found. Only the standard library: the guard imports this module.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NewType

Ticks = NewType("Ticks", int)  # clock ticks since boot, as /proc counts them

UP_ID = "TALLYSTICK_UP_ID"
RUN_ID = "TALLYSTICK_RUN_ID"
SERVICE = "TALLYSTICK_SERVICE"

_DEAD_STATES = frozenset("ZXx")
_KILL_SECONDS = 5.0


@dataclass(frozen=True)
class Identity:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start_time: Ticks


def identify(pid: int) -> Identity | None:
    """The identity of the process that has `pid` now; None if it is dead or a zombie."""
    try:
        state, identity = _state(pid)
    except OSError:
        return None
    return None if state in _DEAD_STATES else identity


def identify_child(pid: int) -> Identity:
    """The identity of a child that was not reaped yet, and may be a zombie: its pid is its own."""
    return _state(pid)[1]


def _state(pid: int) -> tuple[str, Identity]:
    stat = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    # The command's name stands in brackets and may itself hold brackets and spaces.
    fields = stat.rpartition(")")[2].split()
    return fields[0], Identity(pid, Ticks(int(fields[19])))


def is_alive(identity: Identity) -> bool:
    """Whether this very process still runs."""
    return identify(identity.pid) == identity


def send(identity: Identity, number: signal.Signals) -> bool:
    """Send a signal to this very process; False if it is dead or not ours to signal."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except OSError:
        return False
    try:
        if not is_alive(identity):
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def running() -> Iterator[Identity]:
    """Every process that this user can see and that is not a zombie."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (identity := identify(int(entry))):
            yield identity


def environment_of(pid: int) -> dict[str, str]:
    """The environment that the process was started with; empty where it cannot be read."""
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in block.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _is_postgres_in(pid: int, folder: Path) -> bool:
    # A Postgres backend overwrites its environment with its title; its folder and program stay.
    try:
        where = os.readlink(f"/proc/{pid}/cwd")
        program = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    return Path(where).is_relative_to(folder) and Path(program).name.startswith("postgres")


def leftovers(
    up_id: str, *, service: str | None = None, postgres_folder: Path | None = None
) -> list[Identity]:
    """Living processes of one start of `up`, without the caller.

    Args:
        up_id: The value of TALLYSTICK_UP_ID to look for.
        service: Only those of this service; None means all.
        postgres_folder: Also the Postgres processes that work in this folder or below.
    """
    found = []
    for identity in running():
        if identity.pid == os.getpid():
            continue
        environment = environment_of(identity.pid)
        ours = environment.get(UP_ID) == up_id and service in (None, environment.get(SERVICE))
        if ours or (postgres_folder and _is_postgres_in(identity.pid, postgres_folder)):
            found.append(identity)
    return found


def kill_all(find: Callable[[], list[Identity]]) -> list[Identity]:
    """SIGKILL what `find` returns until it returns nothing; the rest after the deadline.

    A process may fork while it is being looked for, so one empty look is not the end of it:
    two in a row are.
    """
    deadline = time.monotonic() + _KILL_SECONDS
    empty_looks = 0
    while empty_looks < 2 and time.monotonic() < deadline:
        found = find()
        empty_looks = 0 if found else empty_looks + 1
        for identity in found:
            send(identity, signal.SIGKILL)
        time.sleep(0.005)
    return find()


_OPERATORS = (
    "TALLYSTICK_HOOKS", "TALLYSTICK_PUBLIC_URL", "TALLYSTICK_CONFIRMATIONS",
    "TALLYSTICK_MAX_FEE_GWEI", "TALLYSTICK_BLOB_", "TALLYSTICK_RATE_",
)  # fmt: skip
"""What begins so is for the market's processes, as docs/several-machines.md lists it."""


def scrubbed(environment: dict[str, str]) -> dict[str, str]:
    """What children may inherit: no PG* defaults, of our own variables the hooks and an operator's.

    libpq reads PGPORT, PGHOSTADDR, PGSERVICE and others behind everybody's back.
    """
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_OPERATORS)
        or not name.startswith(("PG", "TALLYSTICK_", "ANVIL_", "FOUNDRY_"))
    }
