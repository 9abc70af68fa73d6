"""What a route may refuse, for the OpenAPI document: classes of errors, by the status they become.

`responses=refused(NotFound, Conflict)` stands beside each route; what follows from its form alone
(a body, a path, who may call) `openapi` adds by itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from contracts.terms.errors import (
    BadSignature,
    ChainForgot,
    ChainUnreachable,
    Malformed,
    RpcFailed,
    TallystickError,
    TooLarge,
    UnknownVersion,
    error_class,
)
from market.api.problems import MEDIA_TYPE, status_of
from market.bodies.base import Problem

CODES = "x-codes"
SIGNED_MESSAGE = (Malformed, TooLarge, UnknownVersion, BadSignature)
"""What a signed message in a body may be."""
CHAIN = (ChainUnreachable, RpcFailed, ChainForgot)
"""What a chain may be that is asked."""


def refused(*errors: type[TallystickError]) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may end with `errors`."""
    found: dict[int | str, dict[str, Any]] = {}
    for error in errors:
        status = status_of(error)
        answer = found.setdefault(status, {"description": "", CODES: []})
        answer[CODES].append(error.code)
    return found


def spelled(status: int, codes: Iterable[str]) -> dict[str, Any]:
    """A problem as an OpenAPI response: its codes, and what each looks like."""
    classes = [error_class(code) for code in sorted(set(codes))]
    lines = [f"`{cls.code}`: {_first_line(cls)}" for cls in classes]
    return {
        "description": "\n\n".join(lines),
        "content": {
            MEDIA_TYPE: {
                "schema": _schema(status, [cls.code for cls in classes]),
                "examples": {cls.code: {"value": example_problem(status, cls)} for cls in classes},
            }
        },
    }


def example_problem(status: int, cls: type[TallystickError]) -> Mapping[str, object]:
    """A problem with the code of `cls`."""
    return {
        "type": "about:blank",
        "title": cls.__name__,
        "status": status,
        "code": cls.code,
        "detail": _first_line(cls).rstrip("."),
        "data": {},
    }


def _schema(status: int, codes: Sequence[str]) -> dict[str, Any]:
    narrowed = {"status": {"const": status}, "code": {"enum": list(codes)}}
    return {
        "allOf": [
            {"$ref": f"#/components/schemas/{Problem.__name__}"},
            {"properties": narrowed},
        ]
    }


def _first_line(cls: type[TallystickError]) -> str:
    return (cls.__doc__ or "").strip().partition("\n")[0]
