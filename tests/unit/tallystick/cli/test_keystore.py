"""Passphrases and keys that are given: taken as they are meant, or refused; never weaker."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contracts.keys.store import load_wallet
from tallystick.cli.main import app
from tests.support.history import make_wallet

FILE, VARIABLE = "TALLYSTICK_PASSPHRASE_FILE", "TALLYSTICK_PASSPHRASE"


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (FILE, VARIABLE):
        monkeypatch.delenv(name, raising=False)


def call(*words: object, **variables: str) -> tuple[int, str]:
    """How a call ended, and what it said is wrong."""
    done = CliRunner().invoke(app, [str(word) for word in words], env=variables)
    return done.exit_code, done.stderr


def give(data: bytes, folder: Path) -> dict[str, str]:
    """The variables that name a file with these bytes."""
    (folder / "passphrase").write_bytes(data)
    (folder / "passphrase").chmod(0o600)
    return {FILE: str(folder / "passphrase")}


BAD = {
    b"": "blank",
    b"\n": "blank",
    b" \t\n": "blank",
    b"\nsecret\n": "blank",
    b"\r\nsecret\n": "blank",
    b"\xef\xbb\xbf\n": "blank",
    b"\rsecret": "UTF-8",
    "Gr\u00fc\u00dfe".encode("latin-1"): "UTF-8",
    "secret".encode("utf-16"): "UTF-8",
    "secret".encode("utf-16-le"): "UTF-8",
}


@pytest.mark.parametrize(("data", "why"), BAD.items(), ids=map(repr, BAD))
def test_create__passphrase_file_that_is_none__makes_no_key(
    data: bytes, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "wallet.json"

    code, said = call("wallet", "create", "--wallet", path, **give(data, tmp_path))

    assert (code, why in said, "unset" in said, path.exists()) == (2, True, True, False), said
    assert "secret" not in said


@pytest.mark.parametrize("name", [FILE, VARIABLE])
def test_create__empty_variable__makes_no_key_but_without_passphrase(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "wallet.json"

    code, said = call("wallet", "create", "--wallet", path, **{name: ""})
    none, _ = call("wallet", "create", "--wallet", path, "--no-passphrase", **{name: ""})

    assert (code, name in said, none) == (2, True, 0), said
    assert load_wallet(path)


def test_create__variable_that_is_no_unicode__is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "wallet.json"

    code, said = call("wallet", "create", "--wallet", path, **{VARIABLE: os.fsdecode(b"Gr\xfc")})

    assert (code, said.count("\n"), "no UTF-8" in said, path.exists()) == (2, 1, True, False), said


@pytest.mark.parametrize(
    "data",
    [b"correct horse", b"correct horse\r\nmore", b"\xef\xbb\xbfcorrect horse\n"],
)
def test_create__passphrase_of_a_file__is_its_first_line(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "wallet.json"

    assert call("wallet", "create", "--wallet", path, **give(data, tmp_path)) == (0, "")
    assert load_wallet(path, "correct horse")


@pytest.mark.parametrize("prefix", ["", "0x", "0X", " 0x"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_import__bare_key_as_other_programs_write_it__is_read(
    prefix: str, encoding: str, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(f"{prefix}{make_wallet('x').secret.hex()}\r\n".encode(encoding))
    path = tmp_path / "wallet.json"

    code, said = call("wallet", "import", tmp_path / "key", "--wallet", path, "--no-passphrase")

    assert (code, load_wallet(path)) == (0, make_wallet("x")), said
