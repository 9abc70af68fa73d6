"""Does every folder of tests stay under its own ceiling?

A folder that grows slow is found in the run that made it slow, not months later: the end of a run
names each folder of `tests/` that took longer than `CEILINGS` says (wall seconds; while tests run
in parallel, moments in which several run count once), and the slowest of the unit tests that used
more than `UNIT_CPU_AIM` CPU seconds. That is a report: how fast a machine is fails nobody.

`--ceilings=enforce` fails such a run, and unit tests above `UNIT_CPU_LIMIT`: for a machine whose
speed one knows. `--ceilings=off` is for runs that are long on purpose (`make chaos`).
"""

import gc
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import PurePath

import pytest

CEILINGS = {
    "unit": 60,
    "property": 180,
    "contracts": 180,
    "numerics": 150,
    "architecture": 90,
    "faults": 540,
    "browser": 240,
    "integration": 600,
    "e2e": 840,
}
"""Wall seconds by folder of `tests/`; a folder without a line has no ceiling.

But for the first three, tests run side by side with e2e on two cores (`STREAMS` in the Makefile).
"""

UNIT_CPU_LIMIT = 0.100
"""CPU seconds of one unit test's body, above which it fails with `--ceilings=enforce`."""

UNIT_CPU_AIM = 0.010
"""CPU seconds of one unit test's body, above which it is named at the end of the run."""

TABLE = "table"
"""Name of the property under which a test records lines for people, shown at the end of a run."""

Interval = tuple[float, float]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--ceilings`."""
    parser.addoption(
        "--ceilings",
        choices=("report", "enforce", "off"),
        default="report",
        help="what becomes of a folder above its seconds: named (default), fails the run, nothing",
    )


def folder_of(nodeid: str) -> str:
    """The folder below `tests/` that a test lies in; empty for anything else."""
    parts = PurePath(nodeid.split("::")[0]).parts
    return parts[1] if len(parts) > 2 and parts[0] == "tests" else ""


def covered_seconds(intervals: list[Interval]) -> float:
    """Length of the union of `intervals`, in seconds."""
    total, reached = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, reached))
        reached = max(reached, stop)
    return total


class Ceilings:
    """Collects when tests ran; judges at the end of the session."""

    def __init__(self, mode: str = "report") -> None:
        """`mode`: as `--ceilings` has it; tables are shown anyhow."""
        self._mode = mode
        self.intervals: dict[str, list[Interval]] = defaultdict(list)
        self.num_tests: dict[str, int] = defaultdict(int)
        self.slow_units: list[tuple[float, str]] = []
        self.tables: dict[str, str] = {}

    def seconds(self) -> dict[str, float]:
        """Wall seconds by folder."""
        return {folder: covered_seconds(spans) for folder, spans in self.intervals.items()}

    def above(self) -> list[str]:
        """One line for each folder that is above its ceiling."""
        return [
            f"tests/{folder} took {taken:.0f} s, its ceiling is {CEILINGS[folder]} s"
            for folder, taken in sorted(self.seconds().items())
            if self._mode != "off" and taken > CEILINGS.get(folder, float("inf"))
        ]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note when one phase of one test ran."""
        folder = folder_of(report.nodeid)
        self.intervals[folder].append((report.start, report.stop))
        if report.when != "call":
            return
        self.num_tests[folder] += 1
        told = dict(report.user_properties)
        if TABLE in told:
            self.tables[report.nodeid] = str(told[TABLE])
        used = told.get("cpu_seconds")
        if folder == "unit" and isinstance(used, float) and used > UNIT_CPU_AIM:
            self.slow_units.append((used, report.nodeid))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run when a folder is above its ceiling, if that was asked for."""
        is_broken = self._mode == "enforce" and self.above()
        if is_broken and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what tests recorded, the table of folders, slow unit tests, folders too slow."""
        for nodeid, table in sorted(self.tables.items()):
            terminalreporter.section(nodeid.rpartition("::")[2])
            terminalreporter.line(table)
        terminalreporter.section("seconds per folder")
        for folder, taken in sorted(self.seconds().items()):
            limit = f"of {CEILINGS[folder]}" if folder in CEILINGS else ""
            name = f"tests/{folder}"
            terminalreporter.line(
                f"{name:20} {taken:7.1f} {limit:7} {self.num_tests[folder]:5} tests"
            )
        for used, nodeid in sorted(self.slow_units, reverse=True)[:10]:
            terminalreporter.line(f"{used * 1e3:6.0f} ms of CPU, aim 10: {nodeid}")
        for line in self.above():
            terminalreporter.line(f"ABOVE ITS CEILING: {line}", yellow=True)


def pytest_collection_finish() -> None:
    """Set aside what collection made: searching it for garbage would cost some test 80 ms."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Measure a test's own CPU time; refuse a slow unit test, if that was asked for."""
    before = time.process_time()
    yield
    used = time.process_time() - before
    item.user_properties.append(("cpu_seconds", used))
    limited = folder_of(item.nodeid) == "unit" and item.config.getoption("ceilings") == "enforce"
    if limited and used > UNIT_CPU_LIMIT:
        pytest.fail(
            f"{used * 1e3:.0f} ms of CPU: a unit test has {UNIT_CPU_LIMIT * 1e3:.0f} ms; imports "
            "belong to the top of the file, slow cases to another folder",
            pytrace=False,
        )


def pytest_configure(config: pytest.Config) -> None:
    """Collect in the process that sees all reports, not in the workers of xdist."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Ceilings(config.getoption("ceilings")), "tallystick-ceilings")
