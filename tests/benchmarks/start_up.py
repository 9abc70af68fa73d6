"""How long until agents and peers of one machine can work: executed each, and forked from one?

`python -m tests.benchmarks.start_up [--processes N]` starts N processes at once that import what
agents and peers import and then say so, in both ways, and prints a table and one line of JSON with
machine, versions and commit. Nine providers with a peer each are 18. Memory is the sum of the
processes' proportional set sizes.
"""

import argparse
import asyncio
import importlib
import json
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path

from tallystick.up import child as children
from tallystick.up.child import Start
from tallystick.up.forkserver import PRELOADED, Forkserver, launch
from tests.benchmarks.stage_throughput import commit

READY = "can work\n"
ROOT = Path(__file__).resolve().parents[2]
CHILD = (sys.executable, "-m", "tests.benchmarks.start_up", "--child")


async def measured(start: Start, folder: Path, num_processes: int) -> tuple[float, float]:
    """Seconds until all are ready, and MiB of all of them."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    began = time.monotonic()
    started = [
        start(CHILD, environment=environment, log=folder / f"{number}.log")
        for number in range(num_processes)
    ]
    while not all(child.has_said(READY) for child in started):
        ended = [child.last_words() for child in started if child.ended.is_set()]
        assert not ended, ended
        await asyncio.sleep(0.01)
    seconds = time.monotonic() - began
    mebibytes = sum(_memory(child.identity.pid) for child in started) / 1024
    await asyncio.gather(*(child.stop(signal.SIGKILL, grace=5.0) for child in started))
    return seconds, mebibytes


def _memory(pid: int) -> int:
    """Proportional set size, KiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


async def compare(num_processes: int) -> dict[str, object]:
    """Both ways, the executed one first: it fills the file cache for the other."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        executed, executed_memory = await measured(children.start, folder, num_processes)
        began = time.monotonic()
        server = await launch(
            folder / "private" / "socket",
            environment={**os.environ, "PYTHONPATH": str(ROOT)},
            log=folder / "server.log",
        )
        launched = time.monotonic() - began
        try:
            fork = Forkserver(folder / "private" / "socket").start
            forked, forked_memory = await measured(fork, folder, num_processes)
        finally:
            await server.stop(signal.SIGKILL, grace=5.0)
    return {
        "processes": num_processes,
        "executed_seconds": round(executed, 2),
        "forkserver_seconds": round(launched, 2),
        "forked_seconds": round(forked, 2),
        "executed_mib": round(executed_memory),
        "forked_mib": round(forked_memory),
        "load_before": load,
        "commit": commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }


def be_ready() -> None:
    """What the measured processes do."""
    for name in PRELOADED:
        importlib.import_module(name)
    print(READY, end="", flush=True)
    signal.pause()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=18)
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    if options.child:
        be_ready()
        return
    result = asyncio.run(compare(options.processes))
    for name, value in result.items():
        print(f"{name:20} {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
