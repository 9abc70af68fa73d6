"""Can everything be reached and done with the keyboard alone?"""

import json

import pytest

from tests.browser.conftest import Site
from tests.browser.driving import Browser

FOCUS = "document.activeElement.innerText || document.activeElement.id"
MAX_TABS = 120


def tab_to(browser: Browser, words: str) -> None:
    """Press Tab until the focus is on what says `words`."""
    tab_until(browser, f"({FOCUS}) === {json.dumps(words)}")


def tab_until(browser: Browser, holds: str) -> None:
    """Press Tab until an expression is true of `document.activeElement`, which has to be seen."""
    for _ in range(MAX_TABS):
        browser.press("Tab")
        if browser.evaluate(holds):
            outline = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid", f"the focus is not seen: {holds}"
            return
    raise AssertionError(f"Tab never comes to {holds}")


@pytest.mark.nightly
def test_keyboard__first_tab__skips_to_the_content(browser: Browser, site: Site) -> None:
    browser.open(site.url)
    browser.press("Tab")
    first = browser.evaluate(FOCUS)
    browser.press("Enter")

    assert first == "Skip to content"
    assert browser.evaluate("document.activeElement.id") == "content"


def test_keyboard__from_the_market_to_the_evidence__is_a_path(browser: Browser, site: Site) -> None:
    browser.open(site.url)
    for words, arrived in (
        ("a running job", "location.pathname.startsWith('/jobs/')"),
        ("audit it", "location.pathname.startsWith('/audit/')"),
        ("1", "location.pathname.endsWith('/steps/1')"),
    ):
        tab_to(browser, words)
        browser.press("Enter")
        browser.arrive(arrived)
    tab_until(browser, f"({FOCUS}).startsWith('work of ')")
    browser.press("Enter")
    browser.wait("document.getElementById('verdict')?.dataset.verdict === 'good'")

    job, worker = site.shown.running.spec.job(), site.shown.running.members[0].session.peer
    assert browser.url().endswith(f"/audit/{job.hex()}/steps/1/work/{worker.hex()}")


@pytest.mark.nightly
def test_keyboard__targets__are_at_least_24_pixels_high(browser: Browser, site: Site) -> None:
    browser.open(site.url)

    small = browser.evaluate(
        "[...document.querySelectorAll('button, input, nav a')]"
        ".filter(e => e.offsetHeight && e.offsetHeight < 24).map(e => e.outerHTML)"
    )
    assert small == []
