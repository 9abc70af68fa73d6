"""Which nouns the command line has, and how it answers when something is wrong.

Every noun lives in a module of this package that exposes `app` (a `typer.Typer`, or a function
when the noun is its own verb). The module is imported only when its noun is used, so that
`tallystick --help` stays under 0.4 CPU seconds and works with the base dependencies alone.

Errors of `contracts.terms.errors` become one line on standard error and an exit code of
`EXIT_CODES`; anything else is our bug and keeps its traceback.
"""

import errno
import importlib
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


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
    Noun("job", "Submit a training job, and follow it."),
    Noun("audit", "Export a job's audit file; verify one offline."),
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
}
"""Exit code by an error's `code`; a code that is not listed takes its nearest parent's."""


class LazyCommand(TyperCommand):
    """Stands in the help for a noun whose module was not imported yet."""

    def load(self) -> Any:
        """Import the noun's module and return its command.

        The type is typer's own copy of click's `Command`, which typer does not export.
        """
        app = importlib.import_module(f"tallystick.cli.{self.name}").app
        if not isinstance(app, typer.Typer):
            verb, app = app, typer.Typer(add_completion=False)
            app.command(self.name)(verb)
        command = typer.main.get_command(app)
        command.name = self.name
        # typer adds these to every app, and they make sense for the whole program alone
        unwanted = ("install_completion", "show_completion")
        command.params = [known for known in command.params if known.name not in unwanted]
        return command


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

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error of ours becomes one line and an exit code."""
        from contracts.terms.errors import InvariantBroken, TallystickError  # not for `--help`

        try:
            return super().invoke(ctx)
        except InvariantBroken:
            raise
        except TallystickError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(exit_code(error)) from error
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.ENOSPC, errno.EROFS, errno.EDQUOT):
                raise
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error


def exit_code(error: Exception) -> int:
    """The exit code of an error of `contracts.terms.errors` (DESIGN section 5, number 13)."""
    codes = (getattr(kind, "code", None) for kind in type(error).__mro__)
    return next(EXIT_CODES[code] for code in codes if code in EXIT_CODES)


app = typer.Typer(
    cls=Nouns,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # its traceback prints local variables, keys among them
    help="Tallystick: LLM-training work that is checked before it is paid.",
)


@app.callback()
def main() -> None:
    """Tallystick: LLM-training work that is checked before it is paid."""
