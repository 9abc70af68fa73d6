"""Which proxy is asked for a URL: as curl would ask, but never for a server of this machine."""

import ssl

import pytest

from contracts import http_clients
from contracts.http_clients import ask_directly, async_client, proxy_of

HTTP, HTTPS = "http://proxy:3128", "http://other:3129"
NAMED = {"HTTP_PROXY": HTTP, "https_proxy": HTTPS}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("url", "variables", "proxy"),
    [
        ("http://market.example", {}, None),
        ("http://market.example", NAMED, HTTP),
        ("https://market.example", NAMED, HTTPS),
        ("https://market.example", {"HTTP_PROXY": HTTP}, None),
        ("https://market.example", {"ALL_PROXY": HTTP, "https_proxy": ""}, HTTP),
        ("http://market.example", {"http_proxy": "proxy:3128"}, HTTP),
        ("http://market.example", {"http_proxy": HTTP, "HTTP_PROXY": HTTPS}, HTTP),
        *(
            (f"http://{host}:8420", NAMED, None)
            for host in ("localhost", "127.0.0.1", "127.0.0.2", "[::1]", "a.localhost")
        ),
        *(
            (f"http://{host}", {**NAMED, variable: excepted}, proxy)
            for variable in ("no_proxy", "NO_PROXY")
            for host, excepted, proxy in (
                ("market.example", "*", None),
                ("market.example", "other, market.example", None),
                ("market.example", "other .example", None),
                ("market.example.", "EXAMPLE", None),
                ("market.example", "*.example", None),
                ("market.example", "ket.example", HTTP),
                ("market.example:8420", "market.example:8420", None),
                ("market.example:8420", "market.example:80", HTTP),
                ("market.example", "market.example:80", None),
                ("10.1.2.3", "10.0.0.0/8", None),
                ("10.1.2.3", "10.1.2.3:80", None),
                ("10.1.2.3", "10.*", None),
                ("11.1.2.3", "10.0.0.0/8,2.3", HTTP),
                ("[fd00::1]", "fd00::/8", None),
                ("[fd00::1]:8420", "[fd00::1]:8420", None),
            )
        ),
    ],
)
def test_proxy_of__variables__as_curl_reads_them(
    url: str, variables: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert proxy_of(url) == proxy


@pytest.mark.parametrize("url", ["http://[", "http://a:99999", "nothing"])
async def test_async_client__no_url__is_told_by_the_request(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", HTTP)

    await async_client(url).aclose()


def test_ask_directly__own_address__is_asked_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**NAMED, "NO_PROXY": "a.example", "no_proxy": ""}.items():
        monkeypatch.setenv(name, value)

    ask_directly("10.0.0.2")

    asked = ["http://10.0.0.2", "http://a.example", "http://b.example"]
    assert list(map(proxy_of, asked)) == [None, None, HTTP]


@pytest.mark.parametrize("url", ["https://market", "HTTPS://market", "Https://market", "market"])
def test_way__anything_but_plain_http__is_verified(url: str) -> None:
    assert http_clients._way(url)["verify"].verify_mode is ssl.CERT_REQUIRED
    assert http_clients._way("HTTP://market")["verify"] is False
