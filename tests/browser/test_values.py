"""Are values in pages those of the API? Read in the browser, compared with the JSON."""

from typing import Any

import pytest

from tests.browser.conftest import Site
from tests.browser.driving import Browser, ask_api
from tests.browser.test_pages import address


def api(site: Site, path: str) -> Any:
    """What programs are told."""
    return ask_api(site.url, path)


def row_values(browser: Browser, caption: str) -> list[list[str]]:
    """Values of the `data` elements of each row of a table."""
    found: list[list[str]] = browser.evaluate(
        "[...document.querySelectorAll('table')].filter(t => t.caption?.textContent.startsWith("
        f"{caption!r})).flatMap(t => [...t.tBodies[0].rows])"
        ".map(r => [...r.querySelectorAll('data')].map(d => d.value))"
    )
    return found


def names(browser: Browser, caption: str) -> list[str]:
    """Full names of the first digest in each row of a table."""
    found: list[str] = browser.evaluate(
        "[...document.querySelectorAll('table')].filter(t => t.caption?.textContent.startsWith("
        f"{caption!r})).flatMap(t => [...t.tBodies[0].rows])"
        ".map(r => { const e = r.querySelector('.digest');"
        " return e.title || e.querySelector('[title]').title; })"
    )
    return found


def test_market__offers_and_jobs__are_those_of_the_api(browser: Browser, site: Site) -> None:
    browser.open(site.url)
    jobs = api(site, "/jobs")["jobs"]

    assert names(browser, "The newest jobs") == [each["job"] for each in jobs]
    paid = [[each["claimed"], each["budget"]] for each in jobs]
    assert row_values(browser, "The newest jobs") == paid
    rounds = api(site, "/market/rounds")["rounds"]
    told = [[each["ceiling"], *filter(None, [each["price"]])] for each in reversed(rounds)]
    assert row_values(browser, f"The newest {len(rounds)} rounds") == told and len(told) >= 8
    (found,) = api(site, "/market")["classes"]
    free = browser.texts("#classes-title ~ .scroll tbody td")
    assert free[:3] == [str(found[name]) for name in ("open", "leased", "offers")]
    assert row_values(browser, "cpu/") == [[level["price"]] for level in found["levels"]]
    assert browser.evaluate("document.querySelector('#price-chart canvas') !== null")


def test_job__money_steps_and_losses__are_those_of_the_api(browser: Browser, site: Site) -> None:
    browser.open(address(site, "job"))
    path = f"/jobs/{site.shown.running.spec.job().hex()}"
    job, money = api(site, path), api(site, f"{path}/money")

    parts = dict(
        zip(
            browser.texts("#money-title ~ table:first-of-type tbody th"),
            browser.values("#money-title ~ table:first-of-type tbody data"),
            strict=True,
        )
    )
    assert int(parts["claimed"]) == int(job["claimed"])
    assert int(parts["vested"]) == int(job["vested"]) - int(job["claimed"]) > 0
    assert int(parts["earned"]) == int(job["earned"]) - int(job["vested"]) > 0
    assert int(parts["committed"]) == int(job["committed"]) - int(job["earned"])
    assert int(parts["free"]) == int(job["free"]) == int(money["free"])
    assert sum(map(int, parts.values())) == int(job["funded"])
    shown = ("limit", "earned", "vested", "claimed", "stake")
    assert row_values(browser, "1 of 1 accounts: what each") == [
        [each[name] for name in shown] for each in money["accounts"]
    ]
    assert browser.texts("#said")[0].startswith(f"step {job['progress']['step']} of 12")
    losses = [
        [str(each["loss_millionths"])] + ([str(v)] if (v := each["validation_millionths"]) else [])
        for each in job["reports"]
    ]
    assert row_values(browser, "6 of 6 step reports") == losses
    sealed = reversed(api(site, f"{path}/steps")["steps"])
    told = [[each["earned"], each["vested"]] for each in sealed]
    assert row_values(browser, "The newest 6 sealed steps") == told
    leases = [each["account"] for each in job["leases"]]
    assert browser.evaluate("[...document.querySelectorAll('.cell a')].map(a => a.title)") == leases
    assert browser.evaluate("document.querySelector('#loss-chart canvas') !== null")
    events = browser.texts("#event-list tbody tr")  # the newest first
    assert "order" in events[-1] and "12 steps" in events[-1]
    assert any("tokens in total" in each for each in events)
    commands = browser.texts("#actions-title ~ dl code")
    assert [each.split()[2] for each in commands] == [
        "pause",
        "resume",
        "cancel",
        "topup",
        "reclaim",
        "close",
    ]
    assert all(job["job"] in each and "--market http" in each for each in commands)


@pytest.mark.nightly
def test_job__moments__are_in_utc_and_in_the_zone_of_the_reader(
    browser: Browser, site: Site
) -> None:
    browser.open(address(site, "job"))

    shown = browser.evaluate(
        "[...document.querySelectorAll('time')].map(e => [e.textContent, e.dataset.local,"
        " new Date(e.dateTime).toLocaleString("
        "   undefined, {dateStyle: 'short', timeStyle: 'medium'}),"
        " getComputedStyle(e, '::after').content])"
    )
    assert len(shown) > 2
    for utc, local, wanted, drawn in shown:
        assert utc.endswith(" UTC") and local == wanted and f"[{local}]" in drawn.replace('" "', "")


def test_checked_job__audits_and_stakes__are_those_of_the_api(browser: Browser, site: Site) -> None:
    browser.open(address(site, "checked job"))
    peers = api(site, f"/jobs/{site.shown.checked.hex()}/checks")["peers"]

    assert names(browser, "What others found") == [each["account"] for each in peers]
    assert row_values(browser, "What others found") == [[each["stake"]] for each in peers]
    matched = sum(each["received"]["matched"] for each in peers)
    assert matched == 1 and "1 matched, 0 mismatched" in browser.texts("#checking")[0]
    (audit,) = [row for row in browser.texts("#checking .events tr") if "repeated" in row]
    assert audit.endswith("match")


def test_convict__slash__is_that_of_the_api(browser: Browser, site: Site) -> None:
    browser.open(address(site, "job with a convict"))
    (found,) = api(site, f"/jobs/{site.shown.convicted.hex()}/convictions")["convictions"]

    slash = found["slash"]
    assert row_values(browser, "Convictions") == [[found["wanted"], slash["amount"]]]
    assert names(browser, "Convictions") == [found["account"]] == [site.shown.convict.hex()]
    assert slash["state"] in browser.texts("#checking")[0]


def test_provider__money_and_reputation__are_those_of_the_api(browser: Browser, site: Site) -> None:
    browser.open(address(site, "provider"))
    account = site.shown.paid.hex()
    money, known = api(site, f"/accounts/{account}"), api(site, f"/providers/{account}")

    earned, vested = int(money["earned"]), int(money["vested"])
    wanted = [earned, earned - vested, vested, int(money["due"]), int(money["claimed"])]
    assert [int(each[0]) for each in row_values(browser, "From sealed work")] == wanted
    assert wanted[3] > 0
    assert names(browser, "Offers that stand") == [each["offer"] for each in known["offers"]]
    factors = dict(row.split("\t")[:2] for row in browser.texts("#reputation + table tbody tr"))
    assert factors["audits that matched"] == str(known["reputation"]["matches"])
    assert factors["honesty"] == "not audited yet" and factors["audits that matched"] == "0"
    lines = api(site, f"/accounts/{account}/earnings")["lines"]
    assert [row[0] for row in row_values(browser, "Lines 1 to")] == [
        each["amount"] for each in reversed(lines)
    ]
    told = [each["waits_for"]["sentence"] for each in reversed(lines) if each["waits_for"]]
    shown = [text.split("\n")[1:] for text in browser.texts(".lines td.why")]
    assert [text[0] for text in shown if text] == told != []


@pytest.mark.nightly
def test_audit__seals_and_beacons__are_those_of_the_api(browser: Browser, site: Site) -> None:
    browser.open(address(site, "audit"))
    steps = api(site, f"/jobs/{site.shown.running.spec.job().hex()}/beacons")["steps"]

    rows = browser.evaluate(
        "[...document.querySelectorAll('#seals ~ .scroll tbody tr')]"
        ".map(r => [r.cells[0].innerText, ...[...r.querySelectorAll('[title]')].map(e => e.title)])"
    )
    batches = {each["root"]: api(site, f"/batches/{each['root']}") for each in steps}
    job = site.shown.running.spec.job().hex()
    wanted = [
        [
            str(each["step"]),
            next(
                entry["seal"]
                for entry in batches[each["root"]]["entries"]
                if (entry["job"], entry["step"]) == (job, each["step"])
            ),
            each["root"],
            *([each["beacon"]] if each["beacon"] else []),
        ]
        for each in steps
    ]
    assert rows == wanted and len(rows) == 6


def test_spend__each_line__is_that_of_the_api(browser: Browser, site: Site) -> None:
    job, account = site.shown.running.spec.job().hex(), site.shown.paid.hex()
    browser.open(address(site, "spend"))
    spend = api(site, f"/jobs/{job}/spend")
    lines = api(site, f"/accounts/{account}/earnings?job={job}")["lines"]

    names = ("earned", "waiting", "frozen", "forfeited", "vested", "over_limit", "claimed")
    assert row_values(browser, "1 of 1 accounts: those") == [
        [each[name] for name in names] for each in spend["accounts"]
    ]
    assert row_values(browser, "Lines 1 to 6 of 6") == [
        [each["amount"], *(part["amount"] for part in each["claims"])] for each in reversed(lines)
    ]
    transactions = {part["transaction"] for each in lines for part in each["claims"]}
    seen = browser.evaluate("[...document.querySelectorAll('.lines [title]')].map(e => e.title)")
    assert {each["seal"] for each in lines} | transactions <= set(seen)
