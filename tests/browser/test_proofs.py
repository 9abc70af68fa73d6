"""Does the page itself find out whether a proof of pay holds?"""

import copy
import json
from collections.abc import Callable
from typing import Any

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
ALTERED: dict[str, Callable[[dict[str, Any]], object]] = {
    "cumulative": lambda p: one_more(p, "cumulative"),
    "account": lambda p: other(p, "account"),
    "sibling": lambda p: other(p["siblings"][0], "hash"),
    "sum": lambda p: one_more(p["siblings"][0], "sum"),
    "job": lambda p: one_more(p["jobs"][0], "cumulative"),
    "root": lambda p: other(p, "root"),
}

TREES = {
    "settlementTrees": (
        "m.settlementLeaf(tree.accounts[i], tree.jobsRoots[i], BigInt(tree.cumulatives[i]))",
        "",
        ("root", "sum"),
    ),
    "jobsTrees": ("m.jobLeaf(tree.jobs[i], BigInt(tree.cumulatives[i]))", "", ("root", "sum")),
    "payTrees": (
        "m.payLeaf(tree.accounts[i], BigInt(tree.earned[i]), BigInt(tree.vested[i]))",
        ", m.payNode, {hash: new Uint8Array(32), earned: 0n, vested: 0n}",
        ("root", "earnedSum", "vestedSum"),
    ),
    "batches": (
        "m.batchLeaf(tree.jobs[i], Number(tree.steps[i]), tree.seals[i])",
        ", m.plainNode, {hash: new Uint8Array(32)}",
        ("root",),
    ),
}
"""Of each tree of the vectors: a leaf, what else `root` is told, and what comes of it."""


def one_more(part: dict[str, Any], field: str) -> None:
    """Alter an amount."""
    part[field] = str(int(part[field]) + 1)


def other(part: dict[str, Any], field: str) -> None:
    """Put another name in the place of one."""
    part[field] = "22" * (len(part[field]) // 2)


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


def test_proof_page__altered_proof__is_found_out(browser: Browser, site: Site) -> None:
    browser.open(address(site, "proof"))
    honest = proof_of(site)
    proofs = {name: copy.deepcopy(honest) for name in ALTERED}
    for name, alter in ALTERED.items():
        alter(proofs[name])

    assert wrong(browser, honest) == []
    assert [name for name, proof in proofs.items() if wrong(browser, proof) == []] == []


def test_proof_page__script_that_was_altered_on_the_way__is_not_run(
    browser: Browser, site: Site
) -> None:
    name = "proof.js"  # what it imports: `test_evidence.py`
    altered = (STATIC / name).read_bytes() + b"\n// and more"
    app = make_app(site.shown.world.api())

    async def answer(request: Request) -> Response:
        return Response(altered, media_type="text/javascript")

    app.router.routes.insert(0, Route(f"/static/{name}", answer))
    with market_in_a_thread(site.shown.world, app) as url:
        browser.open(address(Site(url, site.shown), "proof"))
        browser.wait_log("integrity")
        verdict = browser.texts("#verdict")
        browser.leave()

    assert verdict[0].startswith("Not verified")


def test_merkle_module__shared_vectors__makes_the_same_roots(browser: Browser, site: Site) -> None:
    """Python and Solidity pass the same file."""
    vectors = json.loads((ROOT / "contracts" / "vectors.json").read_text())
    browser.open(address(site, "proof"))

    for name, (leaf, more, fields) in TREES.items():
        made = browser.evaluate(
            f"{MODULE}.then(m => {json.dumps(vectors[name])}.map(tree => {{"
            f"  const leaf = (_, i) => {leaf};"
            f"  const node = m.root((tree.accounts ?? tree.jobs).map(leaf){more});"
            "  const sums = [node.sum, node.earned, node.vested].filter(e => e !== undefined);"
            "  return ['0x' + m.toHex(node.hash), ...sums.map(String)]; }))"
        )
        assert made == [[tree[each] for each in fields] for tree in vectors[name]] != [], name
