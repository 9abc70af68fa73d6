"""What does a market cost that nobody uses, service by service, and beside an earlier commit?

    git worktree add /tmp/before 7db4be1
    python -m tests.benchmarks.idle_cpu [--seconds N] [--providers N] [--against /tmp/before]

Starts `tallystick up` on free ports over an empty folder, and N agents that find no work; waits
until all have settled, then reads of each service the CPU seconds that it and its children use in
N seconds. With `--against` a second market of that checkout (PYTHONPATH) idles beside the first in
the same seconds, so what else the machine does is on both sides. CPU seconds are from /proc, user
and system, of living children and of those that were waited for; memory is the proportional set
size at the end. Prints a table, 100 % being one core, and one line of JSON.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tallystick.up.node import find_anvil
from tests.benchmarks.measuring import cpu_seconds
from tests.benchmarks.stage_throughput import commit

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS, STOP_SECONDS = 180.0, 60.0
AIM = 3.0  # % of a core, of all services
UP, PROVIDERS = "up", "providers"


@dataclass(frozen=True)
class Market:
    """A running `up` of one checkout, and its agents."""

    checkout: Path
    folder: Path
    up: "subprocess.Popen[bytes]"
    agents: tuple["subprocess.Popen[bytes]", ...]

    def roles(self) -> dict[str, list[int]]:
        """The processes of each role, living children included."""
        state = json.loads((self.folder / "market" / "run" / "processes.json").read_text())
        roots = {row["name"]: [row["pid"]] for row in state["services"] if row["pid"]}
        agents = [agent.pid for agent in self.agents]
        children = _children()
        found = {name: _descendants(pids, children) for name, pids in roots.items()}
        return {**found, UP: [self.up.pid], PROVIDERS: _descendants(agents, children)}

    def used(self) -> dict[str, float]:
        """CPU seconds of each role so far; `up` without the services that it has waited for."""
        return {
            role: sum(cpu_seconds(pid, children=role != UP) for pid in pids)
            for role, pids in self.roles().items()
        }

    def memory(self) -> dict[str, float]:
        """MiB of each role."""
        return {role: sum(map(_mebibytes, pids)) for role, pids in self.roles().items()}


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has ended
                continue
            found[parent].append(int(entry.name))
    return found


def _descendants(pids: Sequence[int], children: Mapping[int, Sequence[int]]) -> list[int]:
    found, waiting = list[int](), list(pids)
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], ())
    return found


def _mebibytes(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


@contextmanager
def idling(checkout: Path, num_providers: int) -> Iterator[Market]:
    """A market of a checkout that is ready, and agents that were started."""
    with tempfile.TemporaryDirectory(prefix="tallystick-idle-") as name, ExitStack() as started:
        folder = Path(name)
        home = folder / "market"
        arguments = ("up", "--home", str(home), "--port", "0")
        up = started.enter_context(_process(checkout, folder, "up", *arguments))
        _wait_ready(up, home, folder / "up.log")
        ports = json.loads((home / "run" / "ports.json").read_text())
        agents = tuple(
            started.enter_context(_agent(checkout, folder, number, ports["api"]))
            for number in range(num_providers)
        )
        yield Market(checkout, folder, up, agents)


@contextmanager
def _agent(
    checkout: Path, folder: Path, number: int, port: int
) -> Iterator["subprocess.Popen[bytes]"]:
    name = f"provider{number}"
    arguments = ("provider", "start", "--market", f"http://127.0.0.1:{port}")
    offer = ("--ask", "1000", "--stake", "10", "--memory", "1024", "--home", str(folder / name))
    with _process(checkout, folder, name, *arguments, *offer) as agent:
        yield agent


@contextmanager
def _process(
    checkout: Path, folder: Path, name: str, *arguments: str
) -> Iterator["subprocess.Popen[bytes]"]:
    own = {k: v for k, v in os.environ.items() if not k.startswith("TALLYSTICK_")}
    home = {"PYTHONPATH": str(checkout), "TALLYSTICK_HOME": str(folder / "person")}
    home["TALLYSTICK_ANVIL"] = str(find_anvil(None))  # ours: another checkout may have none
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tallystick", *arguments],
            cwd=checkout,
            env={**own, **home, "PYTHONUNBUFFERED": "1"},
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(up: "subprocess.Popen[bytes]", home: Path, log: Path) -> None:
    ends, state = time.monotonic() + READY_SECONDS, home / "run" / "up.json"
    while not (state.exists() and json.loads(state.read_text())["state"] == "ready"):
        assert up.poll() is None and time.monotonic() < ends, log.read_text()[-2000:]
        time.sleep(0.1)


def shares(markets: Mapping[str, Market], seconds: float) -> dict[str, dict[str, float]]:
    """Percent of a core by role, of markets that idle in the same seconds."""
    before = {name: (time.monotonic(), market.used()) for name, market in markets.items()}
    time.sleep(seconds)
    found = {}
    for name, market in markets.items():
        began, then = before[name]
        now, lasted = market.used(), time.monotonic() - began
        found[name] = {role: 100 * (now[role] - then[role]) / lasted for role in then}
    return found


def measured(options: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """By market: the median share of each role over all rounds, and its memory."""
    checkouts = {"now": ROOT}
    if options.against:
        checkouts["before"] = options.against.resolve()
    with ExitStack() as started:
        markets = {
            name: started.enter_context(idling(checkout, options.providers))
            for name, checkout in checkouts.items()
        }
        time.sleep(options.settle)
        rounds = [shares(markets, options.seconds) for _ in range(options.rounds)]
        return {
            name: {
                "percent": {
                    role: statistics.median(each[name][role] for each in rounds)
                    for role in rounds[0][name]
                },
                "mebibytes": market.memory(),
            }
            for name, market in markets.items()
        }


def with_totals(percent: Mapping[str, float]) -> dict[str, float]:
    """With all services together, agents aside."""
    total = sum(each for role, each in percent.items() if role != PROVIDERS)
    return {**percent, "all services": total}


def table(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Lines of a table: role, now, before, ratio, memory."""
    now = with_totals(found["now"]["percent"])
    before = with_totals(found["before"]["percent"]) if "before" in found else {}
    memory = with_totals(found["now"]["mebibytes"])
    lines = [f"{'role':14} {'now, %':>8} {'before, %':>10} {'ratio':>6} {'MiB':>7}"]
    for role, share in now.items():
        then = before.get(role)
        shown = f"{'':>10}" if then is None else f"{then:10.2f}"
        ratio = f"{then / share:6.1f}" if then is not None and share else f"{'':>6}"
        lines.append(f"{role:14} {share:8.2f} {shown} {ratio} {memory[role]:7.0f}")
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--settle", type=float, default=20.0, help="seconds before the first look")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--providers", type=int, default=0, help="agents that find no work")
    parser.add_argument("--against", type=Path, help="checkout of an earlier commit")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    found = measured(options)
    print("\n".join(table(found)))
    about = {
        "aim": AIM,
        "seconds": options.seconds,
        "rounds": options.rounds,
        "providers": options.providers,
        "load_before": load,
        "commit": commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }
    print(json.dumps({**about, **found}))


if __name__ == "__main__":
    main()
