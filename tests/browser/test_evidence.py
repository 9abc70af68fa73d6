"""Is a peer-step's evidence derived again in the page, and is what does not hold never verified?"""

import asyncio
import copy
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
from tests.support.history import JobMaker

MODULE = "import('/static/evidence.js')"
MERKLE = "import('/static/merkle.js')"
DONE = "['good', 'bad'].includes(document.getElementById('verdict').dataset.verdict)"
Trace = dict[str, Any]


LEAVES = {
    "payTrees": "m.payLeaf(tree.accounts[i], BigInt(tree.earned[i]), BigInt(tree.vested[i]))",
    "batches": "m.batchLeaf(tree.jobs[i], Number(tree.steps[i]), tree.seals[i])",
}
"""A leaf of each tree of the vectors."""


def one_more(part: dict[str, Any], field: str) -> None:
    """Alter an amount."""
    part[field] = str(int(part[field]) + 1)


def other(part: dict[str, Any], field: str) -> None:
    """Put another name in the place of one."""
    part[field] = "22" * (len(part[field]) // 2)


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

    wanted = ["messages", "seal", "batch", "draw", "pay", "pay-seal", "pay-batch"]
    assert trace.pay is not None and said.startswith("\u2713 Verified here: all 7 parts")
    assert checks(browser) == dict.fromkeys(wanted, "good")
    shown = "e => [...document.querySelectorAll(`[data-node^='${e}/']`)].at(-1).textContent"
    assert browser.evaluate(f"({shown})('messages')") == trace.sealed.messages_root.hex()
    assert browser.evaluate(f"({shown})('pay')") == trace.pay.pay_root.hex()
    titles = "[...document.querySelectorAll('#claim [title]')].map(e => e.title)"
    assert trace.claims[0].transaction.hex() in browser.evaluate(titles)
    assert browser.logs() == []


def test_work_page__lie_and_what_was_not_drawn__say_so(
    browser: Browser, late: tuple[str, Evidence]
) -> None:
    url, evidence = late
    for outcome, says in (("mismatched", "convicted"), (None, "not drawn")):
        trace = evidence.one(state="forfeited", outcome=outcome)
        said = verdict(browser, url + evidence.path(trace))

        assert said.startswith("\u2713 Verified here: all 4 parts")
        assert says in browser.texts("main")[0]
        assert "this work is not paid" in browser.texts("#pay")[0]


@pytest.mark.nightly
def test_work_page__no_beacon_or_no_batch_yet__says_what_it_waits_for(
    browser: Browser, early: tuple[str, Evidence]
) -> None:
    url, evidence = early
    said = verdict(browser, url + evidence.path(evidence.one(drawn=None, state="waiting")))
    assert said.startswith("\u2713 Verified here: all 3 parts")
    assert "Waits: the hash of the anchoring block" in browser.texts("#beacon")[0]
    assert "Waits: " in browser.texts("main > .note")[0]
    assert "nobody is asked before the beacon is known" in browser.texts("#verdict-of-others")[0]

    job, peer = evidence.unchecked.spec.job(), evidence.unchecked.members[0].session.peer
    said = verdict(browser, f"{url}/audit/{job.hex()}/steps/1/work/{peer.hex()}")
    assert said.startswith("\u2713 Verified here: all 2 parts")
    assert "Waits: no batch" in browser.texts("#batch")[0]
    assert "checking: off" in browser.texts("#draw")[0]


def _flip(sibling: dict[str, Any]) -> None:
    sibling["left"] = not sibling["left"]


ALTERED: dict[str, tuple[str, Callable[[Trace], object]]] = {
    "WorkClaim": ("messages", lambda t: other(t["work_claim"], "claim")),
    "leaf": ("messages", lambda t: other(t["sealed"], "leaf")),
    "sibling": ("messages", lambda t: other(t["sealed"]["siblings"][0], "hash")),
    "side": ("messages", lambda t: _flip(t["sealed"]["siblings"][0])),
    "short path": ("messages", lambda t: t["sealed"]["siblings"].pop()),
    "no side": ("messages", lambda t: t["sealed"]["siblings"][0].update(left=None)),
    "root of messages": ("messages", lambda t: other(t["sealed"], "messages_root")),
    "seal": ("seal", lambda t: other(t["sealed"], "seal")),
    "step of the seal": ("seal", lambda t: t["sealed"].update(step=t["sealed"]["step"] + 1)),
    "job": ("seal", lambda t: other(t, "job")),
    "batch": ("batch", lambda t: other(t["anchored"]["anchor"], "batch")),
    "beacon": ("draw", lambda t: other(t["audits"]["draw"]["beacon"], "beacon")),
    "number": ("draw", lambda t: other(t["audits"]["draw"], "prf")),
    "drawn": ("draw", lambda t: t["audits"]["draw"].update(drawn=False)),
    "rate": ("draw", lambda t: t["audits"]["draw"].update(rate="0/1")),
    "peer": ("draw", lambda t: other(t, "peer")),
    "number of the claim": ("draw", lambda t: t.update(seq=1)),
    "pay": ("pay", lambda t: one_more(t["pay"], "vested")),
    "sibling of the pay": ("pay", lambda t: other(t["pay"]["siblings"][0], "hash")),
    "leaf of the pay": ("pay", lambda t: other(t["pay"], "leaf")),
    "account": ("pay", lambda t: other(t, "account")),
    "seal that vested": ("pay-seal", lambda t: other(t["pay"], "seal")),
    "batch of pay": ("pay-batch", lambda t: other(t["pay"]["anchored"]["anchor"], "batch")),
}


ALTERED_SEAL: dict[str, Callable[[dict[str, Any], str], None]] = {
    "earned": one_more,
    "vested": one_more,
    "previous": other,
    "pay_root": other,
    "next": lambda seal, field: seal.update({field: seal[field] + 1}),
    "unsealed": lambda seal, field: seal[field].append([0, 1]),
    "updates": lambda seal, field: seal.update({field: seal[field] + 1}),
    "last": lambda seal, field: seal.update({field: not seal[field]}),
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


def test_evidence__altered__is_found_out_in_its_part(
    browser: Browser, late: tuple[str, Evidence]
) -> None:
    honest, steps = paid_trace(browser, late)
    found = {}
    for name, (part, alter) in ALTERED.items():
        trace = copy.deepcopy(honest)
        alter(trace)
        found[name] = wrong(browser, trace, steps)[part]

    assert set(map(tuple, wrong(browser, honest, steps).values())) == {()}
    assert [name for name, faults in found.items() if not faults] == []


def test_evidence__altered_seal__has_another_hash(
    browser: Browser, late: tuple[str, Evidence]
) -> None:
    trace, honest = paid_trace(browser, late)
    found = {}
    for field, alter in ALTERED_SEAL.items():
        steps = copy.deepcopy(honest)
        alter(steps[str(trace["sealed"]["step"])], field)
        found[field] = wrong(browser, trace, steps)["seal"]

    assert found == {field: ["what the seal says has another hash"] for field in ALTERED_SEAL}


def test_merkle_module__shared_vectors__makes_the_same_roots(
    browser: Browser, late: tuple[str, Evidence]
) -> None:
    """Python and Solidity pass the same file."""
    vectors = json.loads((ROOT / "contracts" / "vectors.json").read_text())
    browser.open(f"{late[0]}/status")

    for name, leaf in LEAVES.items():
        made = browser.evaluate(
            f"{MERKLE}.then(m => {json.dumps(vectors[name])}.map(tree => "
            f"'0x' + m.toHex(m.root((tree.accounts ?? tree.jobs).map((_, i) => {leaf})))))"
        )
        assert made == [tree["root"] for tree in vectors[name]] != [], name


def test_draw_name__numbers_of_every_width__has_the_bytes_of_python(
    browser: Browser, late: tuple[str, Evidence]
) -> None:
    maker = JobMaker()
    made_up, _ = maker.claim(maker.members[0])
    browser.open(f"{late[0]}/status")
    for round_number, seq, group in ((1, 0, 0), (128, 15, 63), (65_535, 1, 2), (9_999_999, 2, 1)):
        code = f"e.toHex(m.drawName('{made_up.peer.hex()}', {round_number}, {seq}, {group}))"
        made = browser.evaluate(f"{MODULE}.then(m => {MERKLE}.then(e => {code}))")

        claim = made_up.model_copy(update={"round": round_number, "seq": seq, "group": group})
        assert made == claim.draw_name().hex()


def test_work_page__script_that_was_altered_on_the_way__is_not_run(
    browser: Browser, late: tuple[str, Evidence]
) -> None:
    for name in ("trace.js", "vendor/noble-hashes/blake3.js"):
        altered = (STATIC / name).read_bytes() + b"\n// and more"

        async def answer(request: Request, altered: bytes = altered) -> Response:
            return Response(altered, media_type="text/javascript")

        def refused() -> None:
            browser.wait_log("integrity")

        said = _served(browser, late[1], f"/static/{name}", answer, refused)

        assert said.startswith("Not verified")


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
    said = _served(browser, evidence, path, answer, lambda: browser.wait(DONE))

    assert said.startswith("\u2716 Not verified") and "another WorkClaim" in said


def _served(
    browser: Browser, evidence: Evidence, path: str, answer: Any, seen: Callable[[], None]
) -> str:
    """The verdict of the paid work's page, once `seen`, where one path answers otherwise."""
    app = make_app(evidence.world.api())
    app.router.routes.insert(0, Route(path, answer))
    page = evidence.path(evidence.one(state="claimed", outcome="matched"))
    with market_in_a_thread(evidence.world, app) as url:
        browser.open(url + page)
        seen()
        (said,) = browser.texts("#verdict")
        browser.leave()
    return said


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [
        ("step", "dark", 360),
        ("paid", "light", 1280),
        pytest.param("paid", "dark", 360, marks=pytest.mark.nightly),
        pytest.param("job", "light", 1280, marks=pytest.mark.nightly),
        pytest.param("search", "dark", 360, marks=pytest.mark.nightly),
        pytest.param("empty step", "light", 1280, marks=pytest.mark.nightly),
        pytest.param("lie", "dark", 360, marks=pytest.mark.nightly),
        pytest.param("undrawn", "light", 1280, marks=pytest.mark.nightly),
    ],
)
def test_page__light_and_wide_or_dark_and_narrow__opens_without_a_fault(
    browser: Browser, late: tuple[str, Evidence], name: str, scheme: str, width: int
) -> None:
    url, evidence = late
    ready = f"!document.getElementById('trace') || {DONE}"

    browser.open_well(url + _paths(evidence)[name], ready, scheme=scheme, width=width)


def test_work_page__without_scripts__says_that_nothing_was_checked(
    browser: Browser, late: tuple[str, Evidence]
) -> None:
    url, evidence = late
    browser.open(url + _paths(evidence)["paid"], scripts=False)

    said = browser.texts("#verdict")[0]
    assert said.startswith("Not verified by this browser.") and "tallystick audit verify" in said
    notes = browser.texts("[data-check]")
    assert notes and all(each.startswith("Not checked by this browser") for each in notes)


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
