"""`Services` inside a program, ways around root's limits, and the doctor."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from contracts.terms.errors import Conflict, WrongConfiguration
from tallystick.up import postgres
from tallystick.up.data_folder import open_data_folder
from tallystick.up.processes import leftovers
from tallystick.up.settings import UpSettings
from tallystick.up.stack import Services

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root has to become somebody else")


async def test_services__in_a_program__kill_and_wait_restarted(tmp_path: Path) -> None:
    settings = UpSettings(home=tmp_path / "home")
    async with Services(settings, only=("postgres", "redis")) as services:
        killed = services.kill("redis")
        restarted = await services.wait_restarted("redis", killed)

        assert restarted != killed and services.identity("redis") == restarted
        with pytest.raises(Conflict, match=f"pid {os.getpid()}"):
            await Services(settings).start()
        with psycopg.connect(services.addresses.database) as connection:
            assert connection.execute("SHOW data_directory").fetchone() == (
                str(services.folder.postgres / "data"),
            )
    assert leftovers(services.up_id) == []
    assert not services.folder.environment.exists()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may pass."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@needs_root
async def test_postgres__root_without_namespaces__runs_as_an_unprivileged_user(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_OTHER_IDENTITY", ("false",))
    folder = open_data_folder(open_folder / "home")
    try:
        run_as = postgres.find_runner(postgres.find_binaries(), folder, uid=0).run_as
    except WrongConfiguration:
        pytest.skip("no other user can reach the programs here")

    for _ in range(2):  # makes the cluster, then finds it
        async with Services(UpSettings(home=folder.home), only=("postgres",)) as services:
            pid = services.identity("postgres").pid
            assert os.stat(f"/proc/{pid}").st_uid == run_as.user > 0
            with psycopg.connect(services.addresses.database) as connection:
                connection.execute("SELECT 1")
    assert open_folder.stat().st_mode & 0o777 == 0o711


@needs_root
def test_postgres__root_that_can_become_nobody__names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_OTHER_IDENTITY", ("false",))
    folder = open_data_folder(tmp_path / "home")  # below a folder that only root may pass

    with pytest.raises(WrongConfiguration, match="TALLYSTICK_DATABASE_URL"):
        postgres.find_runner(postgres.find_binaries(), folder, uid=0)

    assert folder.postgres.stat().st_uid == 0


def doctor(*arguments: str, **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tallystick", "doctor", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


def test_doctor__this_machine__has_a_row_a_check_and_changes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    _, text = doctor("-o", "json", "--home", str(home))

    rows = {row["check"]: row for row in json.loads(text)["checks"]}

    assert rows.keys() >= {
        *("python", "ensurepip", "node", "anvil", "postgres", "redis", "disk", "port"),
        *("permissions", "clock", "torch", "memory"),
    }
    for row in rows.values():
        assert row["wanted"] and row["found"]
        assert row["ok"] == (row["remedy"] == "")
    assert rows["postgres"]["ok"] and rows["redis"]["ok"] and rows["python"]["ok"]
    assert not home.exists()


def test_doctor__missing_anvil_and_closed_server__fails_with_remedies(tmp_path: Path) -> None:
    code, text = doctor(
        "--home",
        str(tmp_path / "home"),
        TALLYSTICK_ANVIL=str(tmp_path / "none"),
        TALLYSTICK_REDIS_URL="redis://127.0.0.1:9/0",
    )

    failures = [line.split()[1] for line in text.splitlines() if line.startswith("FAIL")]
    assert code == 1
    assert {"anvil", "redis"} <= set(failures)
    assert "npm install @foundry-rs/anvil" in text and "TALLYSTICK_REDIS_URL" in text


async def test_postgres__lock_file_names_a_zombie_or_a_stranger__starts_anyway(
    tmp_path: Path,
) -> None:
    settings = UpSettings(home=tmp_path / "home")
    async with Services(settings, only=("postgres",)) as services:
        lock = services.folder.postgres / "data" / "postmaster.pid"
        text = lock.read_text()
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)

    for pid in (zombie.pid, os.getpid()):
        lock.write_text(text.replace(text.split()[0], str(pid), 1))
        async with Services(settings, only=("postgres",)) as services:
            with psycopg.connect(services.addresses.database) as connection:
                connection.execute("SELECT 1")
    zombie.wait()
