"""`tallystick` in a process that has the base dependencies only and no network; and in this one."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from typer.testing import CliRunner

from tallystick.cli.main import app
from tests.support.patience import patience
from verification.audit.audit_file import Pins

FORBIDDEN = ("torch", "web3", "fastapi", "sqlalchemy", "celery", "redis", "grpc", "numpy")

_PROGRAM = """
import socket, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {forbidden!r}:
            raise ModuleNotFoundError(f"no {{name}} here", name=name)

def refuse(*_, **__):
    raise PermissionError("this process has no network")

sys.meta_path.insert(0, Refuse())
socket.socket.connect = socket.socket.bind = refuse
socket.getaddrinfo = socket.create_connection = refuse
from tallystick.cli.main import app
app()
"""


def offline_program(forbidden: Sequence[str] = FORBIDDEN) -> str:
    """Python text that runs `tallystick` without a network and without some packages."""
    return _PROGRAM.format(forbidden=tuple(forbidden))


def run_offline(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in `folder`; the result has its exit code and what it printed."""
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-c", offline_program(), *arguments],
        cwd=folder,
        env={"PYTHONPATH": root, "PATH": "/nonexistent", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )


def verify_options(pins: Pins | None) -> list[str]:
    """What a reader brings, as options."""
    if pins is None:
        return []
    named = {"anchor": pins.block, "escrow": pins.escrow, "seals": pins.seals}
    return [word for name, each in named.items() for word in (f"--{name}", f"0x{each.hex()}")]


def run_here(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process: exit code, what it printed, what it complained of."""
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.stdout, done.stderr


def verify_here(data: bytes, *more: str, pins: Pins | None = None) -> tuple[int, str, str]:
    """Run `audit verify` on a file of `data` in this process."""
    with tempfile.NamedTemporaryFile(suffix=".tally") as file:
        file.write(data)
        file.flush()
        return run_here("audit", "verify", file.name, *verify_options(pins), *more)
