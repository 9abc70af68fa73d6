"""`Services` inside a program, and ways around root's limits."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from contracts.terms.errors import WrongConfiguration
from tallystick.up import postgres
from tallystick.up.data_folder import open_data_folder
from tallystick.up.settings import UpSettings
from tallystick.up.stack import Services


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may pass."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@pytest.mark.root  # only root has to become somebody else
@pytest.mark.nightly
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


@pytest.mark.root
def test_postgres__root_that_can_become_nobody__names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_OTHER_IDENTITY", ("false",))
    folder = open_data_folder(tmp_path / "home")  # below a folder that only root may pass

    with pytest.raises(WrongConfiguration, match="TALLYSTICK_DATABASE_URL"):
        postgres.find_runner(postgres.find_binaries(), folder, uid=0)

    assert folder.postgres.stat().st_uid == 0


@pytest.mark.nightly
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
