"""Does a process know what it may use, whatever its container shows of the machine?"""

import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

from contracts.terms.errors import WrongConfiguration
from tallystick.resources import CORE, Resources, least

GIB = 2**30
MEMINFO = f"MemTotal:  {24 * GIB // 1024} kB\nMemAvailable:  {20 * GIB // 1024} kB\n"
V2, V1 = "0::/a/b\n", "9:pids:/a\n8:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n"
NO_LIMIT = "9223372036854771712"


def shown(root: Path, groups: str, files: Mapping[str, str]) -> Resources:
    """A machine of 24 GiB with these files in /sys/fs/cgroup."""
    named = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {"proc/meminfo": MEMINFO, "proc/self/cgroup": groups, **named}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Resources(root)


@pytest.mark.parametrize(
    ("groups", "files", "gib"),
    [
        (V2, {}, 24),
        ("", {}, 24),
        ("no line of a group\n", {}, 24),
        (V2, {"a/b/memory.max": "max\n", "a/memory.max": f"{3 * GIB}\n"}, 3),
        (V2, {"a/b/memory.max": f"{2 * GIB}\n", "a/memory.max": f"{3 * GIB}\n"}, 2),
        (V2, {"a/b/memory.max": f"{3 * GIB}\n", "a/b/memory.high": f"{2 * GIB}\n"}, 2),
        (V2, {"a/b/memory.max": f"{48 * GIB}\n"}, 24),
        ("0::/\n", {"memory.max": f"{2 * GIB}\n"}, 2),  # a container with its own root
        ("0::/../other\n", {"memory.max": f"{2 * GIB}\n"}, 2),
        ("0::/docker/of-the-host\n", {"memory.max": f"{2 * GIB}\n"}, 2),
        (V2, {"unified/a/b/memory.max": f"{2 * GIB}\n"}, 2),
        (V1, {"memory/a/b/memory.limit_in_bytes": NO_LIMIT}, 24),
        (V1, {"memory/a/memory.limit_in_bytes": f"{2 * GIB}\n"}, 2),
    ],
)
def test_memory__limits_of_groups__is_the_least_on_the_way_to_the_root(
    tmp_path: Path, groups: str, files: dict[str, str], gib: int
) -> None:
    assert least(shown(tmp_path, groups, files).memory()) == gib * GIB


@pytest.mark.parametrize(
    ("groups", "files", "gib"),
    [
        (V2, {}, 20),
        (
            V2,
            {
                "a/memory.max": f"{4 * GIB}\n",
                "a/memory.current": f"{3 * GIB}\n",
                "a/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
            },
            3,
        ),
        (
            V1,
            {
                "memory/a/b/memory.limit_in_bytes": f"{4 * GIB}\n",
                "memory/a/b/memory.usage_in_bytes": f"{3 * GIB}\n",
                "memory/a/b/memory.stat": "inactive_file 7\ntotal_inactive_file 0\n",
            },
            1,
        ),
    ],
)
def test_free_memory__group_is_in_use__page_cache_counts_as_free(
    tmp_path: Path, groups: str, files: dict[str, str], gib: int
) -> None:
    assert shown(tmp_path, groups, files).free_memory() == gib * GIB


def limited(root: Path, limits: str, status: Mapping[str, str]) -> Resources:
    """A machine of 24 GiB with these ulimits and processes."""
    resources = shown(root, "", {})
    (root / "proc/self/limits").write_text(f"Limit  Soft Limit  Hard Limit  Units\n{limits}")
    for process, text in status.items():
        (root / "proc" / process).mkdir(exist_ok=True)
        (root / "proc" / process / "status").write_text(text)
    return resources


@pytest.mark.parametrize(
    ("limits", "gib"),
    [
        ("Max address space  unlimited  unlimited  bytes\n", 20),
        (f"Max address space  {2 * GIB}  unlimited  bytes\n", 2),
        (f"Max data size  {2 * GIB}  {3 * GIB}  bytes\n", 2),
        (f"Max address space  {30 * GIB}  unlimited  bytes\n", 20),
    ],
)
def test_memory__ulimit_of_the_shell__is_a_limit_too(tmp_path: Path, limits: str, gib: int) -> None:
    resources = limited(tmp_path, limits, {})

    assert resources.free_memory() == gib * GIB
    assert least(resources.memory()) == (24 if gib == 20 else gib) * GIB


@pytest.mark.parametrize(
    ("capabilities", "free"), [("0000000000000000", 23), ("000001ffffffffff", None)]
)
def test_free_tasks__ulimit_of_the_user__less_what_it_runs_unless_it_may_exceed_that(
    tmp_path: Path, capabilities: str, free: int | None
) -> None:
    me = f"Uid:\t1001\t1001\t1001\t1001\nThreads:\t3\nCapEff:\t{capabilities}\n"
    status = {
        "self": me,
        "7": me,
        "8": "Uid:\t1001\t1001\t1001\t1001\nThreads:\t4\n",
        "9": "Uid:\t0\t0\t0\t0\nThreads:\t90\n",
    }
    resources = limited(tmp_path, "Max processes  30  30  processes\n", status)

    assert resources.free_tasks() == free


@pytest.mark.parametrize(
    ("groups", "files", "cores", "threads"),
    [
        (V2, {"a/b/cpu.max": "max 100000\n"}, 4 * CORE, 4),
        (V2, {"a/b/cpu.max": "50000 100000\n"}, CORE // 2, 1),
        (V2, {"a/b/cpu.max": "50000\n", "a/cpu.max": "1 2 3\n", "cpu.max": "1 0\n"}, 4 * CORE, 4),
        (V2, {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "150000 100000\n"}, 1500, 2),
        (V2, {"a/b/cpu.max": "9000000 100000\n"}, 4 * CORE, 4),
        (V1, {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, 4000, 4),
        (V1, {"cpu/cpu.cfs_quota_us": "1000\n", "cpu/cpu.cfs_period_us": "1000000\n"}, 1, 1),
    ],
)
def test_cores__quota__is_a_part_of_a_core_and_at_least_one_thread(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: str,
    files: dict[str, str],
    cores: int,
    threads: int,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    found = shown(tmp_path, groups, files)

    assert (least(found.cores()), found.threads()) == (cores, threads)


def test_cores__bound_to_one_of_them__is_one() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        cores = Resources().cores()
    finally:
        os.sched_setaffinity(0, before)

    assert least(cores) == CORE


@pytest.mark.parametrize(
    ("groups", "files", "left"),
    [
        (V2, {"a/pids.max": "max\n", "a/pids.current": "9\n"}, None),
        (V2, {"a/pids.max": "100\n", "a/pids.current": "90\n"}, 10),
        (V1, {"pids/pids.max": "100\n", "pids/pids.current": "101\n"}, 0),
    ],
)
def test_free_tasks__limit_of_a_group__is_what_is_left(
    tmp_path: Path, groups: str, files: dict[str, str], left: int | None
) -> None:
    found = shown(tmp_path, groups, files)

    assert found.free_tasks() == left
    found.need_tasks(0)
    with nullcontext() if left is None else pytest.raises(WrongConfiguration, match="pids"):
        found.need_tasks(11)
