"""Does a page keep up with its job, by events and without them?

The events are the API's own. What the page does by the clock it does when the test says so: its
timer is kept in `ticks`, where a test is about what happens without it.
"""

import asyncio
import json
from dataclasses import replace

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from market.api.app import make_app
from market.service.rows import JobRow
from tests.browser.driving import Browser
from tests.browser.showcase import Showcase, report, showcase, signed_reports
from tests.integration.bad_input.servers import market_in_a_thread

SHOWN_IN = 30.0  # seconds, on a busy machine
NO_CLOCK = """
  window.ticks = [];
  const repeat = window.setInterval;
  window.setInterval = (act, millis) => millis === 2000 ? ticks.push(act) : repeat(act, millis);
"""
TICK = """(() => {
  let asked = 0;
  const [trigger, later] = [htmx.trigger, window.setTimeout];
  htmx.trigger = window.setTimeout = () => ++asked;
  ticks.forEach((act) => act());
  [htmx.trigger, window.setTimeout] = [trigger, later];
  return asked;
})()"""
"""An expression: how often the page wants to ask, now or later, when its timer fires."""
LISTEN = """
  window.heard = window.begun = 0;
  document.addEventListener("htmx:sseBeforeMessage", () => ++heard);
  document.addEventListener("htmx:beforeRequest", () => ++begun);
"""
ASKED = """performance.getEntriesByType("resource")
  .filter((each) => each.name.includes("/fragment/"))
  .map((each) => each.name.split("/").at(-1))"""
"""An expression: pieces that were asked for again."""
LIVE = "document.getElementById('live-state').innerText.includes('live')"


@pytest.fixture
def shown() -> Showcase:
    """A market that the test changes; its storage belongs to the loop of one server."""
    return asyncio.run(showcase())


def without_events(shown: Showcase) -> FastAPI:
    """The application, but that nobody can follow a job."""
    app = make_app(replace(shown.world.api(), faucet_grants=0))

    async def answer(request: Request) -> Response:
        return Response(status_code=503)

    app.router.routes.insert(0, Route("/v1/jobs/{name}/events", answer))
    return app


def job_url(url: str, shown: Showcase) -> str:
    """The page that is watched."""
    return f"{url}/jobs/{shown.running.spec.job().hex()}"


def loss(step: int) -> str:
    """What the page says after a report of `showcase.report`."""
    return f"loss {report(step).loss_millionths / 10**6:.4f}"


def tell(url: str, shown: Showcase, step: int) -> None:
    """The coordinator says something new."""
    body = signed_reports(shown.running, step)
    path = f"{url}/v1/jobs/{shown.running.spec.job().hex()}/reports"
    assert httpx.post(path, content=body.json_bytes(), trust_env=False).status_code == 200


def says(text: str) -> str:
    """An expression: the page's line of progress holds `text`."""
    return f"document.getElementById('said').innerText.includes({json.dumps(text)})"


def has_rows(number: int) -> str:
    """An expression: the table holds so many losses."""
    return f"document.querySelectorAll('#losses tbody tr').length === {number}"


def test_job_page__no_events__asks_every_two_seconds(browser: Browser, shown: Showcase) -> None:
    with market_in_a_thread(shown.world, without_events(shown)) as url:
        browser.open(job_url(url, shown))
        browser.wait("document.getElementById('live-state').innerText.includes('every 2 s')")
        tell(url, shown, 7)
        browser.wait(says(loss(7)), seconds=SHOWN_IN)
        browser.wait(has_rows(7), seconds=SHOWN_IN)
        told = ("console: ", f"status 503: {url}/v1/jobs/", f"failed: {url}/v1/jobs/")
        strange = [line for line in browser.logs() if not line.startswith(told)]
        browser.leave()

    assert strange == []


def test_job_page__events__is_refreshed_by_them_alone(browser: Browser, shown: Showcase) -> None:
    with market_in_a_thread(shown.world) as url:
        browser.open(job_url(url, shown), before=NO_CLOCK)
        browser.wait(LIVE)
        by_clock = browser.evaluate(TICK)

        tell(url, shown, 7)
        browser.wait(says(loss(7)), seconds=SHOWN_IN)
        browser.wait(
            f"document.getElementById('announcer').textContent.includes({json.dumps(loss(7))})",
            seconds=SHOWN_IN,
        )
        browser.wait(has_rows(7), seconds=SHOWN_IN)
        browser.wait(f"{ASKED}.includes('events')", seconds=SHOWN_IN)
        asked, logs = set(browser.evaluate(ASKED)), browser.logs()
        browser.leave()

    assert (by_clock, logs) == (0, [])
    assert asked == {"now", "progress", "events"}  # a report changes nothing about checks


async def be_over(shown: Showcase) -> None:
    """The job is closed."""
    async with shown.world.new_work() as work:
        row = await work[JobRow].get(shown.running.spec.job())
        assert row is not None
        await work[JobRow].put(replace(row, state="closed"))


@pytest.mark.nightly
def test_job_page__paused_goes_on_and_is_over__stays_as_it_is_then_follows_then_stops(
    browser: Browser, shown: Showcase
) -> None:
    hidden = "document.getElementById('live-bar').hidden"
    with market_in_a_thread(shown.world) as url:
        browser.open(job_url(url, shown), before=LISTEN)
        browser.wait(LIVE)
        browser.evaluate("document.getElementById('live-pause').click()")
        begun, heard = browser.evaluate("[begun, heard]")
        for step in (7, 8):
            tell(url, shown, step)
            browser.wait(f"heard > {heard}", seconds=SHOWN_IN)
            heard = browser.evaluate("heard")
        begun_paused, paused = browser.evaluate("begun") - begun, browser.texts("#said")

        browser.evaluate("document.getElementById('live-pause').click()")
        browser.wait(says(loss(8)), seconds=SHOWN_IN)
        before = browser.evaluate(hidden)
        asyncio.run(be_over(shown))
        tell(url, shown, 9)
        browser.wait(hidden, seconds=SHOWN_IN)
        follows, logs = browser.evaluate("!!document.querySelector('[data-live]')"), browser.logs()
        browser.leave()

    assert (before, follows, logs) == (False, False, [])
    assert begun_paused == 0 and loss(7) not in paused[0] and loss(8) not in paused[0]


@pytest.mark.nightly
def test_market__offer_that_comes__is_shown_without_a_reload(
    browser: Browser, shown: Showcase
) -> None:
    asyncio.run(shown.world.stake("ivy"))
    offer = shown.world.sign_offer("ivy", 3 * 10**11).encoded().hex()
    with market_in_a_thread(shown.world) as url:
        browser.open(url)
        browser.wait(LIVE)
        browser.evaluate("window.same = true")
        before = len(browser.texts("#event-list tbody tr"))
        posted = httpx.post(f"{url}/v1/offers", json={"signed": offer}, trust_env=False)
        browser.wait(
            "document.querySelector('#event-list td:last-child').innerText.includes('300,000')",
            seconds=SHOWN_IN,
        )
        after, logs = browser.evaluate("same"), browser.logs()
        browser.leave()

    assert posted.is_success, posted.text
    assert before > 0 and after is True and logs == []
