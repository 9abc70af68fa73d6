"""A wallet in the browser (EIP-1193) whose owner is the test, and who orders by keyboard alone.

It signs what the page shows, by the library that wallets are compared with.
"""

import json

from eth_account import Account
from eth_account.messages import encode_typed_data

from contracts.keys.wallet import Wallet
from tests.browser.driving import Browser
from tests.browser.test_keyboard import tab_to, tab_until

ANSWERED = (
    "location.pathname.startsWith('/jobs/') || document.getElementById('post')?.disabled === false"
)
"""An expression: the page went on to the job, or says why not."""


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


def ask_for_quote(browser: Browser, url: str, like: str, wallet: Wallet, **fields: str) -> None:
    """By keyboard from the market's page to the quote of a job like `like` (hex)."""
    browser.open(url, before=provider(wallet))
    tab_to(browser, "Post a job")
    browser.press("Enter")
    browser.arrive("location.pathname === '/post'")
    tab_until(browser, f"document.activeElement.href?.endsWith('/post?like={like}')")
    browser.press("Enter")
    browser.arrive("location.search.startsWith('?like')")
    for field, text in fields.items():
        tab_to(browser, f"field-{field}")  # which selects what is in it
        browser.type(text)
    browser.press("Enter")
    browser.arrive("location.pathname === '/post/quote'")


def sign_and_post(
    browser: Browser, wallet: Wallet
) -> tuple[dict[str, object], dict[str, object], str]:
    """By keyboard from the quote to the posted job; order, permit, and the job's id in hex."""
    tab_to(browser, "Sign with the wallet and post")
    browser.press("Enter")
    order, permit = sign(browser, wallet), sign(browser, wallet)
    browser.arrive(ANSWERED)
    path = str(browser.evaluate("location.pathname"))
    assert path.startswith("/jobs/"), browser.texts("#posted")
    return order, permit, path.removeprefix("/jobs/")
