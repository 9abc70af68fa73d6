"""Can somebody with a wallet in the browser post a job by keyboard alone?"""

import asyncio

import pytest

from contracts.keys.wallet import Wallet
from market.bodies.signing import hosting_digest
from market.service.host_jobs import register_host
from tests.browser.driving import Browser, ask_api
from tests.browser.showcase import Showcase, showcase
from tests.browser.wallet import ask_for_quote, provider, sign, sign_and_post
from tests.integration.bad_input.servers import market_in_a_thread
from tests.support.history import make_wallet

TWICE = make_wallet("somebody who presses again")
POOR = make_wallet("somebody without tokens")


@pytest.fixture
def shown() -> Showcase:
    """A market to which the test adds a job; its storage belongs to the loop of one server."""
    return asyncio.run(showcase())


def quoted(browser: Browser, url: str, shown: Showcase, wallet: Wallet) -> None:
    """By keyboard from the market's page to a quote."""
    like = shown.running.spec.job().hex()
    ask_for_quote(browser, url, like, wallet, name="mine", budget="20", hours="3")


def test_post__by_keyboard_and_pressed_again__is_one_job_and_another_only_on_purpose(
    browser: Browser, shown: Showcase
) -> None:
    shown.world.chain.give_tokens(TWICE.account, 60 * 10**6)
    more = make_wallet("another coordinator")
    signature = more.sign_digest(hosting_digest("host", more.account))
    world = shown.world
    asyncio.run(register_host("host", [(more.account, signature)], world.now, world.new_work()))
    press = "document.getElementById('post').click()"
    with market_in_a_thread(shown.world) as url:
        quoted(browser, url, shown, TWICE)
        address = str(browser.evaluate("location.href"))
        browser.evaluate(press)
        sign(browser, TWICE)
        browser.open(address, before=provider(TWICE))  # closed between the two signatures
        order, permit, name = sign_and_post(browser, TWICE)
        job = ask_api(url, f"/jobs/{name}")
        looked_up = ("console: ", f"status 404: {url}/v1/jobs/{name}")  # was it posted already?
        strange = [line for line in browser.logs() if not line.startswith(looked_up)]
        browser.open(address, before=provider(TWICE))
        browser.evaluate(press)
        browser.wait("!document.getElementById('post').disabled")
        said, asked = browser.texts("#posted")[0], browser.evaluate("asked.length")
        num_jobs = len(ask_api(url, "/jobs")["jobs"])
        browser.evaluate(press)
        sign(browser, TWICE), sign(browser, TWICE)
        browser.wait("location.pathname.startsWith('/jobs/')")
        other = str(browser.evaluate("location.pathname")).removeprefix("/jobs/")
        num_then = len(ask_api(url, "/jobs")["jobs"])
        browser.leave()

    message = permit["message"]
    assert isinstance(message, dict) and message["value"] == str(20 * 10**6)
    assert (order["primaryType"], permit["primaryType"]) == ("JobHeader", "Permit")
    assert (job["spec"]["name"], job["state"]) == ("mine", "draft")
    assert job["spec"]["poster"] == TWICE.account.hex() and strange == []
    assert "Posted before" in said and name in said and asked == 0
    assert other != name and num_then == num_jobs + 1


@pytest.mark.nightly
def test_post__wallet_or_market_refuses__says_why_and_can_be_tried_again(
    browser: Browser, shown: Showcase
) -> None:
    with market_in_a_thread(shown.world) as url:
        quoted(browser, url, shown, POOR)
        browser.evaluate("document.getElementById('post').click()")
        browser.wait("!document.getElementById('post').disabled")
        poor = browser.texts("#posted")[0]
        shown.world.chain.give_tokens(POOR.account, 30 * 10**6)
        browser.evaluate("document.getElementById('post').click()")
        browser.wait("window.asked.length > 0")
        browser.evaluate("asked.shift().refuse(new Error('the owner said no'))")
        browser.wait("!document.getElementById('post').disabled")
        refused = browser.texts("#posted")[0]
        browser.evaluate("delete window.ethereum, document.getElementById('post').click()")
        browser.wait("document.getElementById('posted').innerText.includes('no wallet')")
        browser.leave()

    assert "unaffordable" in poor and "the owner said no" in refused
