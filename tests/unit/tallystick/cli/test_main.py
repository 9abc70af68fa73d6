"""Does the command line import a noun only when it is used, and answer errors with one line?"""

import errno
import importlib
import sys
from types import ModuleType

import pytest
from typer.testing import CliRunner

from contracts.terms.errors import Conflict, InvariantBroken, TallystickError
from tallystick.cli.complaint import MAX_MESSAGE
from tallystick.cli.main import app


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


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (Conflict("taken"), 6, "taken"),
        (TallystickError("odd"), 8, "odd"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 2, "x: Permission denied"),
    ],
    ids=str,
)
def test_noun__error_that_somebody_can_mend__is_one_line_and_a_code(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, said: str
) -> None:
    provide(monkeypatch, "down", failing(error))

    answer = CliRunner().invoke(app, ["down"])

    assert (answer.exit_code, answer.stderr) == (code, f"error: {said}\n")


def test_noun__error_of_many_lines__is_one_of_bounded_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provide(monkeypatch, "down", failing(Conflict("first\n  then\n" + "x" * 10**6 + " last")))

    said = CliRunner().invoke(app, ["down"]).stderr

    assert said.startswith("error: first then xxx") and said.endswith(" last\n")
    assert len(said.splitlines()) == 1 and len(said) < MAX_MESSAGE + 20


@pytest.mark.parametrize("bug", [ValueError("bug"), OSError(5, "bug"), InvariantBroken("bug")])
def test_noun__our_bug__keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, bug: Exception
) -> None:
    provide(monkeypatch, "down", failing(bug))

    answer = CliRunner().invoke(app, ["down"])

    assert answer.exception is bug
