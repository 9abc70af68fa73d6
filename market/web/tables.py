"""Cells that know the heading of their column, so that a narrow screen can stack them. Pure.

On a narrow screen the style sheet shows each row of a table as a block of lines, `heading value`;
a style sheet cannot read a heading from another row, so each cell carries it as `data-label`.
Works on the HTML of our own templates: tables are not nested, and cells have no row span.
"""

import re

_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL)
_HEADING = re.compile(r'<th scope="col"[^>]*>(.*?)</th>', re.DOTALL)
_ROW = re.compile(r"<tr\b.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<t[dh](?=[ >])(?P<attributes>[^>]*)>")
_SPAN = re.compile(r'colspan="(\d+)"')
_TAG = re.compile(r"<[^>]*>")


def label_cells(html: str) -> str:
    """The same HTML, each cell of a table's rows with the text of its column's heading.

    A cell that spans columns gets none: it is a sentence about the whole row.
    """
    return _TABLE.sub(lambda found: _label_table(found[0]), html)


def _label_table(table: str) -> str:
    head, split, rows = table.partition("</thead>")
    headings = [" ".join(_TAG.sub("", each).split()) for each in _HEADING.findall(head)]
    if not split or not headings:
        return table
    return head + split + _ROW.sub(lambda row: _label_row(row[0], headings), rows)


def _label_row(row: str, headings: list[str]) -> str:
    column = 0

    def label(cell: re.Match[str]) -> str:
        nonlocal column
        here, span = column, _SPAN.search(cell["attributes"])
        column += int(span[1]) if span else 1
        if span or here >= len(headings) or not headings[here]:
            return cell[0]
        return f'{cell[0][:-1]} data-label="{headings[here]}">'

    return _CELL.sub(label, row)
