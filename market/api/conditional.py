"""Has the caller seen these very bytes? ETags on answers to GET, and 304 for who shows one.

The tag is a digest of the body, so it is strong and needs no knowledge of what a view is made of:
the view is made again, and only its way to the caller is spared. What streams (blobs, events) says
itself whether it changed.
"""

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.terms.digest import digest

REVALIDATE = "no-cache"  # may be kept, and is asked for again every time
_ABOUT_A_BODY = ("content-length", "content-type")


def is_known(request: Request, tag: str) -> bool:
    """Whether the request says that its sender has the answer with this tag (RFC 9110, 13.1.2)."""
    shown = request.headers.get("if-none-match", "")
    known = (each.strip().removeprefix("W/") for each in shown.split(","))
    return shown.strip() == "*" or tag in known


class Conditional:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tag what the application answers to a GET."""
        if scope["type"] == "http" and scope["method"] == "GET":
            send = _Tagging(Request(scope), send)
        await self._app(scope, receive, send)


class _Tagging:
    def __init__(self, request: Request, send: Send) -> None:
        self._request, self._send = request, send
        self._start: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _may_be_tagged(message):
            self._start = message  # until the body is here
            return
        start, self._start = self._start, None
        if start is not None:
            if not message.get("more_body", False):
                message = self._tagged(start, message)
            await self._send(start)
        await self._send(message)

    def _tagged(self, start: Message, message: Message) -> Message:
        """The body to send behind `start`, which is changed."""
        headers = MutableHeaders(scope=start)
        tag = f'"{digest("http body", message["body"]).hex()[:32]}"'
        headers.setdefault("Cache-Control", REVALIDATE)
        headers["ETag"] = tag
        if not is_known(self._request, tag):
            return message
        start["status"] = 304
        for name in _ABOUT_A_BODY:
            del headers[name]
        return {**message, "body": b""}


def _may_be_tagged(start: Message) -> bool:
    """What has a length is not a stream; its body comes in one piece."""
    headers = Headers(scope=start)
    is_tagged = "etag" in headers or headers.get("cache-control") == "no-store"
    return start["status"] == 200 and "content-length" in headers and not is_tagged
