"""From a template and values to an answer. Everything is escaped; a name that is missing fails.

Texts that others chose stand on most pages: none runs, none turns the direction of what follows.
"""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from contracts.terms.printable import printable
from market.web import assets, words
from market.web.tables import label_cells


@cache
def environment() -> Environment:
    """All templates."""
    made = Environment(
        loader=PackageLoader("market.web"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "chance": words.chance,
        "flops": words.flops,
        "iso": words.iso,
        "mark": words.mark,
        "millionths": words.millionths,
        "odds": words.odds,
        "relative": words.relative,
        "short": words.short,
        "size": words.size,
        "span": words.span,
        "tokens": words.tokens,
        "utc": words.utc,
        "words": words.words,
    }
    made.globals |= {
        "early_script": assets.early_script,
        "percent": words.percent,
        "preload": assets.preload,
        "script": assets.script,
        "stylesheet": assets.stylesheet,
    }
    return made


def _shown(value: Any) -> Any:
    """A text without what would steer its reader's eye; what is HTML already is ours."""
    return printable(value) if type(value) is str else value


def page(template: str, status: int = 200, **values: Any) -> Response:
    """A template as the answer."""
    html = environment().get_template(template).render(values)
    return HTMLResponse(label_cells(html), status)
