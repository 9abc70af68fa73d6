"""Tallystick as a stranger gets it: the wheel with its base dependencies, in an empty environment.

`Installed` is made once a run (fixture `installed` of `tests/conftest.py`); a test uses its
programs, from a folder that is not the checkout.
"""

import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.architecture.checkout import PINS, copy_to


@dataclass(frozen=True)
class Installed:
    """An environment that holds the wheel and the base dependencies, and nothing else."""

    wheel: Path
    prefix: Path
    elsewhere: Path
    """An empty folder outside the checkout, to run in."""

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `prefix/bin/program` in `elsewhere`; the caller's Python settings do not leak in."""
        clean = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
        return subprocess.run(
            [str(self.prefix / "bin" / program), *arguments],
            cwd=self.elsewhere,
            env=clean,
            capture_output=True,
            text=True,
            check=False,
        )

    def files(self) -> set[str]:
        """Names of all files in the wheel."""
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    def unpack(self, folder: Path) -> Path:
        """Unpack the wheel into `folder`, without installing it; returns `folder`."""
        with zipfile.ZipFile(self.wheel) as archive:
            archive.extractall(folder)
        return folder


def step(*command: str, cwd: Path) -> None:
    """Run one step of the installation; its output becomes the message when it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def install(folder: Path) -> Installed:
    """Build the wheel from a copy of the checkout and install it below `folder`."""
    source, prefix, elsewhere = folder / "source", folder / "empty", folder / "elsewhere"
    source.mkdir()
    elsewhere.mkdir()
    copy_to(source)
    build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder))
    step(sys.executable, *build, str(source), cwd=folder)
    (wheel,) = folder.glob("*.whl")
    step(sys.executable, "-m", "venv", "--without-pip", str(prefix), cwd=folder)
    pip = ("-m", "pip", "--quiet", "--python", str(prefix / "bin" / "python"), "install")
    step(sys.executable, *pip, "-c", str(PINS), str(wheel), cwd=folder)
    return Installed(wheel, prefix, elsewhere)
