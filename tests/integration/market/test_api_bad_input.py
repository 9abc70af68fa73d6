"""Every route of the application, called badly: a typed problem each time, nothing else.

The loop is over the registry of routes, so a new route is tested the moment it exists.
"""

import json
import re

import httpx
import pytest

from contracts.terms.errors import Refused, TallystickError, error_class
from market.adapters.postgres import PostgresWork, make_engine
from market.api.app import make_app
from market.api.context import Api
from market.api.problems import STATUS, status_of
from market.bodies import MAX_BUNDLE_BYTES, Problem, read_body
from market.service.faucet import ask_faucet
from tests.integration.market.client import HOST, ON_MEMORY, client_of, once, signed
from tests.support.history import make_wallet
from tests.support.market_world import World, memory_world


def routes() -> list[tuple[str, str]]:
    """Method and path of every route."""
    paths = make_app(memory_world().api()).openapi()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


OPEN = {
    ("GET", "/v1/health"),
    ("GET", "/v1/network"),
    ("GET", "/v1/offers"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/epochs"),
    ("GET", "/v1/market/events"),
    ("GET", "/v1/market"),
    ("GET", "/v1/market/rounds"),
    ("GET", "/v1/status"),
}
"""Routes that take nothing that has to be there: they answer, whatever is sent."""


def filled(path: str, name: str) -> str:
    return re.sub(r"\{(name|number|step|peer)\}", name, path).removeprefix("/v1")


def check_problem(response: httpx.Response) -> Problem:
    assert 400 <= response.status_code < 500, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = read_body(Problem, response.content)
    cls = error_class(problem.code)
    assert issubclass(cls, TallystickError) and cls is not TallystickError, problem
    assert problem.status == response.status_code
    return problem


def test_routes__listed__cover_the_api() -> None:
    found = routes()

    assert len(found) >= 28
    assert set(found) >= OPEN


@pytest.mark.parametrize(("method", "path"), [each for each in routes() if each not in OPEN])
async def test_route__malformed__is_a_typed_problem(method: str, path: str) -> None:
    world = memory_world()
    bodies = (b"", b"{", b"[1, 2", b"\xff\xfe", b'{"unknown": 1}', b"null", b"[" * 5000)
    headers = {**HOST, **once(), "Content-Type": "application/json"}

    async with client_of(world) as client:
        for body in bodies:
            for name in ("zz", "00", "11" * 32, "22" * 31):
                if method != "HEAD":
                    response = await client.request(
                        method, filled(path, name), content=body, headers=headers
                    )
                    if "coordinators" not in path:  # takes no body: its key alone can be wrong
                        check_problem(response)


@pytest.mark.parametrize(
    ("method", "path"),
    [each for each in routes() if each[0] in ("POST", "PUT", "DELETE") and each not in OPEN],
)
async def test_route__oversized__is_a_typed_problem(method: str, path: str) -> None:
    world = memory_world()
    headers = {**HOST, "Content-Length": str(MAX_BUNDLE_BYTES + 1)}
    too_long = {**headers, **once("k" * 200)}
    if any(word in path for word in ("messages", "blobs")):  # who calls is asked before the body
        target = filled(path, "11" * 32)
        too_long |= signed(world, make_wallet("ann"), method, target, b"{}", key="k" * 200)

    async with client_of(world) as client:
        response = await client.request(
            method, filled(path, "11" * 32), content=b"{}", headers=too_long
        )

    problem = check_problem(response)
    with_key = ("faucet", "coordinators", "orders")  # which is wrong, too, and read first
    if not any(word in path for word in with_key) and path != "/v1/jobs":
        assert problem.code == "too_large"


@pytest.mark.parametrize(("method", "path"), [each for each in routes() if "hosting" in each[1]])
async def test_route__unauthorised__is_forbidden(method: str, path: str) -> None:
    world = memory_world()

    async with client_of(world) as client:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eA=="}):
            response = await client.request(method, filled(path, ""), content=b"{}", headers=header)
            assert check_problem(response).code == "forbidden"


@pytest.mark.parametrize("header", [{}, once(""), once("x" * 129)])
@pytest.mark.parametrize("path", ["/jobs", "/faucet", "/coordinators", "/orders"])
async def test_route__money_without_key__is_malformed(path: str, header: dict[str, str]) -> None:
    bodies = {
        "/jobs": {"signed": "00", "permit": {"deadline": 1, "signature": "00" * 65}},
        "/faucet": {"account": "11" * 20},
        "/coordinators": {},
        "/orders": {
            "spec": "00",
            "signature": "00" * 65,
            "permit": {"deadline": 1, "signature": "00" * 65},
        },
    }

    world = memory_world()
    shown = signed(world, make_wallet("ann"), "POST", path, key=next(iter(header.values()), ""))
    headers = header | (
        {"Authorization": shown["Authorization"]} if path == "/coordinators" else {}
    )

    async with client_of(world) as client:
        response = await client.post(path, content=json.dumps(bodies[path]), headers=headers)

    assert check_problem(response).code == "malformed"


async def test_unknown_path__any_method__is_a_typed_problem() -> None:
    async with client_of(memory_world()) as client:
        missing = await client.get("/nothing")
        method = await client.delete("/network")

    assert check_problem(missing).code == "not_found"
    assert check_problem(method).status == 405
    assert method.headers["allow"] == "GET"


async def test_route__database_is_down__is_unavailable_and_may_be_repeated() -> None:
    url = "postgresql://nobody:x@127.0.0.1:1/none"
    engine, reading = make_engine(url), make_engine(url, reads=True)
    world = World(lambda: PostgresWork(engine), lambda: PostgresWork(reading))
    codes = []

    async with client_of(world) as client:
        for path in ("/jobs", "/offers", "/epochs", f"/jobs/{'11' * 32}"):
            response = await client.get(path)
            codes.append((response.status_code, read_body(Problem, response.content).code))
            assert response.headers["retry-after"] == "1"
    await engine.dispose()

    assert set(codes) == {(503, "service_unreachable")}


async def test_unknown_exception__in_a_use_case__says_nothing_of_the_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(self: Api) -> object:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(Api, "network", fail)
    async with client_of(memory_world()) as client:
        response = await client.get("/network")

    problem = read_body(Problem, response.content)
    assert (response.status_code, problem.code) == (500, "invariant_broken")
    assert "hunter2" not in response.text


def test_status__every_error_class__has_one() -> None:
    def tree(cls: type[TallystickError]) -> list[type[TallystickError]]:
        return [cls, *(each for child in cls.__subclasses__() for each in tree(child))]

    for cls in tree(TallystickError):
        status = status_of(cls)
        assert (400 <= status < 500) if issubclass(cls, Refused) else status >= 400
    assert set(STATUS) <= set(tree(TallystickError))


@ON_MEMORY
async def test_faucet__asked_too_often__is_forbidden(world: World) -> None:
    account = "11" * 20

    async with client_of(world) as client:
        for number in range(4):
            async with world.new_work() as work:
                if number < 3:
                    await ask_faucet(
                        bytes.fromhex(account),  # type: ignore[arg-type]
                        gas=1,
                        tokens=1,  # type: ignore[arg-type]
                        max_grants=3,
                        now=world.now,
                        work=work,
                    )
            await world.tick()
        response = await client.post("/faucet", json={"account": account}, headers=once())

    assert check_problem(response).code == "forbidden"
