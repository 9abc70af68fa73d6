"""Does a poster see each line of what it pays, what happens as it happens, and how to steer it?"""

import asyncio

import httpx
import pytest

from tests.browser.conftest import Site
from tests.browser.driving import Browser
from tests.browser.showcase import Showcase, showcase
from tests.browser.test_pages import address
from tests.browser.test_values import api, row_values
from tests.integration.bad_input.servers import market_in_a_thread

SEEN_IN = 30.0  # seconds, on a busy machine


@pytest.fixture
def shown() -> Showcase:
    """A market that the test changes; its storage belongs to the loop of one server."""

    async def with_a_stake() -> Showcase:
        shown = await showcase()
        await shown.world.stake("ivy")
        return shown

    return asyncio.run(with_a_stake())


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_spend__each_line__is_that_of_the_api(
    browser: Browser, site: Site, scheme: str, width: int
) -> None:
    job, account = site.shown.running.spec.job().hex(), site.shown.paid.hex()
    browser.open(f"{address(site, 'job')}/spend", scheme=scheme, width=width)
    spend = api(site, f"/jobs/{job}/spend")
    lines = api(site, f"/accounts/{account}/earnings?job={job}")["lines"]

    names = ("earned", "waiting", "frozen", "forfeited", "vested", "debited", "claimed")
    assert row_values(browser, "1 of 1 accounts") == [
        [each[name] for name in names] for each in spend["accounts"]
    ]
    assert row_values(browser, "Lines 1 to 6 of 6") == [
        [each["amount"], *(part["amount"] for part in each["paid"])] for each in reversed(lines)
    ]
    transactions = {part["transaction"] for each in lines for part in each["paid"]}
    seen = browser.evaluate("[...document.querySelectorAll('.lines [title]')].map(e => e.title)")
    assert {each["seal"] for each in lines} | transactions <= set(seen)
    assert browser.axe() == [] and browser.logs() == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


def test_job__events__are_those_of_the_api_the_newest_first(browser: Browser, site: Site) -> None:
    browser.open(address(site, "job"), scripts=False)

    rows = browser.texts("#event-list tbody tr")
    assert len(rows) > 20 and "epoch 1 takes" in rows[0]
    assert "order" in rows[-1] and "12 steps" in rows[-1]


def test_job__checked__shows_what_was_found(browser: Browser, site: Site) -> None:
    browser.open(address(site, "checked job"))

    (audit,) = [row for row in browser.texts("#checking .events tr") if "repeated" in row]
    assert audit.endswith("match")


def test_job__that_runs__says_how_it_is_steered(browser: Browser, site: Site) -> None:
    browser.open(address(site, "job"))
    job = site.shown.running.spec.job().hex()

    commands = browser.texts("#actions-title ~ dl code")
    assert [each.split()[2] for each in commands] == ["pause", "resume", "cancel", "topup"]
    assert all(job in each and "--market http" in each for each in commands)


def test_market__offer_that_comes__is_shown_without_a_reload(
    browser: Browser, shown: Showcase
) -> None:
    offer = shown.world.sign_offer("ivy", 3 * 10**11).encoded().hex()
    with market_in_a_thread(shown.world) as url:
        browser.open(url)
        browser.wait("document.getElementById('live-state').innerText.includes('live')")
        browser.evaluate("window.same = true")
        before = len(browser.texts("#event-list tbody tr"))
        posted = httpx.post(f"{url}/v1/offers", json={"signed": offer}, trust_env=False)
        browser.wait(
            "document.querySelector('#event-list td:last-child').innerText.includes('300,000')",
            seconds=SEEN_IN,
        )
        after, logs = browser.evaluate("same"), browser.logs()
        browser.leave()

    assert posted.is_success, posted.text
    assert before > 0 and after is True and logs == []
