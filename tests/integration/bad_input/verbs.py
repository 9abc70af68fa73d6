"""Every verb of the command line and its parameters, found, not listed; and how to call one."""

import gc
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from contracts.keys.store import save_wallet
from tallystick.cli.main import EXIT_CODES, all_verbs, app
from tests.support.history import make_wallet

USAGE = 2
MISMATCH = 11
OF_FILES = {MISMATCH, 12}  # of `audit` alone
URLS = ("market", "rpc")


JOB = (
    "name: tiny\nrecipe: micro\nbudget: 10\nprice_ceiling: 2000000\ndeadline: 1h\ndata: text.txt\n"
)


LOG = '{"at": 1, "mono": 1, "process": "coordinator", "pid": 1, "event": "opened", "job": "ab"}\n'


def write_job(folder: Path) -> None:
    """A job file and the text that it trains on."""
    (folder / "job.yaml").write_text(JOB)
    (folder / "text.txt").write_text("".join(f"line {i} of a text\n" for i in range(300)))


def write_inputs(folder: Path) -> None:
    """A file of each kind that verbs read, and the keystores of a poster and a provider."""
    write_job(folder)
    (folder / "key").write_text("ab" * 32)
    (folder / "logs").mkdir()
    (folder / "logs" / "coordinator.log").write_text(LOG)
    save_wallet(folder / "home" / "provider" / "wallet.json", make_wallet("ann"))
    save_wallet(folder / "home" / "poster.json", make_wallet("poster"))


@dataclass(frozen=True)
class Parameter:
    """An option (`flag` is how it is written) or an argument (`flag` is empty)."""

    name: str
    flag: str
    kind: type
    required: bool


@dataclass(frozen=True)
class Verb:
    """What is typed after `tallystick`."""

    words: tuple[str, ...]
    parameters: tuple[Parameter, ...]

    def __str__(self) -> str:
        return " ".join(self.words)

    def line(self, values: Mapping[str, str]) -> list[str]:
        """A command line that gives these parameters."""
        line = list(self.words)
        for parameter in self.parameters:
            if parameter.name in values:
                line += [parameter.flag] if parameter.flag else []
                line.append(values[parameter.name])
        return line


@dataclass(frozen=True)
class Said:
    """How a call ended."""

    exit_code: int
    stdout: str
    stderr: str
    error: str = field(default="")


def verbs() -> list[Verb]:
    """All of them, in the order of the help."""
    return [
        Verb((noun, word) if word else (noun,), tuple(_parameters(verb)))
        for noun, word, verb in all_verbs()
    ]


def _parameters(verb: Any) -> typing.Iterator[Parameter]:
    for found in verb.params:
        if found.param_type_name == "option" and found.is_flag:
            continue
        flag = found.opts[-1] if found.param_type_name == "option" else ""
        kind = _plain(found.type_descriptor.annotation)
        yield Parameter(found.name, flag, kind, bool(found.required))


def _plain(annotation: Any) -> type:
    """`int` of `int | None`, `Path` of `list[Path]`."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        annotation = next(each for each in typing.get_args(annotation) if each is not type(None))
    if typing.get_origin(annotation) is list:
        (annotation,) = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal or issubclass(annotation, Enum):
        annotation = str
    assert annotation in (int, float, str, Path), annotation
    plain: type = annotation
    return plain


def call(line: list[str], environment: Mapping[str, str]) -> Said:
    """Run a command line in this process.

    An exception that is no refusal is raised here: it would be a traceback.
    """
    gc.disable()  # what an earlier test left behind speaks while it is collected
    try:
        done = CliRunner().invoke(app, line, env=dict(environment))
    finally:
        gc.enable()
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Said(done.exit_code, done.stdout, done.stderr)


def complaint(said: Said, *, codes: frozenset[int] = frozenset()) -> str:
    """The one line that says what is wrong; fails unless it is a refusal as documented."""
    allowed = codes or frozenset({USAGE, *EXIT_CODES.values()})
    assert said.exit_code in allowed, said
    assert said.stdout == "", said
    assert "Traceback" not in said.stderr, said
    lines = said.stderr.splitlines()
    first = ("error: ", "mismatch: ") if said.exit_code == MISMATCH else ("error: ",)
    errors = [line for line in lines if line.startswith(first)]
    assert len(errors) == 1 and lines[-1:] == errors, said
    assert len(errors[0]) < 1100, said
    return errors[0].partition(": ")[2]
