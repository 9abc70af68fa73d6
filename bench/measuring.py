"""What all benchmarks share: options, a limit, who was measured where, and how figures spread."""

import argparse
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch

from tallystick.resources import CORE, Resources, least
from tests.support.namespaces import Site

ROOT = Path(__file__).resolve().parents[1]
MICROSECONDS = 1e-6
QUICK_MINUTES = 12.0  # of a quick form, which takes one or two on quiet cores
PATIENCE = 5.0  # minutes for anything to happen at all
LOOK_EVERY = 0.01  # seconds between two looks at logs
CLEANING_UP = 60.0  # seconds, after which a benchmark past its limit ends anyhow
Line = dict[str, Any]
_TICKS = os.sysconf("SC_CLK_TCK")  # a second
_waits: list[str] = []  # what is waited for now, the innermost last


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser that shows a benchmark's docstring."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def parsed(parser: argparse.ArgumentParser, *, minutes: float, **quick: Any) -> argparse.Namespace:
    """The options, with `--minutes` as limit and `--quick`, which has other defaults."""
    parser.add_argument("--quick", action="store_true", help="smallest sizes: does it run at all?")
    parser.add_argument("--minutes", type=float, default=minutes, help="it ends with an error then")
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(minutes=QUICK_MINUTES, **quick)
    return parser.parse_args()


@contextmanager
def limit(minutes: float, waiting_for: str) -> Iterator[None]:
    """End what takes longer with a TimeoutError that says what was waited for, limits inside too.

    It interrupts the main thread as Ctrl-C does, so that everybody cleans up; who still does not
    end is ended.
    """
    late: list[str] = []

    def interrupt() -> None:
        late.append(" / ".join(_waits))
        print(f"not within {minutes:g} minutes: {late[0]}", file=sys.stderr, flush=True)
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
        if not ended.wait(CLEANING_UP):
            os._exit(1)

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun by a shell with &
        signal.signal(signal.SIGINT, signal.default_int_handler)
    ended, timer = threading.Event(), threading.Timer(60 * minutes, interrupt)
    timer.daemon = True
    _waits.append(waiting_for)
    timer.start()
    try:
        yield
    except BaseException as error:
        if not late:
            raise
        raise TimeoutError(f"not within {minutes:g} minutes: {late[0]}") from error
    finally:
        ended.set()
        timer.cancel()
        _waits.remove(waiting_for)


def tell(line: str) -> None:
    """For whoever waits; the tables are the answer."""
    print(line, file=sys.stderr, flush=True)


def now() -> float:
    """The clock that all logs of this machine share, in seconds."""
    return time.monotonic_ns() / 1e9


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


def memory_of(pid: int, file: str, name: str) -> int:
    """Bytes that a line of /proc/PID/FILE tells; 0 when the process has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


def spread(values: Sequence[float], digits: int) -> dict[str, float]:
    """Median, least and most, rounded."""
    return {
        "median": round(statistics.median(values), digits),
        "least": round(min(values), digits),
        "most": round(max(values), digits),
    }


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A table of rows with the same columns."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def about(**more: object) -> dict[str, object]:
    """Who was measured, and on what; the commit has a plus where there are changes."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=12"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return {
        "commit": described.stdout.strip(),
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "cores": least(Resources().cores()) / CORE,
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
    } | more


@dataclass(frozen=True)
class Agreed:
    """What all processes of a job have to agree on: the fields of a subclass."""

    def write(self, folder: Path) -> None:
        """For the processes."""
        (folder / "log").mkdir(parents=True)
        (folder / "job.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What was written."""
        return cls(**json.loads((folder / "job.json").read_text()))


class Processes:
    """The processes of one job, in a folder in which each tells what it did."""

    def __init__(self, module: str, folder: Path, sites: Mapping[str, Site] | None = None) -> None:
        """`sites`: where each role runs; none: on this machine."""
        self._module, self._folder, self._sites = module, folder, sites or {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._lines: dict[str, list[Line]] = defaultdict(list)
        self._read: dict[str, int] = defaultdict(int)  # bytes of a log

    def start(self, role: str, failpoints: str = "") -> None:
        """Start one, for the first time or again on what it left."""
        words = [sys.executable, "-m", self._module, role, str(self._folder)]
        environment = os.environ | {"TALLYSTICK_FAILPOINT": failpoints}
        if (site := self._sites.get(role)) is not None:
            words = site.command(*words)
            environment |= {"TALLYSTICK_LISTEN": f"{site.address}:0"}
        with (self._folder / "log" / f"{role}.stderr").open("ab") as errors:
            self.running[role] = subprocess.Popen(words, stderr=errors, cwd=ROOT, env=environment)

    def kill(self, *roles: str) -> None:
        """SIGKILL these, or all."""
        for role in roles or tuple(self.running):
            process = self.running.pop(role)
            process.kill()
            process.wait()

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so`; fails when a process has failed, or nothing happens."""
        with limit(PATIENCE, f"{self._folder.name}: {what}"):
            while not is_so():
                for role, process in self.running.items():
                    if process.poll() not in (None, 0):
                        errors = (self._folder / "log" / f"{role}.stderr").read_text()[-2000:]
                        raise RuntimeError(f"{role} ended with {process.returncode}: {errors}")
                time.sleep(LOOK_EVERY)

    def lines(self, role: str, *events: str, since: float = 0.0) -> list[Line]:
        """What a process has told of these events (none: of all), whole lines only."""
        path = self._folder / "log" / f"{role}.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read[role])
                for text in file:
                    if text.endswith(b"\n"):
                        self._read[role] += len(text)
                        line = json.loads(text)
                        self._lines[role].append(line | {"seconds": line["mono"] * MICROSECONDS})
        return [
            line
            for line in self._lines[role]
            if line["seconds"] >= since and (not events or line["event"] in events)
        ]


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval of a rate (Clopper and Pearson 1934, Biometrika 26).

    With no failure among n it is [(1 - confidence) / 2)^(1/n), 1]. Precise to 1e-9; floats, because
    it is shown and never decides.
    """
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else _solve(lambda p: 1 - _at_most(successes - 1, trials, p), tail)
    high = 1.0 if successes == trials else _solve(lambda p: -_at_most(successes, trials, p), -tail)
    return (low, high)


def _at_most(successes: int, trials: int, rate: float) -> float:
    """P(Binomial(trials, rate) <= successes)."""
    return math.fsum(
        math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(successes + 1)
    )


def _solve(rising: Callable[[float], float], wanted: float) -> float:
    """Where in [0, 1] a rising function is `wanted`, by bisection."""
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return (low + high) / 2
