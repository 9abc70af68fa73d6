"""How an operation of `market.bodies.routes` becomes a route of FastAPI, and its document.

FastAPI parses names and queries. A body is read here, within its bound and by pydantic's JSON mode,
as strict bodies need it. Every answer is a view's own JSON, byte for byte.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Annotated, Any, TypeGuard, TypeVar

from fastapi import APIRouter, FastAPI
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from contracts.terms.errors import TallystickError
from market.api.context import answer, body
from market.api.problems import MEDIA_TYPE, status_of
from market.bodies.base import Body, Problem
from market.bodies.routes import TABLE, Route

H = TypeVar("H", bound=Callable[..., Awaitable[Body | Response]])

ABOUT = """Who works for whom, at what price; and what was paid for which work.

* Bytes are lower-case hex without 0x, money is a string of base units (1e-6 token), moments are
  milliseconds since the Unix epoch unless a field says seconds.
* Every refusal is a problem (RFC 9457) with a stable `code`; a program reads that and `data`.
* Lists come in parts: `next` is the `cursor` of what follows, null at the end.
* Answers to GET carry an ETag; shown in If-None-Match, it spares the body (304).
* Where money moves, an Idempotency-Key names the request: repeated, it is carried out once.
* `RateLimit-Limit`, `-Remaining` and `-Reset` (requests, requests, seconds) say what is left to the
  caller; who has nothing left is told by 429 and Retry-After when to come back.
"""
_REF = "#/components/schemas/{model}"
_BYTES = {"type": "string", "format": "binary"}
_EVENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "data": {"type": "string"},
    },
}
_METHODS = ("get", "put", "post", "delete", "head", "patch")


class Routes(APIRouter):
    """A router of the table's operations."""

    def on(self, route: Route[Any], **options: Any) -> Callable[[H], H]:
        """Answer `route` by a function; it returns the view, or a response of its own.

        A parameter of the type that the route takes is the parsed body of the request.
        """

        def register(handler: H) -> H:
            @functools.wraps(handler)
            async def answering(**named: Any) -> Response:
                found = await handler(**named)
                return answer(found, route.status) if isinstance(found, Body) else found

            answering.__signature__ = _with_body(handler, route.takes)  # type: ignore[attr-defined]
            self.add_api_route(
                route.path,
                answering,
                methods=[route.method],
                status_code=route.status,
                response_class=Response,
                summary=(handler.__doc__ or "").partition("\n")[0].rstrip("."),
                responses=dict(_answers(route)),
                openapi_extra=_request(route),
                **options,
            )
            return handler

        return register


def _with_body(handler: Callable[..., object], takes: type | None) -> inspect.Signature:
    signature = inspect.signature(handler, eval_str=True)
    if takes is None or not issubclass(takes, Body):
        return signature
    return signature.replace(
        parameters=[
            each.replace(annotation=Annotated[takes, body(takes)])
            if each.annotation is takes
            else each
            for each in signature.parameters.values()
        ]
    )


# ---------------------------------------------------------------------------------- the document


class DocumentedApp(FastAPI):
    """An application whose document has the bodies that are read here as well."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document; made once."""
        if self.openapi_schema is None:
            named = [t for r in TABLE.values() for t in (r.answers, r.takes, *r.tells)]
            bodies = dict.fromkeys(each for each in (Problem, *named) if _is_body(each))
            models = models_json_schema(
                [(each, "validation") for each in bodies], ref_template=_REF
            )
            document = super().openapi()  # which keeps it
            document.setdefault("components", {})["schemas"] = models[1]["$defs"]
            return document
        return self.openapi_schema


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and operation, one by one."""
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                yield method, path, item[method]


def _answers(route: Route[Any]) -> Iterator[tuple[int | str, dict[str, Any]]]:
    """What OpenAPI says of answers: the view, and errors by their status; any may be a problem."""
    yield route.status, {"description": _first_line(route.answers)} | _content(route.answers, route)
    errors: dict[int, list[type[TallystickError]]] = {}
    for error in route.refuses:
        errors.setdefault(status_of(error), []).append(error)
    for status, classes in errors.items():
        yield status, _problem(" ".join(f"`{e.code}`: {_first_line(e)}" for e in classes))
    yield "default", _problem("A problem: `code` says which")


def _request(route: Route[Any]) -> dict[str, Any]:
    content = _content(route.takes, route)
    return {"requestBody": {"required": True} | content} if content else {}


def _content(what: type | None, route: Route[Any]) -> dict[str, Any]:
    if _is_body(what):
        return {"content": {"application/json": {"schema": _reference(what)}}}
    if what is not bytes:
        return {}
    if not route.tells:
        return {"content": {route.media: {"schema": _BYTES}}}
    told = {"oneOf": [_reference(each) for each in route.tells]}
    return {"content": {route.media: {"schema": _EVENT, "x-event-data": told}}}


def _problem(description: str) -> dict[str, Any]:
    content = {MEDIA_TYPE: {"schema": _reference(Problem)}}
    return {"description": description, "content": content}


def _reference(cls: type) -> dict[str, str]:
    return {"$ref": _REF.format(model=cls.__name__)}


def _is_body(what: type | None) -> TypeGuard[type[Body]]:
    return what is not None and issubclass(what, Body)


def _first_line(cls: type) -> str:
    return "" if cls in (bytes, type(None)) else (cls.__doc__ or "").strip().partition("\n")[0]
