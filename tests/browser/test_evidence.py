"""Is a peer-step's evidence derived again in the page, and is what does not hold never verified?"""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from market.api.app import make_app
from market.web.assets import STATIC
from tests.architecture.checkout import ROOT
from tests.browser.driving import Browser
from tests.browser.evidence import Evidence, early_evidence, late_evidence
from tests.integration.bad_input.servers import market_in_a_thread

MODULE = "import('/static/evidence.js')"
TREES = "import('/static/merkle.js')"
DONE = "['good', 'bad'].includes(document.getElementById('verdict').dataset.verdict)"
Trace = dict[str, Any]


@pytest.fixture(scope="session")
def late() -> Iterator[tuple[str, Evidence]]:
    """A market whose checked job is over."""
    evidence = asyncio.run(late_evidence())
    with market_in_a_thread(evidence.world) as url:
        yield url, evidence


@pytest.fixture(scope="session")
def early() -> Iterator[tuple[str, Evidence]]:
    """A market whose checked job has just begun."""
    evidence = asyncio.run(early_evidence())
    with market_in_a_thread(evidence.world) as url:
        yield url, evidence


def verdict(browser: Browser, url: str) -> str:
    """What the page says of all its evidence."""
    browser.open(url)
    browser.wait(DONE)
    (said,) = browser.texts("#verdict")
    return said


def checks(browser: Browser) -> dict[str, str]:
    """What the page says of each part."""
    found: dict[str, str] = browser.evaluate(
        "Object.fromEntries([...document.querySelectorAll('[data-check]')]"
        ".map(e => [e.dataset.check, e.dataset.verdict]))"
    )
    return found


def test_work_page__paid_work__every_part_is_verified_in_the_page(
    browser: Browser, late: tuple[str, Evidence]
) -> None:
    url, evidence = late
    trace = evidence.one(state="claimed", outcome="matched")
    said = verdict(browser, url + evidence.path(trace))

    epoch = trace.epochs[0].part.epoch
    wanted = ["messages", "seal", "batch", "draw", "pay", "pay-seal", "pay-batch"]
    wanted += [f"jobs-{epoch}", f"epoch-{epoch}"]
    assert said.startswith("\u2713 Verified here: all 9 parts")
    assert checks(browser) == dict.fromkeys(wanted, "good")
    shown = "e => [...document.querySelectorAll(`[data-node^='${e}/']`)].at(-1).textContent"
    assert browser.evaluate(f"({shown})('messages')") == trace.sealed.messages_root.hex()
    assert browser.evaluate(f"({shown})('epoch-{epoch}')") == trace.epochs[0].part.root.hex()
    assert browser.logs() == []


@pytest.mark.parametrize(
    ("state", "outcome", "says"),
    [("forfeited", "mismatched", "convicted"), ("forfeited", None, "not drawn")],
)
def test_work_page__lie_and_what_was_not_drawn__say_so(
    browser: Browser, late: tuple[str, Evidence], state: str, outcome: str | None, says: str
) -> None:
    url, evidence = late
    said = verdict(browser, url + evidence.path(evidence.one(state=state, outcome=outcome)))

    assert said.startswith("\u2713 Verified here: all 4 parts")
    assert says in browser.texts("main")[0]
    assert "this work is not paid" in browser.texts("#pay")[0]


def test_work_page__work_without_a_coin__says_what_it_waits_for(
    browser: Browser, early: tuple[str, Evidence]
) -> None:
    url, evidence = early
    trace = evidence.one(drawn=None, state="waiting")
    said = verdict(browser, url + evidence.path(trace))

    assert said.startswith("\u2713 Verified here: all 3 parts")
    assert "Waits: the hash of the anchoring block" in browser.texts("#coin")[0]
    assert "Waits: " in browser.texts("main > .note")[0]
    assert "nobody is asked before the coin is known" in browser.texts("#verdict-of-others")[0]


def test_work_page__seal_in_no_batch_of_an_unchecked_job__says_both(
    browser: Browser, early: tuple[str, Evidence]
) -> None:
    url, evidence = early
    job, peer = evidence.unchecked.spec.job(), evidence.unchecked.members[0].session.peer
    said = verdict(browser, f"{url}/audit/{job.hex()}/steps/1/work/{peer.hex()}")

    assert said.startswith("\u2713 Verified here: all 2 parts")
    assert "Waits: no batch" in browser.texts("#batch")[0]
    assert "checking: off" in browser.texts("#draw")[0]


def _one_more(part: dict[str, Any], field: str) -> None:
    part[field] = str(int(part[field]) + 1)


def _other(part: dict[str, Any], field: str) -> None:
    part[field] = "22" * (len(part[field]) // 2)


def _flip(sibling: dict[str, Any]) -> None:
    sibling["left"] = not sibling["left"]


ALTERED: dict[str, tuple[str, Callable[[Trace], object]]] = {
    "GradCommit": ("messages", lambda t: _other(t["commit"], "grad_commit")),
    "leaf": ("messages", lambda t: _other(t["sealed"], "leaf")),
    "sibling": ("messages", lambda t: _other(t["sealed"]["siblings"][0], "hash")),
    "side": ("messages", lambda t: _flip(t["sealed"]["siblings"][0])),
    "short path": ("messages", lambda t: t["sealed"]["siblings"].pop()),
    "no side": ("messages", lambda t: t["sealed"]["siblings"][0].update(left=None)),
    "root of messages": ("messages", lambda t: _other(t["sealed"], "messages_root")),
    "seal": ("seal", lambda t: _other(t["sealed"], "seal")),
    "step of the seal": ("seal", lambda t: t["sealed"].update(step=t["sealed"]["step"] + 1)),
    "job": ("seal", lambda t: _other(t, "job")),
    "batch": ("batch", lambda t: _other(t["anchored"]["anchor"], "batch")),
    "coin": ("draw", lambda t: _other(t["audits"]["draw"]["coin"], "coin")),
    "number": ("draw", lambda t: _other(t["audits"]["draw"], "prf")),
    "drawn": ("draw", lambda t: t["audits"]["draw"].update(drawn=False)),
    "rate": ("draw", lambda t: t["audits"]["draw"].update(rate="0/1")),
    "peer": ("draw", lambda t: _other(t, "peer")),
    "pay": ("pay", lambda t: _one_more(t["pay"], "vested")),
    "pay of a sibling": ("pay", lambda t: _one_more(t["pay"]["siblings"][0], "earned")),
    "account": ("pay", lambda t: _other(t, "account")),
    "seal that vested": ("pay-seal", lambda t: _other(t["pay"], "seal")),
    "batch of pay": ("pay-batch", lambda t: _other(t["pay"]["anchored"]["anchor"], "batch")),
    "pay of the job": ("jobs-2", lambda t: _one_more(t["epochs"][0], "job_cumulative")),
    "pay of the account": ("epoch-2", lambda t: _one_more(t["epochs"][0], "cumulative")),
    "sum of the epoch": ("epoch-2", lambda t: _one_more(t["epochs"][0], "root_sum")),
    "sibling of an account": (
        "epoch-2",
        lambda t: _one_more(t["epochs"][0]["account_siblings"][0], "sum"),
    ),
    "root of the epoch": ("epoch-2", lambda t: _other(t["epochs"][0]["part"], "root")),
}


def paid_trace(browser: Browser, late: tuple[str, Evidence]) -> tuple[Trace, dict[str, Any]]:
    """The trace of paid work, and the seals on its way, as programs get them."""
    url, evidence = late
    trace = evidence.one(state="claimed", outcome="matched")
    browser.open(f"{url}/status")
    path = f"/v1/jobs/{trace.job.hex()}/steps"
    fetched = "(p => fetch(p).then(a => a.json()))"
    found: Trace = browser.evaluate(f"{fetched}('{path}/{trace.step}/work/{trace.peer.hex()}')")
    steps = browser.evaluate(f"{fetched}('{path}')")["steps"]
    return found, {str(each["step"]): each for each in steps}


def wrong(browser: Browser, trace: Trace, steps: dict[str, Any]) -> dict[str, list[str]]:
    """What the page's own module finds wrong with each part of a trace."""
    code = f"{MODULE}.then(m => m.checkTrace({json.dumps(trace)}, {json.dumps(steps)}))"
    return {each["name"]: each["wrong"] for each in browser.evaluate(code)}


@pytest.mark.parametrize("name", ALTERED)
def test_evidence__altered__is_found_out_in_its_part(
    browser: Browser, late: tuple[str, Evidence], name: str
) -> None:
    part, alter = ALTERED[name]
    trace, steps = paid_trace(browser, late)
    honest = wrong(browser, trace, steps)
    alter(trace)

    assert set(map(tuple, honest.values())) == {()}
    assert wrong(browser, trace, steps)[part]


@pytest.mark.parametrize("field", ["earned", "vested", "previous", "pay_root", "last"])
def test_evidence__altered_seal__has_another_hash(
    browser: Browser, late: tuple[str, Evidence], field: str
) -> None:
    trace, steps = paid_trace(browser, late)
    seal = steps[str(trace["sealed"]["step"])]
    match field:
        case "last":
            seal["last"] = not seal["last"]
        case "earned" | "vested":
            _one_more(seal, field)
        case _:
            _other(seal, field)

    assert wrong(browser, trace, steps)["seal"] == ["what the seal says has another hash"]


@pytest.mark.parametrize("name", ["trace.js", "evidence.js", "vendor/noble-hashes/blake3.js"])
def test_work_page__script_that_was_altered_on_the_way__is_not_run(
    browser: Browser, late: tuple[str, Evidence], name: str
) -> None:
    altered = (STATIC / name).read_bytes() + b"\n// and more"

    async def answer(request: Request) -> Response:
        return Response(altered, media_type="text/javascript")

    said = _served(browser, late[1], f"/static/{name}", answer)

    assert said.startswith("Not verified")
    assert any("integrity" in line for line in browser.logs())
    browser.leave()


def test_work_page__market_that_answers_with_another_trace__is_not_verified(
    browser: Browser, late: tuple[str, Evidence]
) -> None:
    """Each trace holds by itself, but the page is of other work."""
    _, evidence = late
    other = evidence.one(state="forfeited", outcome="mismatched")

    async def answer(request: Request) -> Response:
        return Response(other.json_bytes(), media_type="application/json")

    trace = evidence.one(state="claimed", outcome="matched")
    path = f"/v1/jobs/{trace.job.hex()}/steps/{trace.step}/work/{trace.peer.hex()}"
    said = _served(browser, evidence, path, answer)
    browser.leave()

    assert said.startswith("\u2716 Not verified") and "another GradCommit" in said


def _served(browser: Browser, evidence: Evidence, path: str, answer: Any) -> str:
    """The verdict of the paid work's page at a market where one path answers otherwise."""
    app = make_app(evidence.world.api())
    app.router.routes.insert(0, Route(path, answer))
    page = evidence.path(evidence.one(state="claimed", outcome="matched"))
    with market_in_a_thread(evidence.world, app) as url:
        browser.open(url + page)
        browser.evaluate("new Promise(done => setTimeout(() => done(true), 500))")
        (said,) = browser.texts("#verdict")
        if path.startswith("/v1"):
            browser.wait(DONE)
            (said,) = browser.texts("#verdict")
    return said


def test_merkle_module__shared_vectors_of_pay_and_batches__makes_the_same_roots(
    browser: Browser, late: tuple[str, Evidence]
) -> None:
    """Python and Solidity pass the same file."""
    vectors = json.loads((ROOT / "contracts" / "vectors.json").read_text())
    browser.open(f"{late[0]}/status")

    pay = browser.evaluate(
        f"{TREES}.then(m => {json.dumps(vectors['payTrees'])}.map(tree => {{"
        "  const empty = {hash: new Uint8Array(32), earned: 0n, vested: 0n};"
        "  const leaf = (account, i) =>"
        "    m.payLeaf(account, BigInt(tree.earned[i]), BigInt(tree.vested[i]));"
        "  const node = m.root(tree.accounts.map(leaf), m.payNode, empty);"
        "  return ['0x' + m.toHex(node.hash), String(node.earned), String(node.vested)]; }))"
    )
    batches = browser.evaluate(
        f"{TREES}.then(m => {json.dumps(vectors['batches'])}.map(tree => '0x' + m.toHex(m.root("
        "  tree.jobs.map((job, i) => m.batchLeaf(job, Number(tree.steps[i]), tree.seals[i])),"
        "  m.plainNode, {hash: new Uint8Array(32)}).hash)))"
    )

    assert pay == [[t["root"], t["earnedSum"], t["vestedSum"]] for t in vectors["payTrees"]]
    assert batches == [tree["root"] for tree in vectors["batches"]]


def test_seal_hash__shared_vectors__is_the_struct_hash(
    browser: Browser, late: tuple[str, Evidence]
) -> None:
    vectors = json.loads((ROOT / "contracts" / "vectors.json").read_text())
    seals = [each for each in vectors["messages"] if each["name"] == "Seal"]
    words = [[e["encoded"][2 + i * 64 :][:64] for i in range(9)] for e in seals]
    views = [
        {
            "step": int(w[1], 16), "previous": w[2], "messages_root": w[3],
            "gradient_norm": str(int(w[4], 16)), "pay_root": w[5], "earned": str(int(w[6], 16)),
            "vested": str(int(w[7], 16)), "last": bool(int(w[8], 16)),
        }
        for w in words
        if int(w[1], 16) < 2**53  # beyond it JSON has no exact numbers, and no job that many steps
    ]  # fmt: skip
    browser.open(f"{late[0]}/status")

    made = browser.evaluate(
        f"{MODULE}.then(async m => {{ const {{toHex}} = await {TREES};"
        f"  return {json.dumps(views)}.map(v => '0x' + toHex(m.sealHash('{words[0][0]}', v))); }})"
    )

    assert made == [each["structHash"] for each in seals[: len(views)]] and made


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
@pytest.mark.parametrize("name", ["job", "search", "step", "empty step", "paid", "lie", "undrawn"])
def test_page__light_and_wide_or_dark_and_narrow__opens_without_a_fault(
    browser: Browser, late: tuple[str, Evidence], name: str, scheme: str, width: int
) -> None:
    url, evidence = late
    opened = browser.open(url + _paths(evidence)[name], scheme=scheme, width=width)
    browser.wait(f"!document.getElementById('trace') || {DONE}")

    assert opened["status"] in (200, 304)  # a page that did not change is not sent again
    assert (browser.logs(), browser.axe()) == ([], [])
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.querySelectorAll('h1').length") == 1


def test_work_page__without_scripts__says_that_nothing_was_checked(
    browser: Browser, late: tuple[str, Evidence]
) -> None:
    url, evidence = late
    browser.open(url + _paths(evidence)["paid"], scripts=False)

    said = browser.texts("#verdict")[0]
    assert said.startswith("Not verified by this browser.") and "tallystick audit verify" in said
    notes = browser.texts("[data-check]")
    assert notes and all(each.startswith("Not checked by this browser") for each in notes)


def test_steps__peer_and_verdict__lead_to_that_work_by_keyboard(
    browser: Browser, late: tuple[str, Evidence]
) -> None:
    url, evidence = late
    lie = evidence.one(outcome="mismatched")
    browser.open(f"{url}/audit/{evidence.job.hex()}")
    browser.evaluate("document.getElementById('peer').focus()")
    browser.type(lie.peer.hex())
    browser.press("Tab")
    browser.type("mism")
    browser.press("Tab", "Enter")
    browser.arrive("location.search.includes('mismatched')")

    rows = browser.evaluate(
        "[...document.querySelectorAll('#seals ~ .scroll tbody tr')].map(r => "
        "[Number(r.cells[0].innerText), r.cells[1].querySelector('a').getAttribute('href')])"
    )
    wanted = [
        [each.step, evidence.path(each)]
        for each in evidence.traces
        if each.audits and each.audits.outcome == "mismatched"
    ]
    assert rows == wanted != []


def _paths(evidence: Evidence) -> dict[str, str]:
    job = f"/audit/{evidence.job.hex()}"
    return {
        "job": job,
        "search": f"{job}?verdict=matched",
        "step": f"{job}/steps/1",
        "empty step": f"{job}/steps/5",
        "paid": evidence.path(evidence.one(state="claimed", outcome="matched")),
        "lie": evidence.path(evidence.one(outcome="mismatched")),
        "undrawn": evidence.path(evidence.one(drawn=False)),
    }
