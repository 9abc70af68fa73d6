"""Rules that hold for every test: no network where none is meant, limits, what a machine must have.

Tests are plain functions in folders that mirror the packages; no folder has an `__init__.py`,
files are imported by their path. Shared factories of a folder lie beside its tests and are
imported absolutely (`from tests.unit.contracts.factories import seal`).
"""

import os
import sys
from asyncio import AbstractEventLoop, new_event_loop
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING

import hypothesis
import pytest
import pytest_socket
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.support.examples import GATE, NIGHTLY, profile
from tests.support.patience import limit

if TYPE_CHECKING:
    from tests.installed import Installed

pytest_plugins = ("tests.hanging",)

# Time is no test's verdict: one slow example on a busy machine is no finding.
for name, settings in {
    GATE: hypothesis.settings(max_examples=50, derandomize=True),
    NIGHTLY: hypothesis.settings(max_examples=500, print_blob=True),
}.items():
    hypothesis.settings.register_profile(
        name,
        settings,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile(profile())

FOLDERS_WITH_SERVICES = {"integration", "e2e", "browser", "contracts"}
ONE_STREAM = {"e2e", "browser"}
"""Folders of which one test runs at a time: a whole market, or a browser, is enough."""
FIRST = {"e2e": 0, "contracts": 1, "architecture": 2, "browser": 3}
"""Folders with the longest streams begin first, so that nobody waits for their end alone."""


@pytest.fixture(autouse=True)
def _network(request: pytest.FixtureRequest) -> Iterator[None]:
    """Internet sockets only in folders with services and in tests marked `processes`.

    Unix sockets stay: an event loop wakes itself through a pair of them.
    """
    folder = folder_of(request.node.nodeid)
    if folder in FOLDERS_WITH_SERVICES or request.node.get_closest_marker("processes"):
        yield
        return
    pytest_socket.disable_socket(allow_unix_socket=True)
    yield
    pytest_socket.enable_socket()


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> "Installed":
    """The wheel with its base dependencies in an environment of its own; made once a run."""
    from tests.installed import install

    return install(tmp_path_factory.mktemp("installed"))


def folder_of(nodeid: str) -> str:
    """The folder below `tests/` that a test lies in; empty for anything else."""
    parts = PurePath(nodeid.split("::")[0]).parts
    return parts[1] if len(parts) > 2 and parts[0] == "tests" else ""


class Streams(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Files side by side, but the tests of a folder in `ONE_STREAM` one after the other."""

    def _split_scope(self, nodeid: str) -> str:
        folder = folder_of(nodeid)
        return folder if folder in ONE_STREAM else super()._split_scope(nodeid)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name what fails at once: a run takes a quarter of an hour, and its summary comes last."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        line = str(report.longrepr).strip().splitlines()[-1:]
        sys.stderr.write(f"\nFAILED {report.nodeid}: {''.join(line)[:300]}\n")
        sys.stderr.flush()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tables that tests recorded under the property `table`."""
    for report in terminalreporter.getreports("passed"):
        for name, table in report.user_properties:
            if name == "table" and report.when == "call":
                terminalreporter.section(report.nodeid.rpartition("::")[2])
                terminalreporter.line(str(table))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Streams | None:
    """Use `Streams` under `--dist loadfile`."""
    return Streams(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], AbstractEventLoop]]:
    """The event loop of a test, by its mark."""
    from tests.support.simulated_time import SimulatedLoop

    if item.get_closest_marker("simulated_time") is not None:
        return {"simulated": SimulatedLoop}
    return {"real": new_event_loop}


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout reads it
def pytest_configure(config: pytest.Config) -> None:
    """Set the limit of tests that name none."""
    if config.option.timeout is None:
        config.option.timeout = limit(float(config.getini("timeout")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Scale the limits that marks say; skip tests of what this machine or user lacks.

    The longest stream begins first, so that no other one waits for its end alone.
    """
    items.sort(key=lambda item: FIRST.get(folder_of(item.nodeid), len(FIRST)))
    for item in items:
        if (mark := item.get_closest_marker("timeout")) is not None:
            item.add_marker(pytest.mark.timeout(limit(mark.args[0])), append=False)
        if os.geteuid() != 0 and item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="needs root: `.ci/run` runs it as root"))
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import torch  # only when a test asks for a GPU: it costs two CPU seconds

    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
