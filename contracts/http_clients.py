"""How is a URL asked over HTTP? All our clients are made here, so that all of them ask one proxy.

A server on this machine is asked directly. For any other the environment names the proxy as for
curl: `http_proxy` or `https_proxy` by the scheme of the URL, else `all_proxy`. `no_proxy` lists
what is asked directly: a domain with all below it, an address, a network as 10.0.0.0/8, `*` for any
text, each also with a `:port`. Names are good in capitals, too; an empty variable is not set.
"""

import ipaddress
import logging
import os
import re
import ssl
from fnmatch import fnmatchcase
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx

from contracts.terms.errors import WrongConfiguration

# It logs each request with its whole URL: a market's logs would fill the disk, and show keys.
logging.getLogger("httpx").setLevel(logging.WARNING)

_PORTS = {"http": 80, "https": 443}
_WITH_PORT = re.compile(r"(\[[^]]+\]|[^:]*):([0-9]+)")


def async_client(
    url: str, *, transport: httpx.AsyncBaseTransport | None = None, **options: Any
) -> httpx.AsyncClient:
    """A client that asks the server of `url`, and no other.

    Args:
        url: Its scheme and host decide about the proxy.
        transport: What carries the requests instead of the network, for tests.
        options: Of `httpx.AsyncClient`.

    Raises:
        WrongConfiguration: see `proxy_of`.
    """
    way = {"transport": transport} if transport else _way(url)
    return httpx.AsyncClient(trust_env=False, **way, **options)


def client(
    url: str, *, transport: httpx.BaseTransport | None = None, **options: Any
) -> httpx.Client:
    """The same for a thread, see `async_client`."""
    way = {"transport": transport} if transport else _way(url)
    return httpx.Client(trust_env=False, **way, **options)


def proxy_of(url: str) -> httpx.URL | None:
    """The proxy that is asked for `url`; None: its server is asked.

    Raises:
        WrongConfiguration: the proxy does not speak HTTP, or its URL is none.
    """
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return None  # no URL: the request says so
    if _is_own(host) or any(_names(entry, host, port, parts.scheme) for entry in _excepted()):
        return None
    for name in (f"{parts.scheme}_proxy", "all_proxy"):
        if text := _variable(name):
            return _checked_proxy(name, text, host)
    return None


def server_of(url: str) -> str:
    """`https://host:port` of a URL, for an error: what else it says may be a key."""
    scheme, rest = url.split("://", 1) if "://" in url else ("", url)
    server = re.split(r"[/?#]", rest)[0].rpartition("@")[2]
    return f"{scheme}://{server}" if scheme else server


def by_proxy(url: str) -> str:
    """` through the proxy http://proxy:3128`, for an error; empty where none is asked."""
    proxy = proxy_of(url)
    # The network location has no user and no password.
    return "" if proxy is None else f" through the proxy {proxy.scheme}://{proxy.netloc.decode()}"


def ask_directly(host: str) -> None:
    """Let this process and its children ask `host` without a proxy."""
    entries = [*_excepted(), host]
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(entries)


def _way(url: str) -> dict[str, Any]:
    proxy = proxy_of(url)
    # Without TLS there is nothing to verify, and reading all certificates takes 20 ms.
    verify = False if url.lower().startswith("http:") else _certificates()
    if proxy is None:
        return {"verify": verify}
    own = _certificates() if proxy.scheme == "https" else None
    return {"verify": verify, "proxy": httpx.Proxy(proxy, ssl_context=own)}


@cache
def _certificates() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=True)  # SSL_CERT_FILE: proxies may bring their own


def _variable(name: str) -> str:
    return os.environ.get(name) or os.environ.get(name.upper()) or ""


def _excepted() -> list[str]:
    return _variable("no_proxy").replace(",", " ").split()


def _is_own(host: str) -> bool:
    if (address := _address(host)) is not None:
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _names(entry: str, host: str, port: int | None, scheme: str) -> bool:
    """Whether an entry of `no_proxy` means this server."""
    if with_port := _WITH_PORT.fullmatch(entry):
        entry = with_port[1]
        if int(with_port[2]) != (port or _PORTS.get(scheme)):
            return False
    entry = entry.strip("[]").lstrip(".").lower()
    if (address := _address(host)) is None:
        return host == entry or host.endswith(f".{entry}") or fnmatchcase(host, entry)
    try:
        return address in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return fnmatchcase(host, entry)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _checked_proxy(name: str, text: str, host: str) -> httpx.URL:
    try:  # never with the text: there may be a password in it
        found = httpx.URL(text if "://" in text else f"http://{text}")
    except httpx.InvalidURL:
        raise WrongConfiguration(
            f"{name.upper()} is no URL of a proxy: it has to look like http://proxy:3128"
        ) from None
    if found.scheme not in _PORTS or not found.host:
        raise WrongConfiguration(
            f"{name.upper()} names a {found.scheme} proxy, and only HTTP proxies are supported: "
            f"set it to one, as http://proxy:3128, or add {host} to NO_PROXY"
        )
    return found
