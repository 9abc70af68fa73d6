"""`tallystick up` from outside: paths, users, kills, refusals. Real servers, no fixed sleeps."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
import redis

from tallystick.cli.main import EXIT_CODES
from tests.integration.bad_input.verbs import Said, call, complaint
from tests.integration.up.running import SERVERS, UNPRIVILEGED, Up, eventually, long_home, running
from tests.support.containers import shown
from tests.support.stack import ROOT

ACCOUNT = "0x" + "11" * 20


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder that is not there yet, in one that is."""
    home = long_home(tmp_path_factory.mktemp("up"))
    home.parent.mkdir(parents=True)
    return home


@pytest.fixture(scope="module")
def before(home: Path) -> dict[Path, tuple[int, int, int]]:
    """What the folders above it were before the first start."""
    return folders_above(home)


@pytest.fixture(scope="module")
def up(home: Path, before: dict[Path, tuple[int, int, int]]) -> Iterator[Up]:
    with running(home) as started:
        yield started


def rpc(url: str, method: str, *parameters: object) -> object:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(parameters)}
    answer = httpx.post(url, json=body, trust_env=False).json()
    assert "result" in answer, answer
    return answer["result"]


def write_row(up: Up, text: str) -> None:
    with psycopg.connect(up.variable("DATABASE_URL"), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (said text)")
        connection.execute("INSERT INTO kept VALUES (%s)", (text,))


def rows(up: Up) -> list[str]:
    with psycopg.connect(up.variable("DATABASE_URL")) as connection:
        return [row[0] for row in connection.execute("SELECT said FROM kept").fetchall()]


def set_balance_and_wait_saved(up: Up, wei: int) -> None:
    url = f"http://127.0.0.1:{up.service('anvil')['port']}"
    rpc(url, "anvil_setBalance", ACCOUNT, hex(wei))
    state = up.home / "chain" / "state.json"
    eventually(
        lambda: state.exists() and f'"{hex(wei)}"' in state.read_text(),
        within=5,
        what="the chain wrote its state",
    )


def folders_above(path: Path) -> dict[Path, tuple[int, int, int]]:
    return {
        folder: (stat.st_mode, stat.st_uid, stat.st_gid)
        for folder in path.parents
        if (stat := os.stat(folder))
    }


# --------------------------------------------------------------------------- where and as whom


def test_up__long_path_with_spaces__serves_and_changes_nothing_above(
    up: Up, before: dict[Path, tuple[int, int, int]]
) -> None:
    write_row(up, "here")

    assert len(str(up.home)) > 130
    assert rows(up) == ["here"]
    with redis.Redis.from_url(up.variable("REDIS_URL")) as client:
        assert client.ping()
    assert rpc(up.variable("RPC_URL"), "eth_chainId") == hex(31337)
    assert folders_above(up.home) == before
    assert {path.stat().st_mode & 0o077 for path in (up.home, *up.home.iterdir())} == {0}


def test_postgres__wrong_password__is_refused(up: Up) -> None:
    url = up.variable("DATABASE_URL").replace("tallystick:", "tallystick:no", 1)

    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url)


# --------------------------------------------------------------------------- kills


def test_kill_servers_at_once__same_ports_and_nothing_that_was_kept_is_lost(up: Up) -> None:
    write_row(up, "survives")
    set_balance_and_wait_saved(up, 0xABCDEF)
    killed = {name: up.service(name) for name in (*SERVERS.split(","), "guard")}

    for row in killed.values():
        os.kill(int(str(row["pid"])), signal.SIGKILL)
    eventually(lambda: all(map(up.is_back, killed.values())), within=60, what="all are back")

    assert "survives" in rows(up)
    with redis.Redis.from_url(up.variable("REDIS_URL")) as client:
        assert client.ping()
    assert rpc(up.variable("RPC_URL"), "eth_getBalance", ACCOUNT, "latest") == "0xabcdef"


def may_unshare() -> bool:
    return subprocess.run([*UNPRIVILEGED, "true"], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    "prefix",
    [(), pytest.param(UNPRIVILEGED, marks=pytest.mark.nightly)],
    ids=["as-is", "as-nobody-known"],
)
def test_kill_up__busy_backend__all_gone_in_5_s_and_next_up_resumes(
    tmp_path: Path, prefix: tuple[str, ...]
) -> None:
    if prefix and not may_unshare():
        pytest.skip("no user namespaces here")
    home = long_home(tmp_path)
    with running(home, prefix=prefix) as up:
        write_row(up, "before the kill")
        set_balance_and_wait_saved(up, 0x123456)
        ports = up.run_file("ports.json")
        busy = threading.Thread(target=keep_a_backend_busy, args=(up.variable("DATABASE_URL"),))
        busy.start()
        eventually(lambda: num_busy(up) == 1, within=5, what="a backend computes")
        assert len(up.alive()) >= 10

        up.process.kill()

        eventually(lambda: up.alive() == [], within=5, what="nothing of the run is alive")
        busy.join(5)
    with running(home, prefix=prefix) as again:
        assert rows(again) == ["before the kill"]
        balance = rpc(again.variable("RPC_URL"), "eth_getBalance", ACCOUNT, "latest")
        assert balance == "0x123456"
        assert again.run_file("ports.json") == ports


@pytest.mark.nightly
def test_kill_up__while_the_cluster_is_made__next_up_makes_it_whole(tmp_path: Path) -> None:
    up = Up(tmp_path / "home", only="postgres")
    draft = up.home / "postgres" / "draft"
    eventually(lambda: (draft / "base").exists(), within=20, what="initdb has begun")

    up.process.kill()
    up.process.wait()

    assert not (up.home / "postgres" / "data").exists()
    eventually(lambda: up.alive() == [], within=5, what="nothing of the run is alive")
    with running(tmp_path / "home", only="postgres") as again:
        write_row(again, "whole")
        assert not draft.exists()


def keep_a_backend_busy(url: str) -> None:
    # It computes without ever looking whether its postmaster is alive.
    query = "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b"
    try:
        with psycopg.connect(url, application_name="busy") as connection:
            connection.execute(query)
    except psycopg.Error:
        pass


def num_busy(up: Up) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'busy' AND state = %s"
    with psycopg.connect(up.variable("DATABASE_URL")) as connection:
        found = connection.execute(query, ("active",)).fetchone()
    return int(found[0]) if found else 0


@pytest.mark.nightly
def test_up__chain_state_cut_off__starts_from_the_copy(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running(home, only="anvil,gateway") as up:
        set_balance_and_wait_saved(up, 0x777777)
        copy = home / "chain" / "state.copy.json"
        eventually(
            lambda: copy.exists() and "0x777777" in copy.read_text(), within=5, what="a copy"
        )
        up.stop()
    state = home / "chain" / "state.json"
    state.write_bytes(state.read_bytes()[:1000])

    with running(home, only="anvil,gateway") as again:
        balance = rpc(again.variable("RPC_URL"), "eth_getBalance", ACCOUNT, "latest")
        assert balance == "0x777777"


# --------------------------------------------------------------------------- refusals


def test_up__taken_port__names_who_has_it(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        said = complaint(call(line(tmp_path / "home", "api", "--port", str(port)), {}))

    assert f"port {port} is taken by" in said and f"(pid {os.getpid()})" in said


def line(home: Path, only: str, *arguments: str) -> list[str]:
    return ["up", "--home", str(home), "--only", only, *arguments]


def test_up__unwritable_home__says_where_to_choose_another(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)

    if os.geteuid() == 0:  # who may write everywhere, unless as somebody else
        said = run_unprivileged(*line(closed / "home", "redis"))
    else:
        said = call(line(closed / "home", "redis"), {})

    told = complaint(said)
    assert "no permission to write" in told and "TALLYSTICK_HOME" in told


def run_unprivileged(*words: str) -> Said:
    if not may_unshare():
        pytest.skip("root cannot become somebody else: no user namespaces here")
    done = subprocess.run(
        [*UNPRIVILEGED, sys.executable, "-m", "tallystick", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def test_up__unreachable_url__is_one_clear_error(tmp_path: Path) -> None:
    url = "postgresql://u:secret@127.0.0.1:9/x"

    said = call(line(tmp_path / "home", "postgres"), {"TALLYSTICK_DATABASE_URL": url})

    assert said.exit_code == EXIT_CODES["error"]
    assert "TALLYSTICK_DATABASE_URL" in complaint(said) and "secret" not in said.stderr


def test_doctor__missing_anvil_and_closed_server__fails_with_remedies(tmp_path: Path) -> None:
    home = tmp_path / "home"
    lacking = {
        "TALLYSTICK_ANVIL": str(tmp_path / "none"),
        "TALLYSTICK_REDIS_URL": "redis://127.0.0.1:9/0",
    }

    said = call(["doctor", "-o", "json", "--home", str(home)], lacking)

    found = {each["check"]: each for each in json.loads(said.stdout)["checks"]}
    assert said.exit_code == 1 and not home.exists()
    assert found["postgres"]["ok"] and found["python"]["ok"]
    assert not found["anvil"]["ok"] and "npm install" in found["anvil"]["remedy"]
    assert not found["redis"]["ok"] and "TALLYSTICK_REDIS_URL" in found["redis"]["remedy"]


def test_doctor__container_shows_less_than_is_wanted__says_which_limits_to_raise(
    tmp_path: Path,
) -> None:
    prefix = shown(tmp_path / "cgroup", {"memory.max": f"{2**30}\n", "pids.max": "64\n"})
    line = ["-m", "tallystick", "doctor", "-o", "json", "--home", str(tmp_path / "home")]

    done = subprocess.run([*prefix, sys.executable, *line], capture_output=True, cwd=ROOT)

    found = {each["check"]: each for each in json.loads(done.stdout)["checks"]}
    assert found["memory"]["found"] == "1024 MB" and found["tasks"]["found"] == "64 may be started"
    for name in ("memory", "tasks"):
        assert not found[name]["ok"] and "of this container" in found[name]["remedy"]


# --------------------------------------------------------------------------- stopping


def test_up__ctrl_c_while_it_starts__leaves_nothing(tmp_path: Path) -> None:
    up = Up(tmp_path / "home")
    eventually(lambda: "anvil" in up.said(), within=20, what="something has started")
    up.process.send_signal(signal.SIGINT)

    assert up.wait_ended() == 0, up.said()
    assert up.alive() == []
