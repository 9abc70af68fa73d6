"""Which nouns the command line has, and how it answers when something is wrong.

Every noun lives in a module of this package that exposes `app` (a `typer.Typer`, or a function
when the noun is its own verb). The module is imported only when its noun is used, so that
`tallystick --help` stays under 0.4 CPU seconds and works with the base dependencies alone.

Whatever is the caller's or the environment's to mend becomes one line `error: ...` on standard
error (one JSON object under `-o json`) and an exit code: a wrong command line 2, errors of
`contracts.terms.errors` by `EXIT_CODES`, a path or a disk that cannot be used 2. Anything else is
our bug and keeps its traceback.
"""

import errno
import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from contracts.terms.printable import OneLine
from tallystick.cli.complaint import complain, expect_json


class Noun(NamedTuple):
    """One word after `tallystick`; its module is `tallystick.cli.<word>`."""

    word: str
    help: str


NOUNS = (
    Noun("demo", "Run one job from offer to audit on this machine, and report."),
    Noun("up", "Start the services of a market on this machine."),
    Noun("down", "Stop the services of a market on this machine."),
    Noun("doctor", "Check this machine: what is wanted, what was found, how to remedy it."),
    Noun("provider", "Offer this machine's compute and work for pay."),
    Noun("data", "Make texts the shards that a job trains on."),
    Noun("job", "Plan and post a training job, follow it, see what came of it."),
    Noun("offers", "See what machines are offered."),
    Noun("market", "See depth, demand and prices of a market."),
    Noun("audit", "Export a job's audit file; verify one offline; run an audit again."),
    Noun("wallet", "Make, import and look at a keystore."),
    Noun("get", "Get anything of a market: jobs, offers, one of them, what came of it."),
    Noun("params", "See the protocol's numbers of a market."),
    Noun("schema", "Print the JSON Schema of what a verb answers."),
    Noun("deploy", "Deploy the contracts on a chain of your own."),
    Noun("version", "Print the version."),
)

EXIT_CODES: dict[str, int] = {
    "refused": 2,
    "not_found": 3,
    "bad_signature": 4,
    "expired": 4,
    "forbidden": 4,
    "insufficient_stake": 5,
    "no_match": 5,
    "unaffordable": 5,
    "conflict": 6,
    "deadline_exceeded": 7,
    "error": 8,
    "unconfirmed": 9,
    "audit_mismatch": 11,
    "unreadable": 12,
}
"""Exit code by an error's `code`; a code that is not listed takes its nearest parent's."""


class LazyCommand(TyperCommand):
    """Stands in the help for a noun whose module was not imported yet."""

    def load(self) -> Any:
        """Import the noun's module and return its command.

        The type is typer's own copy of click's `Command`, which typer does not export.
        """
        assert self.name is not None
        return noun_of(self.name)


def noun_of(word: str) -> Any:
    """The command of a noun, whose module is imported."""
    app = importlib.import_module(f"tallystick.cli.{word}").app
    command: Any
    if isinstance(app, typer.Typer):
        command = typer.main.get_group(app)
    else:
        alone = typer.Typer(add_completion=False)
        alone.command(word)(app)
        command = typer.main.get_command(alone)
    command.name = word
    return command


def all_verbs() -> Iterator[tuple[str, str, Any]]:
    """Noun, verb (empty where the noun is its own) and command of all, in the order of the help."""
    for noun in NOUNS:
        command = noun_of(noun.word)
        for word, verb in getattr(command, "commands", {"": command}).items():
            yield noun.word, word, verb


class Nouns(TyperGroup):
    """The group of all nouns: lists them without importing them, translates their errors."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for noun in NOUNS:
            self.add_command(LazyCommand(noun.word, help=noun.help))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that `args` name, and import it."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest

    def make_context(self, info_name: Any, args: list[str], *more: Any, **extra: Any) -> Any:
        """Parse what stands before the noun."""
        expect_json(args)
        with reported():
            return super().make_context(info_name, args, *more, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error of ours becomes one line and an exit code."""
        with reported():
            return super().invoke(ctx)


@contextmanager
def reported() -> Iterator[None]:
    """Turn errors that somebody else can mend into one complaint and an exit code."""
    from contracts.terms.errors import (  # not for `--help`
        AuditMismatch,
        InvariantBroken,
        TallystickError,
    )

    try:
        yield
    except typer.TyperException as error:  # a command line that cannot be parsed
        message, place = error.format_message(), getattr(error, "ctx", None)
        if not message:  # a noun without a verb: its help was printed
            raise
        hint = f" (see `{place.command_path} --help`)" if place else ""
        raise complain(message + hint, error.exit_code) from error
    except InvariantBroken:
        raise
    except TallystickError as error:
        code, data = type(error).code, error.data
        word = "mismatch" if isinstance(error, AuditMismatch) else "error"
        raise complain(str(error), exit_code(error), code=code, data=data, word=word) from error
    except OSError as error:
        # With a name it is about a path that somebody gave; without one only a full disk is.
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        about = f"{error.filename}: " if error.filename else ""
        raise complain(f"{about}{error.strerror}", 2, code="refused") from error


def exit_code(error: Exception) -> int:
    """The exit code of an error of `contracts.terms.errors` (docs/architecture.md 5)."""
    codes = (getattr(kind, "code", None) for kind in type(error).__mro__)
    return next(EXIT_CODES[code] for code in codes if code in EXIT_CODES)


app = typer.Typer(
    cls=Nouns,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its traceback prints local variables, keys among them
    help="Tallystick: LLM-training work that is checked before it is paid.",
)


@app.callback()
def main() -> None:
    """Tallystick: LLM-training work that is checked before it is paid."""
    assert logging.lastResort is not None  # what a library warns of may quote a stranger
    logging.lastResort.setFormatter(OneLine())
