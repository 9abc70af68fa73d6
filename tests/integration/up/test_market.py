"""The whole table: servers, steps and the market's own processes, killed and back."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tallystick.up.processes import environment_of
from tests.integration.up.running import Up, eventually, long_home, running

MARKET = ("api", "worker", "worker-chain", "beat", "host")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    home = long_home(tmp_path_factory.mktemp("market"))
    with running(home, only="", arguments=("--port", "0")) as started:
        yield started


def status(up: Up) -> int:
    url = f"http://127.0.0.1:{up.service('api')['port']}/v1/network"
    try:
        return httpx.get(url, trust_env=False).status_code
    except httpx.HTTPError:
        return 0


def test_up__whole_table__is_listed_with_ports_and_logs(up: Up) -> None:
    ports = up.run_file("ports.json")

    assert status(up) == 200
    for name in ("postgres", "redis", "anvil", "gateway", *MARKET):
        row = up.service(name)
        assert row["state"] == "ready"
        assert row["port"] == ports.get(name)
        assert Path(str(row["log"])).exists()


def test_up__host__is_told_no_database_password(up: Up) -> None:
    environment = environment_of(int(str(up.service("host")["pid"])))

    assert environment["TALLYSTICK_API_URL"].endswith(str(up.service("api")["port"]))
    assert "TALLYSTICK_DATABASE_URL" not in environment


def test_kill_all_market_processes_at_once__all_are_back(up: Up) -> None:
    before = {name: up.service(name) for name in MARKET}
    for row in before.values():
        os.kill(int(str(row["pid"])), signal.SIGKILL)

    eventually(lambda: all(map(up.is_back, before.values())), within=60, what="all are back")
    assert status(up) == 200


def test_stop__whole_table__ends_with_0_and_leaves_nothing(up: Up) -> None:
    assert up.stop() == 0, up.said()
    assert up.alive() == []
