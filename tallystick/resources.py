"""What may this process use of the machine? The least of machine, groups, ulimits and affinity.

A container or a service is shown the whole machine by sysconf(3) and /proc/meminfo, and killed or
slowed down at the limits of its control groups. Each of these binds all that is below it, so every
group on the way from ours to the root is asked, in version 2 and in version 1. "max", -1 and the
huge numbers of version 1 are above what the machine has: no limits. Quotas of a folder or container
are in what statvfs(3) calls free, so they are asked nowhere else.

Units: bytes, thousandths of a core, tasks (processes and their threads).
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from contracts.terms.errors import WrongConfiguration

CORE = 1000
MACHINE = "machine"
_ULIMITS = {"Max address space": "ulimit -v", "Max data size": "ulimit -d"}
_MAY_EXCEED = 1 << 21 | 1 << 24
"""CAP_SYS_ADMIN and CAP_SYS_RESOURCE: whoever has one may start more tasks than its ulimit says."""


@dataclass(frozen=True)
class Limit:
    """The most that all processes of one group may use together."""

    group: str  # folder of a control group, some CPUs, a ulimit, or the machine
    amount: int


def least(limits: Iterable[Limit]) -> int:
    """What the tightest of some limits leaves."""
    return min(limit.amount for limit in limits)


@dataclass(frozen=True)
class Resources:
    """Reads what the kernel shows of this process below `root`; everything is asked anew."""

    root: Path = Path("/")

    def memory(self) -> tuple[Limit, ...]:
        """Limits of what may be held: that of the machine, and those that are less."""
        names = ("memory.max", "memory.high", "memory.limit_in_bytes")
        found = [
            (group, _number(group / name)) for group in self._groups("memory") for name in names
        ]
        found += self._ulimits()
        machine = self._memory_field("MemTotal")
        return _binding(machine or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), found)

    def free_memory(self) -> int:
        """What may be taken now: page cache that can be dropped counts as free."""
        found = [self._memory_field("MemAvailable")]
        for group in self._groups("memory"):
            for most, now, cache in (
                ("memory.max", "memory.current", "inactive_file"),
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            ):
                if (limit := _number(group / most)) is not None:
                    used = (_number(group / now) or 0) - _field(_read(group / "memory.stat"), cache)
                    found.append(max(0, limit - used))
        found += [amount for _, amount in self._ulimits() if amount is not None]
        return min(found)

    def cores(self) -> tuple[Limit, ...]:
        """Limits of what may compute at once; a quota of half a core is 500."""
        quotas = [(group, _quota(group)) for group in self._groups("cpu")]
        allowed = sorted(os.sched_getaffinity(0))
        cpus = Path(f"cpus {','.join(map(str, allowed))}")
        return _binding((os.cpu_count() or 1) * CORE, [(cpus, len(allowed) * CORE), *quotas])

    def threads(self) -> int:
        """With how many threads all of its cores compute; one at least."""
        return -(-least(self.cores()) // CORE)

    def free_tasks(self) -> int | None:
        """How many more processes and threads may be started; None: nothing limits them."""
        found = []
        for group in self._groups("pids"):
            if (limit := _number(group / "pids.max")) is not None:
                found.append(max(0, limit - (_number(group / "pids.current") or 0)))
        most, me = self._ulimit("Max processes"), self.read("proc/self/status")
        if most is not None and not int(_word(me, "CapEff") or "0", 16) & _MAY_EXCEED:
            found.append(max(0, most - self._tasks_of(_word(me, "Uid"))))
        return min(found, default=None)

    def need_tasks(self, wanted: int) -> None:
        """Refuse to begin what could not start its threads.

        Raises:
            WrongConfiguration: fewer than `wanted` are left.
        """
        free = self.free_tasks()
        if free is not None and free < wanted:
            raise WrongConfiguration(
                f"{free} processes and threads may be started here, {wanted} are needed: raise the "
                "limit of processes of this container or service (pids) or user (ulimit -u)"
            )

    def read(self, name: str | Path) -> str:
        """A file of /proc or /sys, below `root`; empty where there is none."""
        return _read(self.root / name)

    def _memory_field(self, field: str) -> int:
        return _field(self.read("proc/meminfo"), f"{field}:") * 1024

    def _ulimit(self, name: str) -> int | None:
        found = re.search(rf"^{name}\s+([0-9]+)\s", self.read("proc/self/limits"), re.MULTILINE)
        return int(found[1]) if found else None

    def _ulimits(self) -> list[tuple[Path, int | None]]:
        """Of what one process may map; more than it may hold, so that no less is offered."""
        return [(Path(shown), self._ulimit(name)) for name, shown in _ULIMITS.items()]

    def _tasks_of(self, user: str) -> int:
        """Processes and threads that a user has now."""
        processes = [_read(path / "status") for path in self.root.glob("proc/[0-9]*")]
        return sum(_field(text, "Threads:") for text in processes if _word(text, "Uid") == user)

    def _groups(self, controller: str) -> Iterator[Path]:
        """Folders of the groups that hold us for a controller, those of both versions."""
        mounts = self.root / "sys/fs/cgroup"
        for line in self.read("proc/self/cgroup").splitlines():
            if line.count(":") < 2:
                continue
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _path(mounts, path)
                yield from _path(mounts / "unified", path)
            elif controller in controllers.split(","):
                yield from _path(mounts / controller, path)


def _path(mount: Path, path: str) -> Iterator[Path]:
    """Ours and those above it, as far as they are shown: a container sees its own as the root."""
    group = mount / path.strip("/")
    while group != mount and ".." not in group.parts:
        yield group
        group = group.parent
    yield mount


def _binding(machine: int, found: Iterable[tuple[Path, int | None]]) -> tuple[Limit, ...]:
    less = [each for each in found if each[1] is not None and each[1] < machine]
    return Limit(MACHINE, machine), *(Limit(str(group), max(1, most or 0)) for group, most in less)


def _quota(group: Path) -> int | None:
    """Thousandths of a core."""
    words = _read(group / "cpu.max").split() or [
        _read(group / f"cpu.cfs_{each}_us").strip() for each in ("quota", "period")
    ]
    if len(words) != 2 or not all(word.isdecimal() for word in words):  # "max", -1, no such file
        return None
    quota, period = map(int, words)
    return max(1, quota * CORE // period) if period else None


def _number(path: Path) -> int | None:
    said = _read(path).strip()
    return int(said) if said.isdecimal() else None


def _field(text: str, name: str) -> int:
    found = re.search(rf"^{name}\s+([0-9]+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _word(text: str, name: str) -> str:
    """The first word of a field of /proc/PID/status."""
    found = re.search(rf"^{name}:\s+(\S+)", text, re.MULTILINE)
    return found[1] if found else ""


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
