"""Can somebody with a wallet in the browser post a job by keyboard alone?

The wallet is an EIP-1193 provider whose owner is this test: it signs what the page shows, by the
library that wallets are compared with.
"""

import asyncio
import json

import httpx
import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data

from contracts.keys.wallet import Wallet
from tests.browser.driving import Browser
from tests.browser.showcase import Showcase, showcase
from tests.browser.test_keyboard import tab_to
from tests.integration.bad_input.servers import market_in_a_thread
from tests.support.history import make_wallet

POSTER = make_wallet("somebody with a browser")
POOR = make_wallet("somebody without tokens")


@pytest.fixture
def shown() -> Showcase:
    """A market to which the test adds a job; its storage belongs to the loop of one server."""
    return asyncio.run(showcase())


def provider(wallet: Wallet) -> str:
    """A script: a wallet that asks its owner for every signature."""
    return (
        "window.asked = []; window.ethereum = { request: ({ method, params }) =>"
        f" method === 'eth_requestAccounts' ? Promise.resolve(['0x{wallet.account.hex()}'])"
        " : new Promise((sign, refuse) => window.asked.push({ method, params, sign, refuse })) };"
    )


def sign(browser: Browser, wallet: Wallet) -> dict[str, object]:
    """The owner signs what is asked; answers with what it was."""
    browser.wait("window.asked.length > 0")
    asked = browser.evaluate("({ method: asked[0].method, params: asked[0].params })")
    account, text = asked["params"]
    assert (asked["method"], account) == ("eth_signTypedData_v4", f"0x{wallet.account.hex()}")
    typed: dict[str, object] = json.loads(text)
    signed = Account.sign_message(encode_typed_data(full_message=typed), wallet.secret)
    browser.evaluate(f"asked.shift().sign('0x{signed.signature.hex()}')")
    return typed


def filled(browser: Browser, url: str, shown: Showcase, wallet: Wallet) -> None:
    """By keyboard from the market's page to a quote."""
    browser.open(url, before=provider(wallet))
    tab_to(browser, "Post a job")
    browser.press("Enter")
    browser.wait("location.pathname === '/post'")
    browser.evaluate(
        f"document.querySelector('a[href*=\"{shown.running.spec.job().hex()}\"]').focus()"
    )
    tab_to(browser, "one like this")
    browser.press("Enter")
    browser.wait("location.search.startsWith('?like')")
    for field, text in (("name", "mine"), ("budget", "20"), ("hours", "3")):
        tab_to(browser, f"field-{field}")
        browser.evaluate("document.activeElement.select()")
        browser.type(text)
    browser.press("Enter")
    browser.wait("location.pathname === '/post/quote'")


def test_post__by_keyboard_with_a_wallet__is_a_job(browser: Browser, shown: Showcase) -> None:
    shown.world.chain.give_tokens(POSTER.account, 30 * 10**6)
    with market_in_a_thread(shown.world) as url:
        filled(browser, url, shown, POSTER)
        tab_to(browser, "Sign with the wallet and post")
        browser.press("Enter")
        order = sign(browser, POSTER)
        permit = sign(browser, POSTER)
        browser.wait("location.pathname.startsWith('/jobs/')")
        job = httpx.get(f"{url}/v1{browser.evaluate('location.pathname')}", trust_env=False).json()
        logs = browser.logs()
        browser.leave()

    message = permit["message"]
    assert isinstance(message, dict) and message["value"] == str(20 * 10**6)
    assert (order["primaryType"], permit["primaryType"]) == ("JobSpec", "Permit")
    assert (job["spec"]["name"], job["state"]) == ("mine", "draft")
    assert job["spec"]["poster"] == POSTER.account.hex() and logs == []


def test_post__wallet_or_market_refuses__says_why_and_can_be_tried_again(
    browser: Browser, shown: Showcase
) -> None:
    with market_in_a_thread(shown.world) as url:
        filled(browser, url, shown, POOR)
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


def test_post__field_that_is_no_amount__is_said_beside_the_form(
    browser: Browser, shown: Showcase
) -> None:
    with market_in_a_thread(shown.world) as url:
        like = shown.running.spec.job().hex()
        path = f"/post/quote?like={like}&name=x&steps=2&budget=much&ceiling=1&hours=1"
        opened = browser.open(f"{url}{path}")
        said, kept = (
            browser.texts("[role=alert]"),
            browser.evaluate("[...document.forms[1]].map(e => e.value)"),
        )
        faults = browser.axe()
        browser.leave()

    assert opened["status"] == 400 and "'much' is no amount" in said[0]
    assert "much" in kept and faults == []
