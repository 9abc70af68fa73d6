"""Pages: they answer, and a failure has the API's code and the pages' headers."""

from collections.abc import AsyncIterator

import httpx
import pytest
from eth_utils.address import to_checksum_address

from contracts.terms.amounts import PricePerPflop
from contracts.terms.moments import UnixMillis
from market.api.app import make_app
from market.domain.offers import Candidate
from market.service.candidates import candidates
from market.service.ports import UnitOfWork
from market.web.headers import HEADERS
from tests.support.history import make_wallet
from tests.support.market_world import World, market_spec

PIECES = "checking", "events", "now"


@pytest.fixture
async def pages(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the pages."""
    transport = httpx.ASGITransport(make_app(world.api()), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://market") as client:
        yield client


async def test_pages__job_from_post_to_its_claims__are_there_at_every_moment(
    world: World, pages: httpx.AsyncClient
) -> None:
    account = make_wallet("ann").account.hex()
    maker = await world.start_job()
    job = maker.spec.job().hex()
    paths = ("/", "/status", f"/providers/{account}", f"/jobs/{job}", f"/audit/{job}")
    fragments = ("/fragment/market", f"/jobs/{job}/fragment/progress", f"/jobs/{job}/spend")

    async def all_answer(*more: str) -> None:
        for path in (*paths, *fragments, *more, *(f"/jobs/{job}/fragment/{x}" for x in PIECES)):
            answer = await pages.get(path)
            assert (path, answer.status_code) == (path, 200), answer.text
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS

    await all_answer()
    await world.seal(maker, 3)
    await all_answer()
    for _ in range(4):
        world.wait(6)
        await world.tick()
    await all_answer()
    shown = (await pages.get(f"/jobs/{job}")).text
    assert "Limits and stakes" in shown and account in shown and "not committed" in shown


async def test_pages__failure__is_a_page_with_the_code_of_the_api(
    pages: httpx.AsyncClient,
) -> None:
    wrong = {
        f"/jobs/{'00' * 32}": (404, "not_found"),
        "/jobs/zz": (400, "malformed"),
        f"/audit/{'00' * 32}": (404, "not_found"),
        "/providers/12": (400, "malformed"),
        "/find?q=who": (404, "not_found"),
        "/static/nothing.js": (404, "not_found"),
        "/nothing": (404, "not_found"),
    }
    for path, (status, code) in wrong.items():
        answer = await pages.get(path)
        assert (answer.status_code, answer.headers["content-type"][:9]) == (status, "text/html")
        assert f'<code id="code">{code}</code>' in answer.text, path
        assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]


@pytest.mark.parametrize(
    "path", ["/providers/{}", "/jobs/{job}/spend?account={}", "/audit/{job}?peer={}", "/find?q={}",
    "/v1/accounts/{}", "/v1/accounts/{}/earnings", "/v1/providers/{}"],
)  # fmt: skip
async def test_address__as_people_write_it__is_read_and_with_a_slip_refused(
    path: str, world: World, pages: httpx.AsyncClient
) -> None:
    job = (await world.start_job()).spec.job().hex()
    typed = to_checksum_address(make_wallet("ann").account)
    last = max(place for place, digit in enumerate(typed) if digit.isalpha())
    slip = typed[:last] + typed[last].swapcase() + typed[last + 1 :]

    for good in (typed, typed[2:], typed.lower(), f"0X{typed[2:]}", f"%20{typed}%20"):
        assert (await pages.get(path.format(good, job=job))).status_code in (200, 303), good
    refused = await pages.get(path.format(slip, job=job))

    assert (refused.status_code, "EIP-55" in refused.text) == (400, True)


async def test_pages__job_that_fits_no_offer__says_the_least_change_that_would_match_it(
    world: World, pages: httpx.AsyncClient
) -> None:
    await world.register()
    await world.offer("ann", 2 * 10**11)
    spec = market_spec(price_ceiling=PricePerPflop(10**11))
    await world.post(spec)
    await world.tick()

    shown = (await pages.get(f"/jobs/{spec.job().hex()}")).text
    market = (await pages.get("/")).text

    assert "raise price_ceiling from 100000 to 200000 tokens" in shown
    assert "No single change" not in shown
    assert "price excludes 1" in market and "100,000 apart" in market


async def test_pages__many_visitors_of_many_offers__read_them_once_and_see_the_cheapest(
    world: World, pages: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        await world.offer("ann", PricePerPflop(10**11 + number * 10**10), nonce=number + 1)
    reads = []

    async def noted(now: UnixMillis, work: UnitOfWork) -> list[Candidate]:
        reads.append(now)
        return await candidates(now, work)

    monkeypatch.setattr("market.service.show_market.candidates", noted)
    shown = [(await pages.get("/fragment/market")).text for _ in range(20)]

    assert len(reads) == 1
    assert "60 open offers" in shown[-1]
    for tokens in (100_000, 690_000):  # of the least and the greatest price
        assert f"{tokens:,}</data>" in shown[-1]


async def test_pages__spend_of_nobody__is_no_error_of_ours(
    world: World, pages: httpx.AsyncClient
) -> None:
    path = f"/jobs/{(await world.start_job()).spec.job().hex()}/spend"

    found = [
        (await pages.get(f"{path}?{query}")).status_code for query in ("account=12", "start=-1")
    ]

    assert all(400 <= status < 500 for status in found)
    assert (await pages.get(f"{path}?account={'00' * 20}")).status_code == 200


async def test_pages__error_of_ours__says_nothing_of_the_inside_and_keeps_its_headers(
    world: World, pages: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise RuntimeError("the inside")

    monkeypatch.setattr(world.chain, "head", broken)
    answer = await pages.get("/status")

    assert answer.status_code == 500 and "the inside" not in answer.text
    assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]


async def test_pages__piece_that_fails__is_a_piece(pages: httpx.AsyncClient) -> None:
    answer = await pages.get(f"/jobs/{'00' * 32}/fragment/progress", headers={"HX-Request": "true"})

    assert answer.status_code == 404 and "<html" not in answer.text
    assert "not_found" in answer.text
