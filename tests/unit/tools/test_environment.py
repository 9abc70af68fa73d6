"""Does the preflight name what is missing, with a remedy, and are stamps believed only if equal?"""

import shutil
import sys
from pathlib import Path

import pytest

from tools import environment
from tools.environment import (
    NIGHTLY_PARTS,
    NPM_PARTS,
    STAMP,
    Missing,
    is_stamped,
    machine_node,
    npm_command,
    preflight,
)


def test_is_stamped__other_stamp__is_false(tmp_path: Path) -> None:
    (tmp_path / STAMP).write_text("b")

    assert not is_stamped(tmp_path, "a")


def test_venv_stamp__changed_pins__differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = environment.venv_stamp(environment.EXTRAS)
    pins = tmp_path / "pins.txt"
    pins.write_text("torch==0.0\n")

    monkeypatch.setattr(environment, "PINS", pins)

    assert environment.venv_stamp(environment.EXTRAS) != before
    assert environment.venv_stamp(environment.NIGHTLY_EXTRAS) != before


def test_main__nightly__also_makes_what_nothing_else_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Path]()
    monkeypatch.setattr(environment, "is_stamped", lambda _folder, _stamp: True)
    monkeypatch.setattr(environment, "is_stale", lambda _part: True)
    monkeypatch.setattr(environment, "preflight", lambda: None)
    monkeypatch.setattr(environment, "make_npm_part", made.append)

    assert [environment.main([]), environment.main(["nightly"])] == [0, 0]
    assert made == [*NPM_PARTS, *NPM_PARTS, *NIGHTLY_PARTS]


def test_preflight__old_python__names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))

    with pytest.raises(Missing, match=r"older than 3\.11\n  remedy: "):
        preflight()


def test_preflight__full_disk__says_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=3_000_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    with pytest.raises(Missing, match=r"3\.0 GB free .* 4 GB are needed\n  remedy: "):
        preflight()


@pytest.mark.parametrize(
    ("answer", "usable"), [("v18.0.0", True), ("v17.9.1", False), ("?", False)]
)
def test_machine_node__version__decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, usable: bool
) -> None:
    for name in ("node", "npm"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {answer}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert (machine_node() is not None) == usable


def test_npm_command__no_node__runs_the_wheels_npm_by_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")

    node, npm = npm_command()

    assert Path(node).name == "node"
    assert Path(npm).name == "npm-cli.js"
    assert Path(npm).is_file()
