"""Opens every page of a market in a browser: does each open without a fault, and does a job grow?

What pages say is compared with the API in `test_values.py`.
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.browser.driving import Browser, ask_api

SERIOUS = ("serious", "critical")
WISH = "name=again&steps=3&budget=50&ceiling=1000000&hours=2"
SETTLED = "!document.querySelector('main').innerText.includes('Computing')"
FRESH = """[...document.querySelectorAll("[data-gap]")].every((piece) =>
  performance.getEntriesByType("resource").some(
    (each) => each.name.endsWith(piece.getAttribute("hx-get"))))"""
"""An expression: every piece that is kept fresh was asked for again."""
LOADED = "performance.getEntriesByType('resource').map((each) => each.name)"
STEP = "Number(document.getElementById('said').textContent.match(/step (\\d+) of/)[1])"


@dataclass(frozen=True)
class About:
    """What the pages are about, in hex."""

    job: str
    paid: str
    liar: str
    worker: str  # a peer that worked in the first step


def paths(about: About) -> tuple[str, ...]:
    """Every page; `tests.browser.routes` tells of one that is missing."""
    job, audit = f"/jobs/{about.job}", f"/audit/{about.job}"
    return (
        "/", job, f"/find?q={about.job}", f"{job}/spend",
        f"/providers/{about.paid}", f"/providers/{about.liar}",
        audit, f"{audit}/steps/1", f"{audit}/steps/1/work/{about.worker}",
        "/status", "/post", f"/post?like={about.job}", f"/post/quote?like={about.job}&{WISH}",
    )  # fmt: skip


class Tour:
    """One browser that looks at one market."""

    def __init__(self, browser: Browser, url: str) -> None:
        self._browser, self._url = browser, url
        self.addresses: set[str] = set()
        """Paths that the browser has asked the market for."""

    def ask(self, path: str) -> Any:
        """What programs are told."""
        return ask_api(self._url, path)

    def open(self, path: str) -> None:
        """A page that opens, and in which nothing fails."""
        browser = self._browser
        opened = browser.open(self._url + path)
        browser.wait(SETTLED)
        self.addresses |= {path, *self._loaded()}
        logs = browser.logs()
        # 304: the browser has it already, by another way to the same page
        assert opened["status"] in (200, 304) and logs == [], (path, opened, logs)
        faults = [each for each in browser.axe() if each["impact"] in SERIOUS]
        assert faults == [], (path, faults)

    def open_all(self, about: About) -> None:
        """All pages."""
        for path in paths(about):
            self.open(path)

    def stay_fresh(self, about: About) -> None:
        """Pages that are kept fresh ask for all their pieces again, without a fault."""
        for path in ("/", f"/jobs/{about.job}"):
            self.open(path)
            self._browser.wait(FRESH)
            self.addresses |= set(self._loaded())
            assert self._browser.logs() == [], (path, self._browser.logs())

    def see_it_grow(self, about: About) -> tuple[int, int]:
        """The step that the job's page shows, and a later one that it shows without a reload."""
        self.open(f"/jobs/{about.job}")
        self._browser.wait("document.getElementById('live-state').innerText.includes('live')")
        self._browser.evaluate("window.same = true")
        before = int(self._browser.evaluate(STEP))
        self._browser.wait(f"{STEP} > {before}")
        assert self._browser.evaluate("window.same") is True, "the page was loaded again"
        assert self._browser.logs() == [], self._browser.logs()
        return before, int(self._browser.evaluate(STEP))

    def prove(self, about: About) -> str:
        """The root of the batch to which the page itself has computed the path from a seal."""
        self.open(f"/audit/{about.job}/steps/1/work/{about.worker}")
        self._browser.wait("document.getElementById('verdict').dataset.verdict === 'good'")
        nodes = "[...document.querySelectorAll(\"[data-node^='batch/']\")]"  # folded up, maybe
        return str(self._browser.evaluate(f"{nodes}.at(-1).textContent"))

    def _loaded(self) -> list[str]:
        return [urlsplit(each).path for each in self._browser.evaluate(LOADED)]
