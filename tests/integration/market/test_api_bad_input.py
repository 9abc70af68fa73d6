"""Every route of the application, called badly: a typed problem each time, nothing else.

The loop is over the registry of routes, so a new route is tested the moment it exists.
"""

import json
import re
from collections.abc import AsyncIterator

import httpx
import pytest

from contracts.terms.errors import Refused, TallystickError, error_class
from market.adapters.postgres import PostgresWork, make_engine
from market.api.context import Api
from market.api.problems import STATUS, status_of
from market.bodies.base import MAX_BUNDLE_BYTES, Problem, read_body
from market.service.faucet import ask_faucet
from tests.integration.market.client import HOST, client_of, once, signed
from tests.support.history import make_wallet
from tests.support.market_world import World, document


def routes() -> list[tuple[str, str]]:
    """Method and path of every route."""
    paths = document()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


OPEN = {
    ("GET", "/v1/health"),
    ("GET", "/v1/network"),
    ("GET", "/v1/offers"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/market/events"),
    ("GET", "/v1/market"),
    ("GET", "/v1/market/rounds"),
    ("GET", "/v1/status"),
}
"""Routes that take nothing that has to be there: they answer, whatever is sent."""


def filled(path: str, name: str) -> str:
    return re.sub(r"\{\w+\}", name, path).removeprefix("/v1")


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


CLOSED = [each for each in routes() if each not in OPEN]


async def test_routes__malformed__are_typed_problems(world: World) -> None:
    bodies = (b"", b"{", b"[1, 2", b"\xff\xfe", b'{"unknown": 1}', b"null", b"[" * 5000)
    sent = [(body, "11" * 32) for body in bodies] + [(b"{", name) for name in ("zz", "00", "22")]
    headers = {**HOST, **once(), "Content-Type": "application/json"}

    async with client_of(world) as client:
        for method, path in CLOSED:
            if method == "HEAD" or "coordinators" in path:  # takes no body: its key can be wrong
                continue
            for body, name in sent:
                check_problem(
                    await client.request(method, filled(path, name), content=body, headers=headers)
                )


async def test_routes__oversized__are_typed_problems(world: World) -> None:
    others = ("faucet", "coordinators", "typed", "claim")  # a wrong key comes first, or no body

    async with client_of(world) as client:
        for method, path in CLOSED:
            if method not in ("POST", "PUT", "DELETE"):
                continue
            target = filled(path, "11" * 32)
            headers = {**HOST, "Content-Length": str(MAX_BUNDLE_BYTES + 1)} | once("k" * 200)
            if any(word in path for word in ("messages", "blobs")):  # who calls is asked first
                headers |= signed(world, make_wallet("ann"), method, target, b"{}", key="k" * 200)
            problem = check_problem(
                await client.request(method, target, content=b"{}", headers=headers)
            )
            if not any(word in path for word in others) and path != "/v1/jobs":
                assert problem.code == "too_large", path


async def test_routes__body_that_does_not_say_how_large_it_is__is_not_read_to_its_end(
    world: World,
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(17):
            yield bytes(2**16)

    async with client_of(world) as client:
        assert check_problem(await client.post("/offers", content=pieces())).code == "too_large"


async def test_routes__of_hosts_without_a_credential__are_forbidden(world: World) -> None:
    async with client_of(world) as client:
        for method, path in CLOSED:
            for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eA=="}):
                if "hosting" not in path:
                    continue
                response = await client.request(
                    method, filled(path, ""), content=b"{}", headers=header
                )
                assert check_problem(response).code == "forbidden"


async def test_routes__money_without_key__are_malformed(world: World) -> None:
    permit = {"deadline": 1, "signature": "00" * 65}
    bodies: dict[str, dict[str, object]] = {
        "/jobs": {"signed": "00", "permit": permit},
        "/faucet": {"account": "11" * 20},
        "/coordinators": {},
        "/jobs/typed": {"spec": "00", "signature": "00" * 65, "permit": permit},
    }

    async with client_of(world) as client:
        for path, body in bodies.items():
            for header in ({}, once(""), once("x" * 129)):
                key = next(iter(header.values()), "")
                shown = signed(world, make_wallet("ann"), "POST", path, key=key)
                if path == "/coordinators":
                    header = header | {"Authorization": shown["Authorization"]}
                response = await client.post(path, content=json.dumps(body), headers=header)
                assert check_problem(response).code == "malformed", path


async def test_unknown_path__any_method__is_a_typed_problem(world: World) -> None:
    async with client_of(world) as client:
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
        for path in ("/jobs", "/offers", f"/jobs/{'11' * 32}"):
            response = await client.get(path)
            codes.append((response.status_code, read_body(Problem, response.content).code))
            assert response.headers["retry-after"] == "1"
    await engine.dispose()

    assert set(codes) == {(503, "service_unreachable")}


async def test_unknown_exception__in_a_use_case__says_nothing_of_the_inside(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Api) -> object:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(Api, "network", fail)
    async with client_of(world) as client:
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
