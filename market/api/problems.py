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

from contracts.terms import errors
from market.bodies.base import Problem
from market.web.failures import failure_page
from market.web.headers import is_page

STATUS: Mapping[type[errors.TallystickError], int] = {
    errors.Refused: 422,
    errors.Malformed: 400,
    errors.TooLarge: 413,
    errors.UnknownVersion: 422,
    errors.BadSignature: 401,
    errors.Expired: 410,
    errors.NotFound: 404,
    errors.Forbidden: 403,
    errors.Conflict: 409,
    errors.Unaffordable: 402,
    errors.NoMatch: 409,
    errors.InsufficientStake: 402,
    errors.WrongConfiguration: 409,
    errors.ContractRefused: 409,
    errors.Unavailable: 503,
    errors.RateLimited: 429,
    errors.Misbehaved: 422,
    errors.Equivocation: 409,
    errors.InvariantBroken: 500,
    errors.TallystickError: 500,
}
"""A class that is not here has the status of its parent."""

MEDIA_TYPE = "application/problem+json"
_HTTP: Mapping[int, type[errors.TallystickError]] = {
    400: errors.Malformed,
    401: errors.BadSignature,
    403: errors.Forbidden,
    404: errors.NotFound,
    413: errors.TooLarge,
}
log = logging.getLogger(__name__)


def status_of(error: type[errors.TallystickError]) -> int:
    """HTTP status of an error class."""
    return next(STATUS[cls] for cls in error.__mro__ if cls in STATUS)


def problem_of(error: errors.TallystickError, status: int | None = None) -> Problem:
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


def problem(error: errors.TallystickError, status: int | None = None) -> Response:
    """The answer to a request that failed with `error`."""
    body = problem_of(error, status)
    return Response(body.json_bytes(), body.status, _headers(error, body.status), MEDIA_TYPE)


def _headers(error: errors.TallystickError, status: int) -> dict[str, str]:
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if status in (429, 503):
        return {"Retry-After": str(error.data.get("retry_after", 1))}
    return {}


def _answer(request: Request, error: errors.TallystickError, status: int | None = None) -> Response:
    """A problem, or where people look the same as a page."""
    if is_page(request.url.path):
        return failure_page(request, problem_of(error, status))
    return problem(error, status)


def install(app: FastAPI) -> None:
    """Make `app` answer every error with a problem."""
    app.add_exception_handler(errors.TallystickError, _ours)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unknown)


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.TallystickError)
    if status_of(type(error)) == 500:
        log.critical("%s %s", request.method, request.url.path, exc_info=error)
    elif isinstance(error, errors.Misbehaved):
        log.warning("%s %s: %s: %s", request.method, request.url.path, error.code, error.message)
    return _answer(request, error)


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return _answer(request, errors.Malformed(f"{where}: {first['msg']}", field=where))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    cls = _HTTP.get(error.status_code, errors.Refused)
    refusal = cls(f"{request.method} {request.url.path}: {error.detail}")
    answer = _answer(request, refusal, error.status_code)
    answer.headers.update(error.headers or {})  # 405 has to say what is allowed
    return answer


async def _unknown(request: Request, error: Exception) -> Response:
    log.critical("%s %s", request.method, request.url.path, exc_info=error)
    return _answer(request, errors.InvariantBroken(repr(error)))


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    return (
        value if isinstance(value, str | int | list | dict | bool) or value is None else str(value)
    )
