"""Text that others chose, as people may be shown it: one line that steers nothing. Pure.

A name, a reason or an error may hold control characters, which move a terminal's cursor or begin
another line of a log, and marks of direction, by which a name reads as another one. Whatever writes
to a terminal, a log or a page passes through here; what programs read keeps every character.
"""

import logging


def printable(text: str) -> str:
    """`text` in one line: line ends and other blanks become spaces, what steers becomes `?`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each.isspace() else "?" for each in text)


class OneLine(logging.Formatter):
    """Spells a record's message in one line; a traceback of ours keeps its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # its name in logging
        """See `logging.Formatter.formatMessage`."""
        return printable(super().formatMessage(record))
