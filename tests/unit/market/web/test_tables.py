"""Does each cell of a table carry the heading of its column?"""

from market.web.tables import label_cells

HEAD = '<thead><tr><th scope="col">Step</th><th scope="col" class="num">Paid &amp; due</th></tr>'


def test_label_cells__row__has_the_headings_in_order() -> None:
    rows = '<tbody><tr><th scope="row">1</th><td class="num"><b>2</b></td></tr></tbody>'

    labelled = label_cells(f"<p>x</p><table>{HEAD}</thead>{rows}</table>")

    assert '<th scope="row" data-label="Step">1</th>' in labelled
    assert '<td class="num" data-label="Paid &amp; due"><b>2</b></td>' in labelled


def test_label_cells__cell_over_all_columns__has_none() -> None:
    empty = f'<table>{HEAD}</thead><tbody><tr><td colspan="2">none</td></tr></tbody></table>'

    assert label_cells(empty) == empty


def test_label_cells__table_without_a_head_and_thead_alone__stay() -> None:
    plain = "<table><tbody><tr><td>1</td></tr></tbody></table><thead></thead><td>2</td>"

    assert label_cells(plain) == plain
