"""Has this caller asked too often? In front of all routes of the API, with what is left in headers.

A caller is the network address that it comes from: keys to sign a request with cost nothing. Hosts
show their credential and are not counted: their coordinators post what everybody else waits for.
"""

import ipaddress
import math

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.terms.errors import RateLimited
from market.api.context import Api, api_of, host_of
from market.api.problems import problem
from market.bodies.base import API_PREFIX
from market.domain.limits import SECOND, Allowance

_FREE = (f"{API_PREFIX}/health",)


class Limits:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit the request, or answer it with a problem."""
        if scope["type"] != "http" or not _is_counted(scope["path"]):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        api = api_of(request)
        allowance = await _allowance(request, api)
        if allowance is None:
            await self._app(scope, receive, send)
        elif allowance.is_admitted:
            await self._app(scope, receive, _with_headers(send, allowance))
        else:
            refusal = problem(_refusal(allowance))
            await refusal(scope, receive, _with_headers(send, allowance))


def _is_counted(path: str) -> bool:
    return path.startswith(API_PREFIX + "/") and path not in _FREE


async def _allowance(request: Request, api: Api) -> Allowance | None:
    if host_of(request, api) is not None:
        return None
    address = _network(request.client.host if request.client else "")
    return await api.market.limiter.take(f"address:{address}", api.rate)


def _network(host: str) -> str:
    """An address; of IPv6 the /64 that one customer has."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def _refusal(allowance: Allowance) -> RateLimited:
    seconds = math.ceil(allowance.retry_in / SECOND)
    return RateLimited(f"too many requests: again in {seconds} s", retry_after=seconds)


def _with_headers(send: Send, allowance: Allowance) -> Send:
    async def send_on(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["RateLimit-Limit"] = str(allowance.limit)
            headers["RateLimit-Remaining"] = str(allowance.remaining)
            headers["RateLimit-Reset"] = str(math.ceil(allowance.full_in / SECOND))
        await send(message)

    return send_on
