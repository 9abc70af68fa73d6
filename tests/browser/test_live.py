"""Does a page keep up with its job, by events and without them?"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import StreamingResponse

from market.api.app import make_app
from tests.browser.driving import Browser
from tests.browser.showcase import Showcase, report, showcase, signed_reports
from tests.integration.bad_input.servers import market_in_a_thread

SHOWN_IN = 30.0  # seconds, on a busy machine


class Bell:
    """A stream of events that a test rings; nothing in it says what changed."""

    def __init__(self, shown: Showcase) -> None:
        self._rung = threading.Event()
        self.app: FastAPI = make_app(replace(shown.world.api(), faucet_grants=0))
        self.app.add_api_route("/v1/jobs/{name}/events", self._events)

    def ring(self) -> None:
        """One event for everybody."""
        self._rung.set()

    async def _events(self, name: str) -> StreamingResponse:
        return StreamingResponse(self._told(), media_type="text/event-stream")

    async def _told(self) -> AsyncIterator[str]:
        yield ": hello\n\n"
        while True:
            await asyncio.sleep(0.02)
            if self._rung.is_set():
                self._rung.clear()
                yield "event: step\ndata: {}\n\n"


@pytest.fixture
def shown() -> Showcase:
    """A market that the test changes; its storage belongs to the loop of one server."""
    return asyncio.run(showcase())


def job_url(url: str, shown: Showcase) -> str:
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


def asked(browser: Browser) -> int:
    """How often the page has asked for its progress."""
    return int(
        browser.evaluate(
            "performance.getEntriesByType('resource')"
            ".filter(e => e.name.endsWith('/fragment/progress')).length"
        )
    )


def test_job_page__no_events__asks_every_two_seconds(browser: Browser, shown: Showcase) -> None:
    with market_in_a_thread(shown.world) as url:
        browser.open(job_url(url, shown))
        browser.wait("document.getElementById('live-state').innerText.includes('every 2 s')")
        tell(url, shown, 7)
        browser.wait(says(loss(7)), seconds=SHOWN_IN)
        rows = browser.evaluate("document.querySelectorAll('#losses tbody tr').length")
        logs = browser.logs()
        browser.leave()

    assert (rows, logs) == (7, [])


def test_job_page__events__is_refreshed_by_them_alone(browser: Browser, shown: Showcase) -> None:
    bell = Bell(shown)
    with market_in_a_thread(shown.world, bell.app) as url:
        browser.open(job_url(url, shown))
        browser.wait("document.getElementById('live-state').innerText.includes('live')")
        before = asked(browser)
        browser.evaluate("new Promise(done => setTimeout(() => done(true), 2500))")
        unasked = asked(browser) - before

        tell(url, shown, 7)
        bell.ring()
        browser.wait(says(loss(7)), seconds=SHOWN_IN)
        rows = browser.evaluate("document.querySelectorAll('#losses tbody tr').length")
        said = browser.texts("#announcer")
        logs = browser.logs()
        browser.leave()

    assert (unasked, rows, logs) == (0, 7, [])
    assert loss(7) in said[0]


def test_job_page__paused__stays_as_it_is_until_it_goes_on(
    browser: Browser, shown: Showcase
) -> None:
    bell = Bell(shown)
    with market_in_a_thread(shown.world, bell.app) as url:
        browser.open(job_url(url, shown))
        browser.wait("document.getElementById('live-state').innerText.includes('live')")
        browser.evaluate("document.getElementById('live-pause').click()")
        tell(url, shown, 7)
        bell.ring()
        browser.evaluate("new Promise(done => setTimeout(() => done(true), 1000))")
        paused = browser.texts("#said")

        browser.evaluate("document.getElementById('live-pause').click()")
        browser.wait(says(loss(7)), seconds=SHOWN_IN)
        browser.leave()

    assert loss(7) not in paused[0]
