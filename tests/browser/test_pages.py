"""Does every page open in a real browser, for everybody, with and without scripts?"""

import pytest

from tests.browser.conftest import Site
from tests.browser.driving import Browser
from tests.browser.routes import unopened
from tests.browser.showcase import HOSTILE
from tests.browser.tour import SETTLED, WISH

PAGES = {
    "market": "/",
    "job": "/jobs/{running}",
    "checked job": "/jobs/{checked}",
    "job with a convict": "/jobs/{convicted}",
    "job that waits": "/jobs/{waiting}",
    "spend": "/jobs/{running}/spend",
    "provider": "/providers/{paid}",
    "convict": "/providers/{convict}",
    "audit": "/audit/{running}",
    "audit of a convict": "/audit/{convicted}",
    "audit of a step": "/audit/{running}/steps/1",
    "status": "/status",
    "choice of a job": "/post",
    "order": "/post?like={running}",
    "quote": f"/post/quote?like={{running}}&{WISH}",
    "quote of the impossible": f"/post/quote?like={{waiting}}&{WISH}",
}
FAILURES = {"/nothing": 404, "/jobs/12": 400}
ELSEWHERE = (
    # Pieces of pages: `test_live.py`.
    "/fragment/market", "/jobs/1/fragment/progress", "/jobs/1/fragment/checking",
    "/jobs/1/fragment/now", "/jobs/1/fragment/events",
    # A form that leads to a page: `test_keyboard.py`.
    "/find",
    # `test_evidence.py`.
    "/audit/1/steps/1/work/1",
)  # fmt: skip
OPENED = (200, 304)
"""A browser that has been here asks whether what it has is still so."""

STYLES = (("light", 1280), ("dark", 360))
STYLED = [
    pytest.param(name, *STYLES[(number + turn) % 2], marks=pytest.mark.nightly if turn else ())
    for turn in (0, 1)
    for number, name in enumerate(PAGES)
]
"""Each page in one of the styles; at night in the other one, too."""
READ_IN_THE_GATE = ("market", "job")

CUT_OFF = """[...document.querySelectorAll("main .scroll, main .columns > *")]
  .filter((each) => each.scrollWidth > each.clientWidth + 1)
  .map((each) => `${each.ariaLabel}: ${each.scrollWidth} of ${each.clientWidth}`)"""
"""An expression: boxes of which a part is out of sight to the right."""


def address(site: Site, name: str) -> str:
    """Where a page is."""
    shown = site.shown
    names = {
        "running": shown.running.spec.job(),
        "checked": shown.checked,
        "convicted": shown.convicted,
        "waiting": shown.waiting,
        "paid": shown.paid,
        "convict": shown.convict,
    }
    hexes = {each: value.hex() for each, value in names.items()}
    return site.url + PAGES[name].format(**hexes)


def test_pages__routes_of_the_application__are_all_opened_here() -> None:
    assert unopened((*PAGES.values(), *ELSEWHERE)) == []


@pytest.mark.parametrize(("name", "scheme", "width"), STYLED)
def test_page__light_and_wide_or_dark_and_narrow__opens_without_a_fault(
    browser: Browser, site: Site, name: str, scheme: str, width: int
) -> None:
    browser.open_well(address(site, name), SETTLED, scheme=scheme, width=width)

    assert browser.evaluate(CUT_OFF) == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in READ_IN_THE_GATE else pytest.mark.nightly)
        for name in PAGES
    ],
)
def test_page__scripts_are_off__shows_the_same_tables(
    browser: Browser, site: Site, name: str
) -> None:
    browser.open(address(site, name))
    browser.wait(SETTLED)
    with_scripts = browser.values("main data")
    captions = browser.texts("main caption")

    opened = browser.open(address(site, name), scripts=False)

    faults = [line for line in browser.logs() if not line.endswith(".js csp")]  # they are off
    assert opened["status"] in OPENED
    assert faults == []
    assert browser.values("main data") == with_scripts
    assert browser.texts("main caption") == captions
    assert browser.evaluate("getComputedStyle(document.getElementById('theme')).display") == "none"


@pytest.mark.parametrize(("path", "status"), FAILURES.items())
def test_page__failure__is_a_page_with_the_code(
    browser: Browser, site: Site, path: str, status: int
) -> None:
    opened = browser.open(site.url + path)

    document = [line for line in browser.logs() if path in line]
    assert (opened["status"], len(document)) == (status, 1)
    assert browser.texts("#code") == [{404: "not_found", 400: "malformed"}[status]]
    assert browser.axe() == []


def test_page__name_that_is_a_program__is_shown_and_not_run(browser: Browser, site: Site) -> None:
    browser.open(address(site, "job with a convict"))

    assert browser.texts("h1") == [HOSTILE]
    assert browser.evaluate("document.querySelectorAll('main script, h1 b').length") == 0


@pytest.mark.nightly
def test_page__dark_scheme_or_toggle__changes_what_is_seen(browser: Browser, site: Site) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    browser.open(site.url, scheme="dark")
    dark = browser.evaluate(paper)
    browser.open(site.url)
    light = browser.evaluate(paper)

    browser.evaluate("document.getElementById('theme').click()")  # light
    browser.evaluate("document.getElementById('theme').click()")  # dark
    browser.open(f"{site.url}/status")
    remembered = browser.evaluate(paper)
    browser.evaluate("localStorage.clear()")

    assert light != dark == remembered
