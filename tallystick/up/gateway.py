"""What may anybody ask of the embedded chain? This list of `eth_*` methods, in small bites.

A JSON-RPC proxy in front of anvil: everything that is not listed (anvil_*, evm_*, debug_*, signing
by the node, subscriptions) is refused here, and so are bodies, batches and numbers that are too
large. Errors are JSON-RPC errors whose `data.code` is a stable code of `contracts.terms.errors`:

    code     data.code       HTTP  when
    -32700   malformed       400   not JSON
    -32600   malformed       400*  not a JSON-RPC 2.0 request (* 200 inside a batch)
    -32601   forbidden       200   a method that is not on the list
    -32602   malformed       200   parameters that are no short list
    -32005   too_large       413   body, batch or answer over its bound
    -32005   overloaded      503   too many calls at once
    -32002   unavailable     503   the chain does not answer

Environment: TALLYSTICK_GATEWAY_PORT, TALLYSTICK_GATEWAY_UPSTREAM (anvil's address).
"""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import httpx
import uvicorn
import uvloop
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from contracts.http_clients import async_client
from contracts.terms import errors

ALLOWED = frozenset(
    {
        "eth_blockNumber",
        "eth_call",
        "eth_chainId",
        "eth_estimateGas",
        "eth_feeHistory",
        "eth_gasPrice",
        "eth_getBalance",
        "eth_getBlockByHash",
        "eth_getBlockByNumber",
        "eth_getBlockReceipts",
        "eth_getCode",
        "eth_getLogs",
        "eth_getProof",
        "eth_getStorageAt",
        "eth_getTransactionByHash",
        "eth_getTransactionCount",
        "eth_getTransactionReceipt",
        "eth_maxPriorityFeePerGas",
        "eth_sendRawTransaction",
        "eth_syncing",
        "net_version",
        "web3_clientVersion",
    }
)

MAX_BODY_BYTES = 2**20
MAX_ANSWER_BYTES = 16 * 2**20
MAX_BATCH = 100
MAX_PARAMETERS = 8
MAX_DEPTH = 16
MAX_METHOD_CHARACTERS = 64
MAX_ID_CHARACTERS = 128
MAX_AT_ONCE = 64
UPSTREAM_SECONDS = 20.0
BODY_SECONDS = 30.0

_JSON = {"content-type": "application/json"}

Json: TypeAlias = Any  # whatever json.loads returns; looked into before it is used
Upstream: TypeAlias = Callable[[Json], Awaitable[Json]]
"""Sends one request or a batch to the chain and returns its answer.

Raises:
    ChainUnreachable: no answer, or none that is JSON.
    TooLarge: an answer over MAX_ANSWER_BYTES.
"""


@dataclass(frozen=True)
class Answer:
    """What goes back over HTTP."""

    status: int
    body: Json


def rpc_error(request_id: Json, error: errors.TallystickError, number: int) -> Json:
    """The JSON-RPC form of an error of ours."""
    said = {"code": number, "message": str(error), "data": {"code": error.code}}
    return {"jsonrpc": "2.0", "id": request_id, "error": said}


def parse(body: bytes) -> Json:
    """The JSON value in `body`.

    Raises:
        TooLarge: over MAX_BODY_BYTES.
        Malformed: no JSON, nested too deeply, or with what cannot be sent on (NaN, infinite
            numbers, half a surrogate pair).
    """
    if len(body) > MAX_BODY_BYTES:
        raise errors.TooLarge(f"a body has at most {MAX_BODY_BYTES} bytes", limit=MAX_BODY_BYTES)
    try:
        value = json.loads(body)
        encode(value)
    except (ValueError, RecursionError) as error:
        raise errors.Malformed(f"not JSON: {type(error).__name__}") from error
    if not _is_flat(value, MAX_DEPTH):
        raise errors.Malformed(f"nested deeper than {MAX_DEPTH}")
    return value


def encode(value: Json) -> bytes:
    """Strict, compact JSON; ValueError for what JSON has no words for."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _is_flat(value: Json, levels: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return True
    return levels > 0 and all(_is_flat(item, levels - 1) for item in value)


def id_of(request: Json) -> Json:
    """The id to answer with: the request's if it is one, else null."""
    found = request.get("id") if isinstance(request, dict) else None
    if isinstance(found, str) and len(found) <= MAX_ID_CHARACTERS:
        return found
    return found if type(found) is int and abs(found) < 2**63 else None


def refusal(request: Json) -> Json | None:
    """The error to answer a request with, or None if it may pass."""
    if problem := _problem_of_form(request):
        return rpc_error(id_of(request), errors.Malformed(problem), -32600)
    if request["method"] not in ALLOWED:
        error = errors.Forbidden(f"the method {request['method']!r} is not offered here")
        return rpc_error(id_of(request), error, -32601)
    parameters = request.get("params", [])
    if not isinstance(parameters, list) or len(parameters) > MAX_PARAMETERS:
        problem = f"params is a list of at most {MAX_PARAMETERS}"
        return rpc_error(id_of(request), errors.Malformed(problem), -32602)
    return None


def _problem_of_form(request: Json) -> str:
    if not isinstance(request, dict) or request.get("jsonrpc") != "2.0":
        return "not a JSON-RPC 2.0 request"
    method = request.get("method")
    if not isinstance(method, str) or len(method) > MAX_METHOD_CHARACTERS:
        return "a request names a method"
    if id_of(request) is None:
        return "a request has an id: a short text or a 64-bit integer"
    return ""


class Gateway:
    """The proxy: bytes in, an answer out."""

    def __init__(self, upstream: Upstream, *, at_once: int = MAX_AT_ONCE) -> None:
        self._upstream = upstream
        self._free = at_once

    async def answer(self, body: bytes) -> Answer:
        """Answer one HTTP body; every failure is an answer too."""
        try:
            request = parse(body)
            batch = request if isinstance(request, list) else [request]
            if len(batch) > MAX_BATCH:
                raise errors.TooLarge(f"a batch has at most {MAX_BATCH} calls", limit=MAX_BATCH)
            if not batch:
                raise errors.Malformed("an empty batch")
            answers = await self._answer_all(batch)
        except errors.TooLarge as error:
            return Answer(413, rpc_error(None, error, -32005))
        except errors.Malformed as error:
            return Answer(400, rpc_error(None, error, -32700))
        except errors.Overloaded as error:
            return Answer(503, rpc_error(None, error, -32005))
        except errors.Unavailable as error:
            return Answer(503, rpc_error(None, error, -32002))
        if isinstance(request, list):
            return Answer(200, answers)
        malformed = answers[0].get("error", {}).get("code") == -32600
        return Answer(400 if malformed else 200, answers[0])

    async def _answer_all(self, batch: list[Json]) -> list[Json]:
        refusals = [refusal(request) for request in batch]
        passing = [r for r, refused in zip(batch, refusals, strict=True) if refused is None]
        passed = iter(await self._forward(passing)) if passing else iter(())
        return [next(passed) if refused is None else refused for refused in refusals]

    async def _forward(self, requests: list[Json]) -> list[Json]:
        if self._free <= 0:
            raise errors.Overloaded("too many calls at once; try again")
        self._free -= 1
        try:
            # Ids are ours on the way, so that two equal ones in a batch are kept apart.
            numbered = [{**request, "id": n} for n, request in enumerate(requests)]
            answered = await self._upstream(numbered)
        finally:
            self._free += 1
        by_number = {a.get("id"): a for a in answered if isinstance(a, dict)}
        if set(by_number) != set(range(len(requests))):
            raise errors.ChainUnreachable("the chain left calls of a batch unanswered")
        return [{**by_number[n], "id": id_of(r)} for n, r in enumerate(requests)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        answer = await self._answer_http(Request(scope, receive))
        # Of a body that came too slowly or is too long, the rest is not read.
        headers = {"connection": "close"} if answer.status in (405, 408, 413) else None
        response = Response(encode(answer.body), answer.status, headers, "application/json")
        await response(scope, receive, send)

    async def _answer_http(self, request: Request) -> Answer:
        if request.method != "POST":
            error = errors.Malformed("JSON-RPC is asked by POST")
            return Answer(405, rpc_error(None, error, -32600))
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _up_to(MAX_BODY_BYTES, request.stream())
        except TimeoutError:
            error = errors.Malformed(f"no whole body within {BODY_SECONDS:.0f} s")
            return Answer(408, rpc_error(None, error, -32600))
        except ClientDisconnect:
            body = b""  # nobody hears the answer
        return await self.answer(body)


async def _up_to(limit: int, parts: AsyncIterable[bytes]) -> bytes:
    """All parts, cut off right above `limit` bytes."""
    data = bytearray()
    async for part in parts:
        data += part
        if len(data) > limit:
            break
    return bytes(data)


@dataclass(frozen=True)
class HttpUpstream:
    """The chain over HTTP."""

    client: httpx.AsyncClient
    url: str

    async def __call__(self, requests: Json) -> Json:
        """See `Upstream`."""
        try:
            async with self.client.stream(
                "POST", self.url, content=encode(requests), headers=_JSON
            ) as response:
                data = await _up_to(MAX_ANSWER_BYTES, response.aiter_bytes())
            if len(data) > MAX_ANSWER_BYTES:
                raise errors.TooLarge(
                    f"an answer over {MAX_ANSWER_BYTES} bytes", limit=MAX_ANSWER_BYTES
                )
            return json.loads(data)
        except (httpx.HTTPError, ValueError) as error:
            raise errors.ChainUnreachable(
                f"the chain does not answer: {type(error).__name__}"
            ) from error


async def serve(port: int, upstream_url: str, *, listen: str = "") -> None:
    """Serve on loopback, and on the address `listen` if there is one, until SIGTERM."""
    hosts = dict.fromkeys(filter(None, ("127.0.0.1", listen)))
    sockets = [socket.create_server((host, port), backlog=2048) for host in hosts]
    async with async_client(upstream_url, timeout=UPSTREAM_SECONDS) as client:
        configuration = uvicorn.Config(
            Gateway(HttpUpstream(client, upstream_url)),
            lifespan="off",
            access_log=False,
            log_level="warning",
            ws="none",
            timeout_graceful_shutdown=3,
        )
        await uvicorn.Server(configuration).serve(sockets)


def main() -> None:
    """Run as a process."""
    port, listen = os.environ["TALLYSTICK_GATEWAY_PORT"], os.environ["TALLYSTICK_GATEWAY_LISTEN"]
    with contextlib.suppress(KeyboardInterrupt):
        upstream = os.environ["TALLYSTICK_GATEWAY_UPSTREAM"]
        uvloop.run(serve(int(port), upstream, listen=listen))


if __name__ == "__main__":
    main()
