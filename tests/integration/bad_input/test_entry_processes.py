"""The processes of a job and the host, started with what they cannot use: one line each, exit 1."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from tallystick.coordinator import __main__ as coordinator
from tallystick.host import __main__ as host
from tallystick.provider import outside, peer

FAILED, USAGE = 1, 2
OF_A_FOLDER = {"coordinator": coordinator.main, "peer": peer.main}
TOLD_BY = {"coordinator": "job.json", "peer": "lease.json"}


@pytest.mark.parametrize("name", OF_A_FOLDER)
@pytest.mark.parametrize("arguments", [[], ["a", "b", "c"]], ids=["none", "three"])
def test_process__wrong_arguments__shows_its_usage(
    name: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert OF_A_FOLDER[name](arguments) == USAGE
    assert capsys.readouterr().err.startswith("usage: python -m tallystick.")


@pytest.mark.parametrize("name", OF_A_FOLDER)
@pytest.mark.parametrize("content", [None, b"\xff", b'{"market": 1}'])
def test_process__folder_missing_or_damaged__names_it_in_its_log(
    name: str, content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / TOLD_BY[name]).write_bytes(content)

    assert OF_A_FOLDER[name]([str(tmp_path)]) == FAILED

    said = json.loads(capsys.readouterr().out)
    assert (said["process"], said["event"], said["code"]) == (name, "failed", "malformed")
    assert str(tmp_path) in said["error"]


@pytest.mark.parametrize(
    ("process", "variable"),
    [(peer, "TALLYSTICK_PEER_NICE"), (outside, "TALLYSTICK_AUDIT_NICE")],
    ids=["peer", "outside"],
)
def test_process__variable_that_cannot_be__names_it_in_its_log(
    process: ModuleType,
    variable: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, "very")

    assert process.main([str(tmp_path)]) == FAILED

    said = json.loads(capsys.readouterr().out)
    assert (said["event"], said["code"]) == ("failed", "wrong_configuration")
    assert said["error"].startswith(f"{variable}: Input should be a valid integer")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "TALLYSTICK_API_URL: Field required"),
        ({"API_URL": "nonsense", "HOST_TOKEN": "secret"}, "is no URL of a market"),
        ({"API_URL": "http://127.0.0.1:1"}, "no host credential"),
    ],
)
def test_host__not_set_up__says_what_is_missing_and_no_secret(
    variables: dict[str, str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("API_URL", "KEYS", "JOBS", "HOST_TOKEN"):
        monkeypatch.delenv(f"TALLYSTICK_{name}", raising=False)
    if variables:
        variables = {"KEYS": str(tmp_path), "JOBS": str(tmp_path), **variables}
    for name, value in variables.items():
        monkeypatch.setenv(f"TALLYSTICK_{name}", value)

    assert host.main() == FAILED

    said = capsys.readouterr().out
    assert words in said and "secret" not in said
    assert len(said.splitlines()) == 1
