"""Does a verb answer on standard output alone, in three forms, and complain in two?"""

import json
import logging
from collections.abc import Callable

import pytest
import typer
from typer.testing import CliRunner

from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import Malformed, NoMatch
from contracts.terms.ids import Address, AddressField
from market.bodies.base import Body, Money
from tallystick.cli import main
from tallystick.cli.complaint import asks_for_json
from tallystick.cli.output import answer, facts, notice, shows, table

ANN = Address(b"a" * 20)


class Row(Body):
    """One account."""

    account: AddressField
    paid: Money
    note: str | None = None
    tags: tuple[str, ...] = ()


class Rows(Body):
    """Several."""

    rows: tuple[Row, ...]


ROWS = Rows(rows=(Row(account=ANN, paid=5, tags=("a,b",)),))  # type: ignore[arg-type]


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Body | None]], None]:
    """Lets a function be `tallystick down`."""

    def provide(said: Callable[[], Body | None], rows: str | None = "rows") -> None:
        declared = shows(Rows, lines=lambda found: [f"{len(found.rows)} rows"], rows=rows)

        @declared
        def own() -> Rows | None:
            found = said()
            assert found is None or isinstance(found, Rows)
            return found

        app = typer.Typer(add_completion=False)
        app.command("down")(own)
        command = typer.main.get_command(app)
        monkeypatch.setattr(main, "noun_of", lambda word: command)

    return provide


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main.app, ["down", *words])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "1 rows\n"),
        (("-o", "csv"), f'account,paid_tokens,note,tags\n{ANN.hex()},0.000005,,"[""a,b""]"\n'),
    ],
)
def test_answer__table_or_csv__is_all_of_standard_output(
    verb: Callable[..., None], words: tuple[str, ...], said: str
) -> None:
    verb(lambda: ROWS)

    assert run(*words) == (0, said, "")


STRANGE = {
    "=1+1": "'=1+1",
    "+49": "'+49",
    "-2+3": "'-2+3",
    "@SUM(A1)": "'@SUM(A1)",
    "\t=1": "' =1",
    "\r\n=1": "'  =1",
    "\uff1d1": "'\uff1d1",
    'a "b", c': '"a ""b"", c"',
    "a\x1b[2J\x9b\u202eb\nc": "a?[2J??b c",
    "a=b": "a=b",
    "a;=1; +2;b": "a;'=1; '+2;b",
}


@pytest.mark.parametrize(("note", "cell"), STRANGE.items())
def test_answer__csv_cell_of_a_stranger__is_text_in_one_line(
    verb: Callable[..., None], note: str, cell: str
) -> None:
    verb(lambda: Rows(rows=(Row(account=ANN, paid=BaseUnits(5), note=note),)))

    assert run("-o", "csv")[1].splitlines()[1:] == [f"{ANN.hex()},0.000005,{cell},[]"]


@pytest.mark.parametrize("words", [(), ("-o", "json")])
def test_answer__note_that_steers__leaves_as_what_steers_nothing(
    verb: Callable[..., None], words: tuple[str, ...]
) -> None:
    note = "a\x1b[2J\x9b\u202eb\nc"

    def said() -> None:
        notice(note)
        assert logging.lastResort is not None and logging.lastResort.formatter is not None
        record = logging.LogRecord("n", 30, "p", 1, f"{note}\nerror: c", (), None)
        notice(logging.lastResort.formatter.format(record))  # what a library warns of
        answer(Rows(rows=(Row(account=ANN, paid=BaseUnits(5), note=note),)),
               [note, table("", ("note",), [(note,)]), facts(note, {"note": note})])  # fmt: skip

    verb(said)
    _, told, heard = run(*words)

    assert all(each.isprintable() for each in f"{told}{heard}".splitlines())
    assert heard == "a?[2J??b c\na?[2J??b c error: c\n"
    assert not words or json.loads(told)["rows"][0]["note"] == note


def test_complaint__error_that_steers__is_one_line_that_does_not(verb: Callable[..., None]) -> None:
    def refused() -> Body:
        raise Malformed("a\x1b[2J\u202eb\nerror: c")

    verb(refused)

    assert run()[2] == "error: a?[2J?b error: c\n"


def test_answer__csv_of_what_has_no_rows__is_refused_before_anything_is_done(
    verb: Callable[..., None],
) -> None:
    done: list[str] = []
    verb(lambda: done.append("done"), rows=None)

    code, said, complaint = run("-o", "csv")

    assert (code, said, done) == (2, "", [])
    assert "no rows" in complaint


@pytest.mark.parametrize(("words", "heard"), [((), "working\n"), (("-q",), "")])
def test_notice__is_on_standard_error_unless_quiet(
    verb: Callable[..., None], words: tuple[str, ...], heard: str
) -> None:
    def said() -> None:
        notice("working")
        answer(ROWS)

    verb(said)

    assert run(*words) == (0, "1 rows\n", heard)


def test_complaint__under_json__is_one_object_with_code_and_data(
    verb: Callable[..., None],
) -> None:
    def refused() -> Body:
        raise NoMatch("too\ndear", constraint="price", who=ANN)

    verb(refused)

    code, said, complaint = run("-o", "json")

    assert (code, said) == (5, "")
    assert json.loads(complaint) == {
        "code": "no_match",
        "message": "too dear",
        "exit_code": 5,
        "data": {"constraint": "price", "who": ANN.hex()},
    }


SEVERAL = [
    {"line": 1, "column": 3, "key": "budget", "given": "'x'", "problem": "a number is wanted"},
    {"line": None, "column": None, "key": "data", "given": "", "problem": "is missing"},
]


@pytest.mark.parametrize(
    ("errors", "lines"),
    [
        (SEVERAL, ["  line 1, column 3: budget: a number is wanted", "  data: is missing",
                   "error: job.yaml: 2 problems"]),
        (SEVERAL[:1], ["error: job.yaml: 2 problems: line 1: budget; data"]),
        ("no list", ["error: job.yaml: 2 problems: line 1: budget; data"]),
    ],
)  # fmt: skip
def test_complaint__several_errors_of_a_file__are_a_line_each_and_data_of_the_object(
    verb: Callable[..., None], errors: object, lines: list[str]
) -> None:
    def refused() -> Body:
        raise Malformed("job.yaml: 2 problems:\nline 1: budget;\ndata", errors=errors)

    verb(refused)

    assert run()[2].splitlines() == lines
    assert json.loads(run("-o", "json")[2])["data"] == {"errors": errors}


@pytest.mark.parametrize("words", [["--nonsense"], ["surplus"], ["-o", "json", "--output"]])
def test_complaint__wrong_command_line_under_json__is_an_object_too(
    verb: Callable[..., None], words: list[str]
) -> None:
    verb(lambda: ROWS)

    code, said, complaint = run("-o", "json", *words)

    if words[-1] == "--output":  # the last word counts, and it says nothing
        assert complaint.startswith("error: ")
    else:
        assert json.loads(complaint)["code"] == "usage"
    assert (code, said) == (2, "")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("", False),
        ("-o json", True),
        ("--output=json", True),
        ("--output json -o table", False),
        ("-- -o json", False),
    ],
)
def test_asks_for_json__words__as_the_parser_would(line: str, wanted: bool) -> None:
    assert asks_for_json(line.split()) == wanted
