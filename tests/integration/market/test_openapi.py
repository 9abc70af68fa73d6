"""Does the OpenAPI document say all of an operation? A walk over the table of routes."""

import json
from typing import Any

import pytest

from market.api.problems import MEDIA_TYPE, status_of
from market.api.routing import operations
from market.bodies.base import API_PREFIX, Body
from market.bodies.routes import TABLE, Route
from tests.integration.market.client import client_of
from tests.support.market_world import World, document

DOCUMENT = document()
OPERATIONS = {(method.upper(), path): each for method, path, each in operations(DOCUMENT)}


async def test_document__asked_for__is_openapi_3_1(world: World) -> None:
    async with client_of(world) as client:
        response = await client.get("/openapi.json")

    assert response.json() == json.loads(json.dumps(DOCUMENT))
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert DOCUMENT["info"]["description"] and DOCUMENT["info"]["license"]


def test_document__of_the_table__has_its_routes_and_no_other() -> None:
    assert set(OPERATIONS) == {(each.method, API_PREFIX + each.path) for each in TABLE.values()}


@pytest.mark.parametrize("route", TABLE.values(), ids=TABLE)
def test_operation__of_a_route__says_what_it_does_takes_answers_and_refuses(
    route: Route[Any],
) -> None:
    operation = OPERATIONS[route.method, API_PREFIX + route.path]
    answers = operation["responses"]

    assert operation["tags"] and len(operation["summary"]) > 5
    assert operation["description"].startswith(operation["summary"])
    assert all(each.get("description") for each in operation.get("parameters", ()))
    assert content_of(answers[str(route.status)]) == said_of(route.answers, route)
    assert content_of(operation.get("requestBody", {})) == said_of(route.takes, route)
    for error in route.refuses:
        assert f"`{error.code}`" in answers[str(status_of(error))]["description"]
        assert content_of(answers[str(status_of(error))]) == (MEDIA_TYPE, "Problem")
    for scheme in operation.get("security", ()):
        assert set(scheme) <= set(DOCUMENT["components"]["securitySchemes"])


def test_document__of_bytes__says_that_they_are_hex() -> None:
    told = json.dumps(DOCUMENT["components"]["schemas"])

    assert '"binary"' not in told and "base64" not in told
    assert '"$defs"' not in told


def said_of(what: type | None, route: Route[Any]) -> tuple[str, str] | None:
    """Media type and schema that a route declares."""
    if what is None or what is type(None):
        return None
    return ("application/json", what.__name__) if issubclass(what, Body) else (route.media, "")


def content_of(said: dict[str, Any]) -> tuple[str, str] | None:
    """Media type and schema that the document says; every schema is there."""
    if "content" not in said:
        return None
    ((kind, content),) = said["content"].items()
    name = content["schema"].get("$ref", "").rpartition("/")[2]
    assert not name or name in DOCUMENT["components"]["schemas"]
    return kind, name
