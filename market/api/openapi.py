"""The OpenAPI 3.1 document: what FastAPI finds in the routes, completed.

An operation's first docstring line is its summary, its function's name its id. Answers are those of
its view and the problems that it may really give: those beside the route (`refusals`), and those
that follow from its form. Bytes are hex in JSON, and are said to be.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from contracts.terms.errors import (
    BadSignature,
    Expired,
    Forbidden,
    Malformed,
    RateLimited,
    ServiceUnreachable,
    TallystickError,
    TooLarge,
)
from market.api.examples import example_of
from market.api.hex_schemas import hex_fields
from market.api.problems import status_of
from market.api.refusals import CODES, spelled
from market.bodies.base import Body, Problem

_UNCOUNTED = ("get_health",)
_STORELESS = ("get_health", "post_nonce")
_METHODS = ("get", "put", "post", "delete", "head", "patch")
_NO_BODY = ("204", "304")

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
TAGS = (
    ("network", "The market itself, its chain, the faucet and accounts"),
    ("offers", "What providers offer, and the leases that offers become"),
    ("providers", "What is known of a provider"),
    ("auditors", "Accounts that audit jobs of others"),
    ("jobs", "Work that was ordered, and all that was kept of it"),
    ("running jobs", "Peers and spending of jobs, as they go"),
    ("orders", "Jobs like one that is here, ordered from a page"),
    ("events", "What happens, as it happens"),
    ("market", "Depth, prices and clearing rounds"),
    ("earnings", "What an account has earned, line by line"),
    ("checks", "What checking has shown of a job's peers"),
    ("blobs", "Bytes by their BLAKE3 digest"),
    ("hosting", "For hosts, who run coordinators"),
    ("audit explorer", "From a unit of work to its payment, with proofs"),
    ("slashes", "Convictions, and what became of the stake"),
    ("settlement", "Epochs, proofs of pay, anchored batches"),
    ("status", "How far behind the parts of the market are"),
)


class DocumentedApp(FastAPI):
    """An application whose document is complete."""

    def openapi(self) -> dict[str, Any]:
        """The document; made once."""
        if self.openapi_schema is None:
            self.openapi_schema = _document(self)
        return self.openapi_schema


def operation_id(route: APIRoute) -> str:
    """The name of the function that answers."""
    return route.name


def in_bytes(media_type: str, example: bytes) -> dict[str, Any]:
    """The content of a body that is no JSON."""
    schema = {"type": "string", "format": "binary", "description": "bytes; the example is in hex"}
    return {"content": {media_type: {"schema": schema, "example": example.hex()}}}


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and operation, one by one."""
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                yield method, path, item[method]


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary="A marketplace for training work that has been checked",
        description=ABOUT,
        routes=app.routes,
        tags=[{"name": name, "description": text} for name, text in TAGS],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    parts = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        parts.pop(name, None)
    parts[Problem.__name__] = Problem.model_json_schema()
    document["components"]["schemas"] = hex_fields(parts)
    for method, _, operation in operations(document):
        _complete(method, operation)
    return document


def _complete(method: str, operation: dict[str, Any]) -> None:
    operation["summary"] = operation["description"].partition("\n")[0].rstrip(".")
    answers: dict[str, dict[str, Any]] = operation["responses"]
    codes = {status: list(answer.pop(CODES, ())) for status, answer in answers.items()}
    for error in _of_its_form(operation):
        codes.setdefault(str(status_of(error)), []).append(error.code)
    for status, answer in list(answers.items()):
        if int(status) >= 400:  # FastAPI's own 422, too, which nobody here gives
            del answers[status]
        else:
            _exemplify(status, answer)
    if method == "get" and operation["operationId"] not in _PRIVATE:
        answers["304"] = {"description": "What the caller has, by its ETag, is the same"}
    for status, named in sorted(codes.items()):
        if named:
            answers[status] = _bodyless(method, spelled(int(status), named))


_PRIVATE = ("get_session", "get_keys")


def _bodyless(method: str, answer: dict[str, Any]) -> dict[str, Any]:
    return {"description": answer["description"]} if method == "head" else answer


def _of_its_form(operation: Mapping[str, Any]) -> Iterator[type[TallystickError]]:
    if operation.get("parameters") or "requestBody" in operation:
        yield Malformed
    if "requestBody" in operation:
        yield TooLarge
    schemes = {name for each in operation.get("security", ()) for name in each}
    if "signature" in schemes:
        yield from (BadSignature, Expired)
    if schemes:
        yield Forbidden
    if operation["operationId"] not in _UNCOUNTED:
        yield RateLimited
    if operation["operationId"] not in _STORELESS:
        yield ServiceUnreachable


def _exemplify(status: str, answer: dict[str, Any]) -> None:
    if status in _NO_BODY:
        answer.pop("content", None)
    for content in answer.get("content", {}).values():
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        cls = _bodies(Body).get(name)
        if cls is not None:
            answer["description"] = _said_of(cls)
            content["example"] = example_of(cls)


def _bodies(cls: type[Body]) -> dict[str, type[Body]]:
    found = {cls.__name__: cls}
    for each in cls.__subclasses__():
        found |= _bodies(each)
    return found


def _said_of(cls: type[Body]) -> str:
    return (cls.__doc__ or "").strip().partition("\n")[0]
