"""Can a text that somebody else chose steer a terminal, or begin a line of a log?"""

import logging

import pytest

from contracts.terms.printable import OneLine, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Ann's 7B, \u5927\u304d\u3044", "Ann's 7B, \u5927\u304d\u3044"),
        ("a\x1b[31mb\x07", "a?[31mb?"),
        ("a\x9b2Jb\x7f", "a?2Jb?"),  # C1: one byte less, the same commands
        ("a\r\nerror: b\u2028c\td", "a  error: b c d"),
        ("txt.\u202egpj\u2066", "txt.?gpj?"),
        ("\ud800\u200b", "??"),
    ],
)
def test_printable__text_of_a_stranger__is_one_line_that_steers_nothing(
    text: str, shown: str
) -> None:
    assert printable(text) == shown


def test_one_line__message_with_line_ends__is_one_line_before_the_traceback() -> None:
    record = logging.LogRecord("n", 30, "p", 1, "GET %s", ("/a\nERROR b\x1b[2J",), None)
    record.exc_text = "Traceback:\n  own"

    assert OneLine("%(levelname)s %(message)s").format(record) == (
        "WARNING GET /a ERROR b?[2J\nTraceback:\n  own"
    )
