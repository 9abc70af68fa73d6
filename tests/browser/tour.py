"""Opens every page of a market in a browser: does each open without a fault, and say what is so?

A page is read between two readings of the API. While a job runs, what lasts is compared: it was
there before, so the page has it. Once it is over, the page has to have all of one of the readings.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from contracts.terms.ids import ZERO_DIGEST
from tests.browser.driving import Browser
from tests.support.patience import patience

SERIOUS = ("serious", "critical")
WISH = "name=again&steps=3&budget=50&ceiling=1000000&hours=2"
SETTLED = "!document.querySelector('main').innerText.includes('Computing')"
SEEN = """[...new Set([
  ...[...document.querySelectorAll("main data")].map((each) => each.value),
  ...[...document.querySelectorAll("main [title]")].map((each) => each.title),
  ...[...document.querySelectorAll("main :is(h1, th, td, dd, code)")]
    .map((each) => each.textContent.trim()),
])]"""
"""An expression: amounts in base units, digests in full, and what cells say."""
FRESH = """[...document.querySelectorAll("[data-gap]")].every((piece) =>
  performance.getEntriesByType("resource").some(
    (each) => each.name.endsWith(piece.getAttribute("hx-get"))))"""
"""An expression: every piece that is kept fresh was asked for again."""
LOADED = "performance.getEntriesByType('resource').map((each) => each.name)"
PROGRESS = """({
  step: Number(document.getElementById("said").textContent.match(/step (\\d+) of/)[1]),
  money: [...document.querySelectorAll("#progress tbody tr")]
    .filter((row) => row.querySelector("th + td data"))
    .map((row) => [row.cells[0].textContent.trim(), row.querySelector("data").value]),
  losses: [...document.querySelectorAll("#losses tbody tr")].map((row) =>
    [Number(row.cells[0].textContent.trim()), row.querySelector("data").value]),
})"""

MONEY = {
    "paid": "paid", "settled": "debited", "vested": "vested", "earned": "earned",
    "refunded": "", "left": "",
}  # fmt: skip
"""Parts of the escrow on the page, and what the API calls the sum up to each."""

Ask = Callable[[str], Any]


@dataclass(frozen=True)
class About:
    """What the pages are about, in hex."""

    job: str
    paid: str
    liar: str
    epoch: int
    worker: str  # a peer that worked in the first step


@dataclass(frozen=True)
class Page:
    """Where it is, and what of the API it has to show: what lasts, and all once it is over."""

    path: str
    values: Callable[[Ask, bool], set[str]]


def pages(about: About) -> tuple[Page, ...]:
    """Every page; `tests.browser.routes` tells of one that is missing."""
    job, epoch = f"/jobs/{about.job}", f"/epochs/{about.epoch}"
    proof = f"{epoch}/proofs/{about.paid}"
    return (
        Page("/", _market),
        Page(job, lambda ask, over: _job(ask(job), over)),
        Page(f"/find?q={about.job}", lambda ask, over: _job(ask(job), over)),
        Page(f"/providers/{about.paid}", _provider(about.paid)),
        Page(f"/providers/{about.liar}", _provider(about.liar)),
        Page(f"/audit/{about.job}", lambda ask, over: _audit(ask, job)),
        Page(f"{job}/spend", lambda ask, over: _spend(ask(f"{job}/spend"))),
        Page(f"/audit/{about.job}/steps/1", lambda ask, over: _step(ask(f"{job}/steps/1"))),
        Page(
            f"/audit/{about.job}/steps/1/work/{about.worker}",
            lambda ask, over: _work(ask(f"{job}/steps/1/work/{about.worker}")),
        ),
        Page("/epochs", lambda ask, over: _epochs(ask)),
        Page(epoch, lambda ask, over: _epoch(ask(epoch))),
        Page(f"{epoch}/proof?account={about.paid}", lambda ask, over: _proof(ask(proof))),
        Page(proof, lambda ask, over: _proof(ask(proof))),
        Page("/status", lambda ask, over: _status(ask("/network"))),
        Page("/post", lambda ask, over: {each["budget"] for each in ask("/jobs")["jobs"]}),
        Page(f"/post?like={about.job}", lambda ask, over: {about.job}),
        Page(f"/post/quote?like={about.job}&{WISH}", lambda ask, over: {str(50 * 10**6)}),
    )


class Tour:
    """One browser that looks at one market."""

    def __init__(self, browser: Browser, url: str) -> None:
        self._browser, self._url = browser, url
        self.addresses: set[str] = set()
        """Paths that the browser has asked the market for."""

    def ask(self, path: str) -> Any:
        """What programs are told."""
        answer = httpx.get(f"{self._url}/v1{path}", trust_env=False, timeout=patience(30))
        assert answer.status_code == 200, answer.text
        return answer.json()

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

    def open_all(self, about: About, *, over: bool) -> None:
        """All pages, with their values."""
        for page in pages(about):
            before = page.values(self.ask, over)
            self.open(page.path)
            seen = set(self._browser.evaluate(SEEN))
            after = page.values(self.ask, over) if over else before
            assert before <= seen or after <= seen, (page.path, before - seen)

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
        before = int(self._browser.evaluate(f"{PROGRESS}.step"))
        self._browser.wait(f"{PROGRESS}.step > {before}")
        assert self._browser.evaluate("window.same") is True, "the page was loaded again"
        assert self._browser.logs() == [], self._browser.logs()
        return before, int(self._browser.evaluate(f"{PROGRESS}.step"))

    def compare_progress(self, about: About) -> None:
        """Step, money and losses of the job's page are between two readings of the API."""
        path = f"/jobs/{about.job}"
        before = self.ask(path)
        self.open(path)
        seen = self._browser.evaluate(PROGRESS)
        after = self.ask(path)
        parts = dict(seen["money"])
        sums = list(itertools.accumulate(int(parts[part]) for part in MONEY))
        for name, value in zip(MONEY.values(), sums, strict=True):
            _between(name, before.get(name, value), value, after.get(name, value))
        assert sums[-1] == int(after["escrowed"]), (parts, after["escrowed"])
        _between("step", _trained(before), seen["step"], _trained(after))
        reports = [[each["step"], str(each["loss_millionths"])] for each in after["reports"]]
        shown = len(seen["losses"])
        _between("losses", len(before["reports"]), shown, len(reports))
        assert seen["losses"] == reports[:shown], (seen["losses"], reports)

    def prove(self, about: About) -> str:
        """The root to which the page itself has computed the path from the account's leaf."""
        self.open(f"/epochs/{about.epoch}/proofs/{about.paid}")
        self._browser.wait("document.getElementById('verdict').dataset.verdict === 'good'")
        return self._browser.texts("[data-computed]")[-1]

    def _loaded(self) -> list[str]:
        return [urlsplit(each).path for each in self._browser.evaluate(LOADED)]


def _trained(view: Any) -> int:
    """Steps on the page: what is sealed beyond the last one is settling."""
    return min(int(view["progress"]["step"]), int(view["progress"]["steps"]))


def _between(name: str, before: Any, seen: int, after: Any) -> None:
    assert int(before) <= seen <= int(after), (name, before, seen, after)


def _market(ask: Ask, over: bool) -> set[str]:
    jobs = ask("/jobs")["jobs"]
    lasting = {each[name] for each in jobs for name in ("job", "poster", "budget")}
    if not over:
        return lasting
    offers = [each for each in ask("/offers")["offers"] if each["state"] == "open"]
    return lasting | {each["paid"] for each in jobs} | {each["price"] for each in offers}


def _job(view: Any, over: bool) -> set[str]:
    lasting = {view["job"], view["spec"]["poster"], view["coordinator"]}
    lasting |= {str(each["loss_millionths"]) for each in view["reports"]}
    lasting |= set(view["transactions"].values())
    if not over:
        return lasting
    return lasting | {view[name] for name in ("escrowed", "paid", "refunded")}


def _provider(account: str) -> Callable[[Ask, bool], set[str]]:
    def values(ask: Ask, over: bool) -> set[str]:
        if not over:
            return {account}
        money = ask(f"/accounts/{account}")
        return {account} | {money[name] for name in ("earned", "vested", "claimable", "claimed")}

    return values


def _audit(ask: Ask, job: str) -> set[str]:
    steps = [each for each in ask(f"{job}/coins")["steps"] if each["coin"]]
    known = {each[name] for each in steps for name in ("root", "coin")} - {ZERO_DIGEST.hex()}
    return known | {each["subject"] for each in ask(f"{job}/convictions")["convictions"]}


def _spend(view: Any) -> set[str]:
    return {each["account"] for each in view["accounts"]}


def _step(view: Any) -> set[str]:
    step, lines = view["step"], view["lines"]
    hashes = {step[name] for name in ("seal", "messages_root", "pay_root")}
    return hashes | {each[name] for each in lines for name in ("account", "peer")}


def _work(view: Any) -> set[str]:
    sealed = {view["sealed"][name] for name in ("seal", "messages_root", "leaf")}
    return sealed | {view["commit"]["grad_commit"], view["account"]}


def _epochs(ask: Ask) -> set[str]:
    final = [each for each in ask("/epochs")["epochs"] if each["state"] == "final"]
    return {each[name] for each in final for name in ("root", "sum", "transaction")}


def _epoch(view: Any) -> set[str]:
    debits = {each[name] for each in view["debits"] for name in ("job", "amount", "seal")}
    names = ("account", "cumulative", "jobs_root")
    return debits | {each[name] for each in view["leaves"] for name in names} | {view["root"]}


def _proof(view: Any) -> set[str]:
    siblings = {each[name] for each in view["siblings"] for name in ("hash", "sum")}
    return siblings | {view[name] for name in ("account", "root", "jobs_root", "cumulative")}


def _status(view: Any) -> set[str]:
    values = {str(each) for each in view["parameters"].values()}
    return values | {str(view["chain_id"]), view["contracts"]["settlement"], view["anchorer"]}
