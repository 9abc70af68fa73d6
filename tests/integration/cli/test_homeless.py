"""Verbs of a user without a home: what needs none works, the rest says what to set."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.bad_input.verbs import Said, call, complaint
from tests.integration.up.running import UNPRIVILEGED
from tests.support.stack import ROOT


def said_without_home(*words: str, **variables: str) -> Said:
    if subprocess.run([*UNPRIVILEGED, "true"], capture_output=True).returncode != 0:
        pytest.skip("no user namespaces here")
    done = subprocess.run(
        [*UNPRIVILEGED, sys.executable, "-m", "tallystick", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TALLYSTICK_HOME": "", **variables},
    )
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "line", ["provider status", "doctor", "up", "wallet create --wallet=~/w.json"]
)
def test_verb__home_needed__one_line_says_what_to_set(line: str) -> None:
    told = complaint(said_without_home(*line.split()))

    assert "user id 4242 has no entry in /etc/passwd; set HOME, or TALLYSTICK_HOME" in told


def test_verbs__home_not_needed_or_named__work(tmp_path: Path) -> None:
    wallet, home = str(tmp_path / "w.json"), str(tmp_path / "home")
    nobody = ("--market", "http://127.0.0.1:1")

    here = said_without_home("wallet", "create", "--no-passphrase", "--wallet", wallet)
    there = said_without_home("wallet", "create", "--no-passphrase", TALLYSTICK_HOME=home)
    status = said_without_home("provider", "status", "--home", home, *nobody)
    offers = said_without_home("offers", "list", *nobody)

    assert (here.exit_code, there.exit_code) == (0, 0) and Path(home, "poster.json").exists()
    assert "no key file" in complaint(status) and "no market answers" in complaint(offers)


def test_verb__tilde_that_no_shell_expanded__is_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["wallet", "create", "--no-passphrase"]

    by_option = call([*line, "--wallet=~/w.json"], {"HOME": f"{tmp_path}/ann"})
    by_variable = call(line, {"HOME": f"{tmp_path}/ann", "TALLYSTICK_HOME": "~/t"})

    assert (by_option.exit_code, by_variable.exit_code) == (0, 0)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")}
    assert found == {"ann/w.json", "ann/t/poster.json"}
