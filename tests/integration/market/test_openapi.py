"""Does the OpenAPI document leave anything open? A walk over all operations."""

import json
import re
from typing import Any

import pytest

from contracts.terms.errors import TallystickError, error_class
from market import bodies
from market.api.app import make_app
from market.api.examples import example_of
from market.api.openapi import operations
from market.api.problems import MEDIA_TYPE, status_of
from market.bodies import Body, Problem, read_body
from tests.integration.market.client import client_of
from tests.support.market_world import memory_world

DOCUMENT = make_app(memory_world().api()).openapi()
OPERATIONS = {f"{method} {path}": each for method, path, each in operations(DOCUMENT)}
BODIES = sorted(
    (
        each
        for each in vars(bodies).values()
        if isinstance(each, type) and issubclass(each, Body) and each is not Body
    ),
    key=lambda cls: cls.__name__,
)

every_operation = pytest.mark.parametrize("name", OPERATIONS)


def problems_of(operation: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Refusals of an operation by status."""
    found = operation["responses"].items()
    return {int(status): answer for status, answer in found if int(status) >= 400}


async def test_document__asked_for__is_openapi_3_1() -> None:
    async with client_of(memory_world()) as client:
        response = await client.get("/openapi.json")

    assert response.json() == json.loads(json.dumps(DOCUMENT))
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert DOCUMENT["info"]["description"] and DOCUMENT["info"]["license"]


def test_document__every_reference__resolves() -> None:
    text = json.dumps(DOCUMENT)
    names = set(re.findall(r'"#/components/schemas/(\w+)"', text))

    assert '"$ref": "#/$defs' not in text and "HTTPValidationError" not in text
    assert names <= set(DOCUMENT["components"]["schemas"])


def test_document__every_id_and_tag__is_unique_and_described() -> None:
    ids = [each["operationId"] for each in OPERATIONS.values()]
    described = {tag["name"] for tag in DOCUMENT["tags"] if tag["description"]}

    assert len(ids) == len(set(ids))
    assert {tag for each in OPERATIONS.values() for tag in each["tags"]} == described


def test_document__bytes__are_said_to_be_hex() -> None:
    digest = DOCUMENT["components"]["schemas"]["LeaseView"]["properties"]["lease"]

    assert digest["pattern"] == "^[0-9a-f]{64}$"
    assert "contentMediaType" not in json.dumps(DOCUMENT["components"])


@every_operation
def test_operation__of_the_document__says_what_it_does(name: str) -> None:
    operation = OPERATIONS[name]

    assert operation["tags"] and operation["operationId"]
    assert operation["description"].startswith(operation["summary"])
    assert len(operation["summary"]) > 5 and not operation["summary"].endswith(".")
    for parameter in operation.get("parameters", ()):
        assert parameter.get("description"), parameter["name"]


@every_operation
def test_operation__of_the_document__shows_examples(name: str) -> None:
    operation = OPERATIONS[name]
    sent = operation.get("requestBody", {}).get("content", {})
    answers = [each for status, each in operation["responses"].items() if int(status) < 300]
    bodies = [sent, *(each.get("content", {}) for each in answers)]

    assert answers
    for content in bodies:
        for kind, said in content.items():
            assert said["schema"] and said["example"] is not None, kind


@every_operation
def test_operation__that_refuses__says_with_which_codes(name: str) -> None:
    operation = OPERATIONS[name]

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


@every_operation
def test_operation__by_its_form__may_refuse_what_all_such_do(name: str) -> None:
    operation = OPERATIONS[name]
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


@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
def test_example__of_every_body__can_be_read(cls: type[Body]) -> None:
    read_body(cls, json.dumps(example_of(cls)).encode())
