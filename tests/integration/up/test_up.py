"""`tallystick up` from outside: paths, users, kills, refusals. Real servers, no fixed sleeps."""

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

from tallystick.up.processes import environment_of
from tests.integration.up.running import (
    HOSTILE,
    SERVERS,
    UNPRIVILEGED,
    Up,
    eventually,
    long_home,
    running,
)

ACCOUNT = "0x" + "11" * 20


def may_unshare() -> bool:
    return subprocess.run([*UNPRIVILEGED, "true"], capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(not may_unshare(), reason="no user namespaces here")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(long_home(tmp_path_factory.mktemp("up"))) as started:
        yield started


def rpc(url: str, method: str, *parameters: object) -> object:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(parameters)}
    answer = httpx.post(url, json=body, trust_env=False).json()
    assert "result" in answer, answer
    return answer["result"]


def anvil_url(up: Up) -> str:
    return f"http://127.0.0.1:{up.service('anvil')['port']}"


def write_row(up: Up, text: str) -> None:
    with psycopg.connect(up.variable("DATABASE_URL"), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (said text)")
        connection.execute("INSERT INTO kept VALUES (%s)", (text,))


def rows(up: Up) -> list[str]:
    with psycopg.connect(up.variable("DATABASE_URL")) as connection:
        return [row[0] for row in connection.execute("SELECT said FROM kept").fetchall()]


def set_balance_and_wait_saved(up: Up, wei: int) -> None:
    rpc(anvil_url(up), "anvil_setBalance", ACCOUNT, hex(wei))
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


@pytest.mark.parametrize(
    "prefix", [(), pytest.param(UNPRIVILEGED, marks=needs_namespaces)], ids=["as-is", "as-1000"]
)
def test_up__long_path_with_spaces__serves_and_changes_nothing_above(
    tmp_path: Path, prefix: tuple[str, ...]
) -> None:
    home = long_home(tmp_path)
    home.parent.mkdir(parents=True)
    before = folders_above(home)

    with running(home, prefix=prefix) as up:
        write_row(up, "here")

        assert len(str(home)) > 130
        assert rows(up) == ["here"]
        with redis.Redis.from_url(up.variable("REDIS_URL")) as client:
            assert client.ping()
        assert rpc(up.variable("RPC_URL"), "eth_chainId") == hex(31337)
        assert folders_above(home) == before
        assert {path.stat().st_mode & 0o077 for path in (home, *home.iterdir())} == {0}
        assert up.stop() == 0
    assert folders_above(home) == before
    assert up.alive() == []


def test_up__hostile_variables__do_not_reach_the_services(up: Up) -> None:
    pid = int(str(up.service("gateway")["pid"]))

    assert environment_of(pid).keys().isdisjoint(HOSTILE)
    assert environment_of(pid)["TALLYSTICK_SERVICE"] == "gateway"


def test_up__passwords__stand_in_no_command_line(up: Up) -> None:
    secrets = [path.read_text().strip() for path in (up.home / "keys").glob("*.password")]

    lines = [Path(f"/proc/{process.pid}/cmdline").read_bytes().decode() for process in up.alive()]

    assert len(secrets) == 2 and len(lines) >= 5
    assert not any(secret in line for secret in secrets for line in lines)


def test_postgres__wrong_password__is_refused(up: Up) -> None:
    url = up.variable("DATABASE_URL").replace("tallystick:", "tallystick:no", 1)

    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url)


# --------------------------------------------------------------------------- kills


def test_kill_postgres__committed_row__is_there_on_the_same_port(up: Up) -> None:
    write_row(up, "survives")

    up.kill_and_wait("postgres")

    assert "survives" in rows(up)


def test_kill_redis__same_port__answers_again(up: Up) -> None:
    up.kill_and_wait("redis")

    with redis.Redis.from_url(up.variable("REDIS_URL")) as client:
        assert client.ping()


def test_kill_anvil__saved_state__is_there_on_the_same_port(up: Up) -> None:
    set_balance_and_wait_saved(up, 0xABCDEF)

    up.kill_and_wait("anvil")

    assert rpc(up.variable("RPC_URL"), "eth_getBalance", ACCOUNT, "latest") == "0xabcdef"


def test_kill_gateway__same_port__answers_again(up: Up) -> None:
    up.kill_and_wait("gateway")

    assert rpc(up.variable("RPC_URL"), "eth_chainId") == hex(31337)


def test_kill_guard__is_restarted(up: Up) -> None:
    up.kill_and_wait("guard")


@pytest.mark.parametrize(
    "prefix", [(), pytest.param(UNPRIVILEGED, marks=needs_namespaces)], ids=["as-is", "as-1000"]
)
def test_kill_up__busy_backend__all_gone_in_5_s_and_next_up_resumes(
    tmp_path: Path, prefix: tuple[str, ...]
) -> None:
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


def refused(home: Path, *arguments: str, prefix: tuple[str, ...] = (), only: str = SERVERS) -> str:
    """What `up` says when it ends by itself; it must not be a traceback."""
    up = Up(home, prefix=prefix, only=only, arguments=arguments)
    try:
        assert up.wait_ended() != 0
    finally:
        up.close()
    assert up.said().startswith("error: ") and "Traceback" not in up.said()
    return up.said()


def test_up__second_one_in_the_folder__is_refused_with_the_pid_of_the_first(up: Up) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tallystick", "up", "--home", str(up.home)],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 6
    assert f"pid {up.process.pid}" in done.stderr


def test_up__taken_port__names_who_has_it(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        said = refused(tmp_path / "home", "--port", str(port), only="api")

    assert f"port {port} is taken by" in said and f"(pid {os.getpid()})" in said
    assert "--port" in said


@needs_namespaces
def test_up__unwritable_home__says_where_to_choose_another(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)

    said = refused(closed / "home", prefix=UNPRIVILEGED)

    assert "no permission to write" in said and "TALLYSTICK_HOME" in said


def test_up__newer_data_version__is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "version").write_text("999\n")

    assert "newer Tallystick" in refused(home)
    assert [path.name for path in home.iterdir()] == ["version"]


def test_up__folder_of_somebody_else__is_refused(tmp_path: Path) -> None:
    (tmp_path / "home" / "postgres").mkdir(parents=True)

    assert "not ours" in refused(tmp_path / "home")


def test_up__unreachable_url__is_one_clear_error(tmp_path: Path) -> None:
    up = Up(
        tmp_path / "home",
        only="postgres",
        TALLYSTICK_DATABASE_URL="postgresql://u:secret@127.0.0.1:9/x",
    )

    assert up.wait_ended() == 8
    assert "TALLYSTICK_DATABASE_URL" in up.said() and "secret" not in up.said()


# --------------------------------------------------------------------------- stopping


def test_up__ctrl_c_while_it_starts__leaves_nothing_and_the_next_start_works(
    tmp_path: Path,
) -> None:
    up = Up(tmp_path / "home")
    eventually(lambda: "anvil" in up.said(), within=20, what="something has started")
    up.process.send_signal(signal.SIGINT)

    assert up.wait_ended() == 0, up.said()
    assert up.alive() == []
    with running(tmp_path / "home") as again:
        assert again.stop() == 0


def test_down__detached_up__stops_it_and_repeats_quietly(tmp_path: Path) -> None:
    home = long_home(tmp_path)
    started = tallystick("up", "--home", str(home), "--only", "redis", "--detach")
    assert "ready in" in started

    assert "stopped what ran" in tallystick("down", "--home", str(home))
    assert "nothing runs" in tallystick("down", "--home", str(home))


def tallystick(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tallystick", *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
