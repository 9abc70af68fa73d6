"""Which HTTP status an error is, and how it looks: RFC 9457 with our stable codes.

The one table of statuses. An error of ours that is a bug, and every exception that is not ours,
is a 500 that says nothing of the inside.
"""

import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from contracts.terms.errors import (
    BadSignature,
    Conflict,
    ContractRefused,
    Equivocation,
    Expired,
    Forbidden,
    InsufficientStake,
    InvariantBroken,
    Malformed,
    Misbehaved,
    NoMatch,
    NotFound,
    RateLimited,
    Refused,
    TallystickError,
    TooLarge,
    Unaffordable,
    Unavailable,
    UnknownVersion,
    WrongConfiguration,
)
from market.bodies.base import Problem
from market.web.failures import failure_page
from market.web.headers import is_page

STATUS: Mapping[type[TallystickError], int] = {
    Refused: 422,
    Malformed: 400,
    TooLarge: 413,
    UnknownVersion: 422,
    BadSignature: 401,
    Expired: 410,
    NotFound: 404,
    Forbidden: 403,
    Conflict: 409,
    Unaffordable: 402,
    NoMatch: 409,
    InsufficientStake: 402,
    WrongConfiguration: 409,
    ContractRefused: 409,
    Unavailable: 503,
    RateLimited: 429,
    Misbehaved: 422,
    Equivocation: 409,
    InvariantBroken: 500,
    TallystickError: 500,
}
"""A class that is not here has the status of its parent."""

MEDIA_TYPE = "application/problem+json"
_HTTP: Mapping[int, type[TallystickError]] = {
    400: Malformed,
    401: BadSignature,
    403: Forbidden,
    404: NotFound,
    413: TooLarge,
}
log = logging.getLogger(__name__)


def status_of(error: type[TallystickError]) -> int:
    """HTTP status of an error class."""
    return next(STATUS[cls] for cls in error.__mro__ if cls in STATUS)


def problem_of(error: TallystickError, status: int | None = None) -> Problem:
    """What is said of `error`."""
    status = status_of(type(error)) if status is None else status
    inside = status == 500
    return Problem(
        type="about:blank",
        title=type(error).__name__,
        status=status,
        code=error.code,
        detail="an error of ours; it was logged" if inside else error.message,
        data={} if inside else {name: _plain(value) for name, value in error.data.items()},
    )


def problem(error: TallystickError, status: int | None = None) -> Response:
    """The answer to a request that failed with `error`."""
    body = problem_of(error, status)
    return Response(body.json_bytes(), body.status, _headers(error, body.status), MEDIA_TYPE)


def _headers(error: TallystickError, status: int) -> dict[str, str]:
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if status in (429, 503):
        return {"Retry-After": str(error.data.get("retry_after", 1))}
    return {}


def _answer(request: Request, error: TallystickError, status: int | None = None) -> Response:
    """A problem, or where people look the same as a page."""
    if is_page(request.url.path):
        return failure_page(request, problem_of(error, status))
    return problem(error, status)


def install(app: FastAPI) -> None:
    """Make `app` answer every error with a problem."""
    app.add_exception_handler(TallystickError, _ours)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unknown)


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, TallystickError)
    if status_of(type(error)) == 500:
        log.critical("%s %s", request.method, request.url.path, exc_info=error)
    elif isinstance(error, Misbehaved):
        log.warning("%s %s: %s: %s", request.method, request.url.path, error.code, error.message)
    return _answer(request, error)


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return _answer(request, Malformed(f"{where}: {first['msg']}", field=where))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    cls = _HTTP.get(error.status_code, Refused)
    refusal = cls(f"{request.method} {request.url.path}: {error.detail}")
    answer = _answer(request, refusal, error.status_code)
    answer.headers.update(error.headers or {})  # 405 has to say what is allowed
    return answer


async def _unknown(request: Request, error: Exception) -> Response:
    log.critical("%s %s", request.method, request.url.path, exc_info=error)
    return _answer(request, InvariantBroken(repr(error)))


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    return (
        value if isinstance(value, str | int | list | dict | bool) or value is None else str(value)
    )
