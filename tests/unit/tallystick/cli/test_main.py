"""Does the command line import a noun only when it is used, and answer errors with one line?"""

import errno
import importlib
import sys
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

from contracts.terms.errors import Conflict, InvariantBroken, TallystickError
from tallystick.cli.main import NOUNS, app


@pytest.fixture(autouse=True, scope="module")
def _typer_is_loaded() -> None:
    """Typer imports rich and pydantic at the first help and the first argument."""
    CliRunner().invoke(app, ["--help"])
    importlib.import_module("pydantic")


def provide(monkeypatch: pytest.MonkeyPatch, word: str, verb: object) -> None:
    """Let `verb` be what the module of noun `word` exposes."""
    module = ModuleType(f"tallystick.cli.{word}")
    monkeypatch.setattr(module, "app", verb, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def failing(error: Exception) -> object:
    """A verb that raises `error`."""

    def verb() -> None:
        raise error

    return verb


def test_help__all_nouns__are_listed() -> None:
    answer = CliRunner().invoke(app, ["--help"])

    assert answer.exit_code == 0
    assert [noun.word for noun in NOUNS if noun.word not in answer.output] == []


def test_noun__function__is_its_own_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    def verb(name: str) -> None:
        typer.echo(f"down {name}")

    provide(monkeypatch, "down", verb)

    answer = CliRunner().invoke(app, ["down", "here"])

    assert (answer.exit_code, answer.output) == (0, "down here\n")


def test_noun__typer_app__keeps_its_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    nested = typer.Typer()
    nested.command("show")(lambda: typer.echo("shown"))
    nested.command("submit")(lambda: typer.echo("submitted"))
    provide(monkeypatch, "job", nested)

    answer = CliRunner().invoke(app, ["job", "submit"])

    assert (answer.exit_code, answer.output) == (0, "submitted\n")


@pytest.mark.parametrize(("error", "code"), [(Conflict("taken"), 6), (TallystickError("odd"), 8)])
def test_noun__our_error__is_one_line_and_a_code(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    provide(monkeypatch, "down", failing(error))

    answer = CliRunner().invoke(app, ["down"])

    assert (answer.exit_code, answer.stderr) == (code, f"error: {error}\n")


def test_noun__no_permission__is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    provide(monkeypatch, "down", failing(PermissionError(errno.EACCES, "Permission denied", "x")))

    answer = CliRunner().invoke(app, ["down"])

    assert answer.exit_code == 2
    assert answer.stderr == "error: x: Permission denied\n"


@pytest.mark.parametrize("bug", [ValueError("bug"), InvariantBroken("bug")])
def test_noun__our_bug__keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, bug: Exception
) -> None:
    provide(monkeypatch, "down", failing(bug))

    answer = CliRunner().invoke(app, ["down"])

    assert answer.exception is bug
