"""Does the OpenAPI document leave anything open? A walk over all operations."""

import json
from typing import Any

from contracts.terms.errors import TallystickError, error_class
from market.api.app import make_app
from market.api.examples import example_of
from market.api.openapi import operations
from market.api.problems import MEDIA_TYPE, status_of
from market.bodies.base import Body, Problem, read_body
from tests.integration.market.client import client_of
from tests.support.market_world import World, memory_world

DOCUMENT = make_app(memory_world().api()).openapi()
OPERATIONS = {f"{method} {path}": each for method, path, each in operations(DOCUMENT)}
BODIES = sorted(
    (each for each in Body.__subclasses__() if each.__module__.startswith("market.")),
    key=lambda cls: cls.__name__,
)


def problems_of(operation: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Refusals of an operation by status."""
    found = operation["responses"].items()
    return {int(status): answer for status, answer in found if int(status) >= 400}


async def test_document__asked_for__is_openapi_3_1(world: World) -> None:
    async with client_of(world) as client:
        response = await client.get("/openapi.json")

    assert response.json() == json.loads(json.dumps(DOCUMENT))
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert DOCUMENT["info"]["description"] and DOCUMENT["info"]["license"]


def test_operations__of_the_document__says_what_it_does() -> None:
    for operation in OPERATIONS.values():
        assert operation["tags"] and operation["operationId"]
        assert operation["description"].startswith(operation["summary"])
        assert len(operation["summary"]) > 5 and not operation["summary"].endswith(".")
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description"), parameter["name"]


def test_operations__of_the_document__shows_examples() -> None:
    for operation in OPERATIONS.values():
        sent = operation.get("requestBody", {}).get("content", {})
        answers = [each for status, each in operation["responses"].items() if int(status) < 300]
        bodies = [sent, *(each.get("content", {}) for each in answers)]

        assert answers
        for content in bodies:
            for kind, said in content.items():
                assert said["schema"] and said["example"] is not None, kind


def test_operations__that_refuses__says_with_which_codes() -> None:
    for name, operation in OPERATIONS.items():
        for status, answer in problems_of(operation).items():
            assert answer["description"]
            if name.startswith("head"):
                continue
            (kind, content), *others = answer["content"].items()
            codes = content["schema"]["allOf"][1]["properties"]["code"]["enum"]
            assert kind == MEDIA_TYPE and not others and codes
            for code in codes:
                cls = error_class(code)
                assert cls is not TallystickError and status_of(cls) == status
                example = content["examples"][code]["value"]
                assert read_body(Problem, json.dumps(example).encode()).code == code


def test_operations__by_its_form__may_refuse_what_all_such_do() -> None:
    for operation in OPERATIONS.values():
        statuses, schemes = set(problems_of(operation)), set()
        for each in operation.get("security", ()):
            schemes |= set(each)

        assert schemes <= set(DOCUMENT["components"]["securitySchemes"])
        assert (429 in statuses) == (operation["operationId"] != "get_health")
        assert not schemes or 403 in statuses
        assert "token" not in schemes or 401 in statuses
        if "requestBody" in operation:
            assert {400, 413} <= statuses
        if operation.get("parameters"):
            assert 400 in statuses


def test_example__of_every_body__can_be_read() -> None:
    for cls in BODIES:
        read_body(cls, json.dumps(example_of(cls)).encode())
