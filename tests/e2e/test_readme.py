"""Does what the README prints under "By hand" work, typed as it stands, on a machine of one's own?

Each terminal is a bash with the README's lines, in a folder that looks like the checkout, with a
home of its own. What a person waits for is waited for here: `ready`, `offering`. At the end each
terminal gets Ctrl-C, and nothing may be left of any.
"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tallystick.up.data_folder import open_data_folder
from tallystick.up.ports import API_PORT, is_free
from tallystick.up.processes import RUN_ID, Identity, environment_of, running, send
from tests.support.documents import section, terminals
from tests.support.examples import NIGHTLY, profile
from tests.support.market_services import free_port
from tests.support.patience import patience
from tests.support.stack import ROOT

MARKET, PROVIDERS, PERSON = 1, range(2, 8), 8
WANTED = (
    "tallystick job submit examples/tiny.yaml --wait --yes",
    "tallystick provider earnings",
    "tallystick job money",
    "tallystick audit export",
    "tallystick audit verify job.tally --anchor",
)
ELSEWHERE = {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "PGPORT": "1"}
"""Variables of other programs, which ours have to leave alone."""
STEPS = 20 if profile() == NIGHTLY else 6
"""Of `examples/tiny.yaml`, which has 20."""
_LOOK_SECONDS = 0.1


@dataclass
class Terminals:
    """Terminals of one person, each with a program in it."""

    folder: Path
    environment: dict[str, str]
    open: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def type(self, number: int, text: str) -> subprocess.Popen[bytes]:
        """Open a terminal and type `text`; it stops at the first line that fails."""
        with self.said(number).open("wb") as said, self.shown(number).open("wb") as shown:
            self.open[number] = subprocess.Popen(
                ["bash", "-eu", "-o", "pipefail", "-c", text],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=shown,
                start_new_session=True,
            )
        return self.open[number]

    def said(self, number: int) -> Path:
        """Standard output of a terminal."""
        return self.folder / f"terminal-{number}.out"

    def shown(self, number: int) -> Path:
        """Standard error of a terminal."""
        return self.folder / f"terminal-{number}.err"

    def until(self, number: int, word: str, *, within: float) -> None:
        """Wait until a terminal shows `word`."""
        ends = time.monotonic() + patience(within)
        while not any(word in file.read_text() for file in (self.said(number), self.shown(number))):
            assert self.open[number].poll() is None, self.told()
            assert time.monotonic() < ends, f"no {word!r} in terminal {number}: {self.told()}"
            time.sleep(_LOOK_SECONDS)

    def told(self) -> str:
        """The ends of what all terminals show."""
        files = [file for number in self.open for file in (self.said(number), self.shown(number))]
        return "\n".join(f"{file.name}: {file.read_text()[-1500:]}" for file in files)

    def interrupt(self) -> None:
        """Ctrl-C in each, the newest first, and wait until all have ended."""
        for process in reversed(self.open.values()):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
        for process in reversed(self.open.values()):
            process.wait(timeout=patience(60))

    def left(self) -> list[Identity]:
        """Processes of these terminals that live."""
        mine = self.environment[RUN_ID]
        return [one for one in running() if environment_of(one.pid).get(RUN_ID) == mine]


@contextmanager
def opened(folder: Path) -> Iterator[Terminals]:
    """A folder that looks like the checkout, and a person who never was here."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    tiny = folder / "examples" / "tiny.yaml"
    tiny.write_text(tiny.read_text().replace("\nsteps: 20\n", f"\nsteps: {STEPS}\n"))
    programs = folder / "bin"
    programs.mkdir()
    program = programs / "tallystick"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tallystick "$@"\n')
    program.chmod(0o755)
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("TALLYSTICK_")},
        "HOME": str(folder / "home"),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        **ELSEWHERE,
        RUN_ID: secrets.token_hex(16),
    }
    if not is_free(API_PORT):  # somebody's own market: ours remembers another port
        port = free_port()
        remember(folder / "home" / ".tallystick", port)
        environment["TALLYSTICK_MARKET"] = f"http://127.0.0.1:{port}"
    found = Terminals(folder, environment)
    try:
        yield found
    finally:
        for one in found.left():
            send(one, signal.SIGKILL)


def remember(home: Path, port: int) -> None:
    """Leave what an earlier `up --port` would have left."""
    home.parent.mkdir(parents=True)
    open_data_folder(home).ports.write_text(f'{{"api": {port}}}')


@pytest.mark.timeout(600)
def test_readme__by_hand__every_command_works_as_printed(tmp_path: Path) -> None:
    typed = terminals(section((ROOT / "README.md").read_text(), "By hand"))
    assert sorted(typed) == [MARKET, *PROVIDERS, PERSON]
    assert [wanted for wanted in WANTED if wanted not in typed[PERSON]] == []

    folder = tmp_path / "a checkout with spaces"
    folder.mkdir()

    with opened(folder) as shells:
        shells.type(MARKET, typed[MARKET])
        shells.until(MARKET, "ready in", within=120)
        for number in PROVIDERS:
            shells.type(number, typed[number])
        for number in PROVIDERS:
            shells.until(number, "offering at", within=120)
        person = shells.type(PERSON, typed[PERSON])
        assert person.wait(timeout=patience(400)) == 0, shells.told()
        said = shells.said(PERSON).read_text()
        shells.interrupt()

        assert re.search(r"^earned +[0-9.]*[1-9]", said, re.MULTILINE), said
        assert re.search(r"^claimed +[0-9.]*[1-9]", said, re.MULTILINE), said
        assert said.splitlines()[-1].startswith(f"anchored: {STEPS} steps"), said
        assert (folder / "my-model" / "config.json").exists()
        assert [number for number, each in shells.open.items() if each.returncode != 0] == []
        assert shells.left() == []
