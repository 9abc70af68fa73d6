"""Requests to any operation of the API, and what its answers must hold; for `test_api_fuzz`.

schemathesis makes requests that fit the document and requests that do not, with the same seed every
time; the market has a job that works, a slash and a batch, whose names are shown to it.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.transport.asgi import ASGI_TRANSPORT
from schemathesis.transport.requests import REQUESTS_TRANSPORT
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.terms.digest import blob_digest
from contracts.terms.ids import Digest, JobId
from market.api.app import make_app
from market.api.arrivals import Arrivals
from market.api.context import Api
from market.domain.limits import Rate
from market.service.ask_job import ask_job
from market.service.faucet import give_faucet
from market.service.rows import BatchRow, LeaseRow
from tallystick.sdk.http import signed_by
from tests.integration.market.client import HOST
from tests.integration.market.test_slash import convicted
from tests.support.databases import new_world
from tests.support.examples import examples
from tests.support.history import DOMAIN, make_wallet
from tests.support.market_world import MANIFEST, World, market_spec

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = 2
SIGN = "sign this"
"""In the place of an authorization that `Signing` makes."""
ANN = make_wallet("ann")


class GivingArrivals(Arrivals):
    """Whoever waits for the chain worker has it work."""

    def __init__(self, world: World) -> None:
        super().__init__(world.wakeup)
        self._world = world

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """See `Arrivals.wait`."""
        await give_faucet(self._world.new_work(), self._world.ports)


@dataclass(frozen=True)
class Busy:
    """A market with something of everything, and what its things are called."""

    world: World
    api: Api
    names: dict[str, str]
    bodies: dict[str, dict[str, Any]]


class Signing:
    """Signs for ann every request that asks for it, as it is really sent."""

    def __init__(self, app: ASGIApp, world: World) -> None:
        self._app, self._world = app, world

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Put a signature in the place of `SIGN`."""
        if scope["type"] != "http" or Headers(scope=scope).get("authorization") != SIGN:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        sent, url = await request.body(), request.url
        signed = signed_by(
            ANN,
            DOMAIN,
            request.method,
            url.path + (f"?{url.query}" if url.query else ""),
            blob_digest(sent),
            self._world.now,
            key=request.headers.get("idempotency-key", ""),
        )
        MutableHeaders(scope=scope)["authorization"] = signed
        parts = iter([{"type": "http.request", "body": sent, "more_body": False}])

        async def again() -> Message:
            return next(parts, {"type": "http.disconnect"})

        await self._app(scope, again, send)


async def busy_market() -> Busy:
    """See `Busy`."""
    world = new_world()
    await world.audit("out1")
    maker = await world.start_job()
    await world.seal(maker, 2)
    slash = await convicted(world, maker)
    for _ in range(4):
        world.wait(6)
        await world.tick()
    job = maker.spec.job()
    asked = await ask_job(
        job, "pause", by=maker.spec.poster, at=world.now, now=world.now, work=world.new_work()
    )
    (batch, *_), (lease, *_) = await world.rows(BatchRow), await world.rows(LeaseRow)
    names: dict[str, Digest | bytes] = {
        "job": job,
        "operation": asked.operation,
        "peer": maker.members[0].session.peer,
        "offer": world.offers["ann"],
        "lease": lease.lease,
        "account": ANN.account,
        "auditor": make_wallet("out1").account,
        "evidence": slash.evidence,
        "root": batch.root,
        "blob": blob_digest(MANIFEST),
    }
    api = world.api()
    api.arrivals = GivingArrivals(world)
    api.rate = Rate(per_second=1_000_000, burst=1_000_000)
    return Busy(
        world, api, {noun: name.hex() for noun, name in names.items()}, bodies_of(world, job)
    )


def bodies_of(world: World, job: JobId) -> dict[str, dict[str, Any]]:
    """Bodies that are signed by whom they name, by path."""
    spec = market_spec(salt=9)
    signed = make_wallet("poster").sign(spec, DOMAIN).encoded().hex()
    return {
        "/v1/offers": {"signed": world.sign_offer("ann", 10**9, nonce=2).encoded().hex()},
        "/v1/jobs/quote": {"spec": spec.encoded().hex()},
        "/v1/jobs": {
            "signed": signed,
            "permit": {"deadline": 4_000_000_000, "signature": "00" * 65},
        },
        "/v1/jobs/typed-data": {
            "like": job.hex(),
            "poster": ANN.account.hex(),
            "name": "another",
            "steps": 10,
            "budget": "1000000",
            "price_ceiling": "1000000000",
            "deadline": world.now // 1000 + 3600,
        },
        "/v1/faucet": {"account": ANN.account.hex()},
    }


def operations_of(document: dict[str, Any]) -> dict[str, Any]:
    """What schemathesis makes of a document, by method and path; the application answers."""
    schema = schemathesis.openapi.from_dict(document, config=SchemathesisConfig.from_dict({}))
    schema.app = Signing(APP, BUSY.world)
    found = [cast(Any, result).ok() for result in schema.get_all_operations()]
    return {f"{each.method} {each.path}": each for each in found}


BUSY = asyncio.run(busy_market())
APP = make_app(BUSY.api)
OPERATIONS = operations_of(APP.openapi())


def send_msgpack_as_octets() -> None:
    """Teach schemathesis to send bodies in msgpack as bytes."""
    for transport in (ASGI_TRANSPORT, REQUESTS_TRANSPORT):
        octets = transport._serializers["application/octet-stream"]
        transport.serializer("application/msgpack")(octets)


send_msgpack_as_octets()


def headers_of(operation: Any) -> dict[str, str]:
    """What lets a caller in: a host's credential, or a signature."""
    schemes = {name for each in operation.definition.raw.get("security", ()) for name in each}
    if "host" in schemes:
        return HOST
    return {"Authorization": SIGN} if schemes else {}


def is_stream(operation: Any) -> bool:
    """Whether its answer goes on for as long as somebody reads, unless told not to follow."""
    answer = operation.definition.raw["responses"].get("200", {})
    return "text/event-stream" in answer.get("content", ())


def known_parts(operation: Any) -> dict[str, Any]:
    """Parts of a request that name what is there, or say what somebody has signed."""
    found: dict[str, Any] = {}
    names = {**BUSY.names, "number": 1, "step": 1}
    if operation.path.startswith("/v1/auditors/"):
        names["account"] = BUSY.names["auditor"]
    if path := {key: value for key, value in names.items() if f"{{{key}}}" in operation.path}:
        found["path_parameters"] = path
    if body := BUSY.bodies.get(operation.path):
        found |= {"body": body, "media_type": "application/json"}
    return found


def check(operation: Any, mode: GenerationMode, headers: dict[str, str], **fixed: Any) -> None:
    """Send requests of one kind."""

    @settings(
        max_examples=examples(EXAMPLES),
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode, **fixed))
    def send(case: "Case[Any]") -> None:
        case.call_and_validate(headers=headers, checks=CHECKS)

    send()


def check_operation(name: str) -> None:
    """Send requests that fit the document, that do not, that name what is there, and unsigned."""
    operation = OPERATIONS[name]
    headers = headers_of(operation)
    bounded = {"query": {"follow": False}} if is_stream(operation) else {}

    check(operation, GenerationMode.POSITIVE, headers, **bounded)
    if {"parameters", "requestBody"} & set(operation.definition.raw):  # else nothing can be wrong
        check(operation, GenerationMode.NEGATIVE, headers, **bounded)
    if fixed := known_parts(operation):
        check(operation, GenerationMode.POSITIVE, headers, **bounded, **fixed)
    if headers:
        check(operation, GenerationMode.POSITIVE, {})
