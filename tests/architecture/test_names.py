"""Do errors and the exit codes of the command line fit each other?"""

import pytest

from contracts.terms import errors
from contracts.terms.errors import TallystickError
from tallystick.cli.main import EXIT_CODES, exit_code


def all_errors(root: type[TallystickError]) -> list[type[TallystickError]]:
    """`root` and every class below it."""
    return [root] + [kind for child in root.__subclasses__() for kind in all_errors(child)]


def test_error_codes__all_classes__are_unique() -> None:
    kinds = [kind for kind in all_errors(TallystickError) if kind.__module__ == errors.__name__]

    assert len({kind.code for kind in kinds}) == len(kinds)


def test_exit_codes__every_key__is_the_code_of_an_error() -> None:
    assert set(EXIT_CODES) <= {kind.code for kind in all_errors(TallystickError)}


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.Malformed, 2),
        (errors.NotFound, 3),
        (errors.Forbidden, 4),
        (errors.NoMatch, 5),
        (errors.Conflict, 6),
        (errors.DeadlineExceeded, 7),
        (errors.ServiceUnreachable, 8),
    ],
)
def test_exit_code__error__is_that_of_the_design(kind: type[TallystickError], code: int) -> None:
    assert exit_code(kind("said why")) == code
