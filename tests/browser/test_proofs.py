"""Does the page itself find out whether a proof of pay holds?"""

import json
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from market.api.app import make_app
from market.web.assets import STATIC
from tests.architecture.checkout import ROOT
from tests.browser.conftest import Site
from tests.browser.driving import Browser
from tests.browser.test_pages import address
from tests.browser.test_values import api
from tests.integration.bad_input.servers import market_in_a_thread

MODULE = "import('/static/merkle.js')"


def proof_of(site: Site) -> dict[str, Any]:
    """The proof as programs get it."""
    found: dict[str, Any] = api(site, f"/epochs/{site.shown.epoch}/proofs/{site.shown.paid.hex()}")
    return found


def wrong(browser: Browser, proof: dict[str, Any]) -> list[str]:
    """What the page's own module finds wrong with a proof."""
    found: list[str] = browser.evaluate(f"{MODULE}.then(m => m.check({json.dumps(proof)}).wrong)")
    return found


def test_proof_page__honest_proof__is_verified_in_the_page(browser: Browser, site: Site) -> None:
    browser.open(address(site, "proof"))
    browser.wait("document.getElementById('verdict').dataset.verdict === 'good'")

    computed = browser.texts("[data-computed]")
    proof = proof_of(site)
    assert computed[-1] == proof["root"] and len(computed) == len(proof["siblings"]) + 1 > 2


@pytest.mark.parametrize("field", ["cumulative", "account", "sibling", "sum", "job", "root"])
def test_proof_page__altered_proof__is_found_out(browser: Browser, site: Site, field: str) -> None:
    browser.open(address(site, "proof"))
    proof = proof_of(site)
    honest = wrong(browser, proof)
    match field:
        case "cumulative":
            proof["cumulative"] = str(int(proof["cumulative"]) + 1)
        case "account":
            proof["account"] = "11" * 20
        case "sibling":
            proof["siblings"][0]["hash"] = "22" * 32
        case "sum":
            proof["siblings"][0]["sum"] = str(int(proof["siblings"][0]["sum"]) + 1)
        case "job":
            proof["jobs"][0]["cumulative"] = str(int(proof["jobs"][0]["cumulative"]) - 1)
        case "root":
            proof["root"] = "33" * 32

    assert honest == [] != wrong(browser, proof)


@pytest.mark.parametrize("name", ["proof.js", "merkle.js", "vendor/noble-hashes/utils.js"])
def test_proof_page__script_that_was_altered_on_the_way__is_not_run(
    browser: Browser, site: Site, name: str
) -> None:
    altered = (STATIC / name).read_bytes() + b"\n// and more"
    app = make_app(site.shown.world.api())

    async def answer(request: Request) -> Response:
        return Response(altered, media_type="text/javascript")

    app.router.routes.insert(0, Route(f"/static/{name}", answer))
    with market_in_a_thread(site.shown.world, app) as url:
        browser.open(address(Site(url, site.shown), "proof"))
        browser.evaluate("new Promise(done => setTimeout(() => done(true), 500))")
        verdict, logs = browser.texts("#verdict"), browser.logs()
        browser.leave()

    assert verdict[0].startswith("Not verified") and any("integrity" in line for line in logs)


def test_merkle_module__shared_vectors__makes_the_same_roots(browser: Browser, site: Site) -> None:
    vectors = json.loads((ROOT / "contracts" / "vectors.json").read_text())
    browser.open(address(site, "proof"))

    made = browser.evaluate(
        f"{MODULE}.then(m => {json.dumps(vectors['settlementTrees'])}.map(tree => {{"
        "  const node = m.root(tree.accounts.map((account, i) =>"
        "    m.settlementLeaf(account, tree.jobsRoots[i], BigInt(tree.cumulatives[i]))));"
        "  return ['0x' + m.toHex(node.hash), String(node.sum)]; }))"
    )
    of_jobs = browser.evaluate(
        f"{MODULE}.then(m => {json.dumps(vectors['jobsTrees'])}.map(tree => {{"
        "  const node = m.root(tree.jobs.map((job, i) =>"
        "    m.jobLeaf(job, BigInt(tree.cumulatives[i]))));"
        "  return ['0x' + m.toHex(node.hash), String(node.sum)]; }))"
    )

    assert made == [[tree["root"], tree["sum"]] for tree in vectors["settlementTrees"]]
    assert of_jobs == [[tree["root"], tree["sum"]] for tree in vectors["jobsTrees"]]
