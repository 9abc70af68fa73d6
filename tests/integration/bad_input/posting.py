"""A poster at a market, over a wire that is cut where a test says.

The market is the real API over the memory twins; it works (funds jobs, gives from the faucet)
whenever it was asked something, so what a poster meets after an interruption is what has come of
his first call.
"""

import asyncio
import functools
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from contracts.keys.store import load_or_create_wallet
from contracts.keys.wallet import Wallet
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import keccak
from contracts.terms.ids import ZERO_ADDRESS, ZERO_DIGEST, Address, Digest, JobId
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from contracts.terms.signatures import decode_signed, expect, recover
from contracts.terms.typed_data import PERMIT
from market.api.app import make_app
from market.api.context import Api
from market.bodies.base import Problem, read_body
from market.bodies.jobs import PostJob
from market.bodies.market import NetworkView
from market.bodies.signing import hosting_digest
from market.service.host_jobs import register_host
from market.service.rows import JobRow
from tallystick.sdk.client import MarketClient
from tallystick.sdk.job_file import JobFile, parse_job_file
from tallystick.sdk.plan import Plan
from tallystick.sdk.submit import Consent, Submitted, submit
from tests.integration.bad_input.servers import empty_world
from tests.integration.bad_input.verbs import write_job
from tests.support.history import START, make_wallet
from tests.support.market_world import World

JOB: dict[str, Any] = {
    "name": "a job",
    "recipe": "micro",
    "budget": 10,
    "price_ceiling": 2_000_000,
    "deadline": "1h",
}


@functools.cache
def application() -> FastAPI:
    """The application, which holds one market after the other."""
    return make_app()


class Killed(BaseException):
    """The process ended here: no handler may run."""


@dataclass
class Wire(httpx.AsyncBaseTransport):
    """Carries requests to the application; cut once, before or after a request of its number."""

    api: Api
    world: World
    cut: int = -1
    is_answer_lost: bool = False
    asked: list[str] = field(default_factory=list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`."""
        number = len(self.asked)
        self.asked.append(f"{request.method} {request.url.path.split('/')[2]}")
        if number == self.cut and not self.is_answer_lost:
            raise Killed
        app = application()
        app.state.api = self.api
        carrier = httpx.ASGITransport(app)
        answering = asyncio.ensure_future(carrier.handle_async_request(request))
        if not request.url.path.endswith("/faucet"):
            await answering
        while not answering.done():  # the faucet answers once the market has worked
            await asyncio.wait({answering}, timeout=0.01)
            await self.world.tick()
            await self.api.market.wakeup.wake(["given"])
        answer = answering.result()
        if number == self.cut:
            raise Killed
        return answer


@dataclass
class Denying(Wire):
    """A market that takes orders and answers what it likes; of its jobs it may know none."""

    answer: httpx.Response = field(default_factory=lambda: refusal(409, "conflict"))
    is_hiding: bool = True

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`."""
        asked = (request.method, request.url.path.split("/")[2:])
        answer = await super().handle_async_request(request)
        match asked:
            case "POST", ["jobs"]:
                return self.answer
            case "GET", ["jobs", _] if self.is_hiding:
                return refusal(404, "not_found")
        return answer


@dataclass
class Lying(Wire, ABC):
    """A market that says another thing of its network."""

    @abstractmethod
    def said(self, view: NetworkView) -> NetworkView:
        """What it says."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`."""
        answer = await super().handle_async_request(request)
        if request.url.path != "/v1/network":
            return answer
        view = self.said(read_body(NetworkView, await answer.aread()))
        return httpx.Response(200, content=view.json_bytes())


@dataclass
class Renaming(Lying):
    """It says that its token's permits are signed under another domain."""

    separator: Digest = ZERO_DIGEST
    signed_for_it: list[Address] = field(default_factory=list)
    """Whose wallets signed permits that hold under that domain."""
    _escrow: Address = ZERO_ADDRESS

    def said(self, view: NetworkView) -> NetworkView:
        """Another separator."""
        self._escrow = view.contracts.escrow
        token = view.token.model_copy(update={"domain_separator": self.separator})
        return view.model_copy(update={"token": token})

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`."""
        if request.method == "POST" and request.url.path == "/v1/jobs":
            posted = read_body(PostJob, await request.aread())
            spec, permit = expect(decode_signed(posted.signed), JobSpec).message, posted.permit
            values = (spec.poster, self._escrow, spec.budget, 0, permit.deadline)
            signed = keccak(b"\x19\x01" + self.separator + PERMIT.hash(values))
            self.signed_for_it.append(recover(signed, permit.signature))
        return await super().handle_async_request(request)


@dataclass
class Moving(Lying):
    """It names another first block, and other contracts beside the escrow."""

    def said(self, view: NetworkView) -> NetworkView:
        """Another place."""
        contracts = view.contracts.model_copy(update={"seals": Address(b"s" * 20)})
        return view.model_copy(update={"genesis": Digest(b"m" * 32), "contracts": contracts})


def refusal(status: int, code: str) -> httpx.Response:
    """A problem of this code, as a market answers."""
    problem = Problem(
        type="about:blank", title=code, status=status, detail=code, code=code, data={}
    )
    return httpx.Response(status, content=problem.json_bytes())


@dataclass
class Poster:
    """Somebody with a wallet, a job file and a folder for orders."""

    world: World
    folder: Path
    wallet: Wallet = field(default_factory=lambda: make_wallet("poster"))
    now: int = 0

    @property
    def orders(self) -> list[Path]:
        """What is stored of orders."""
        return sorted((self.folder / "orders").glob("[0-9a-f]*.json"))

    def job(self, **changed: Any) -> JobFile:
        """The job file, with these changes."""
        return parse_job_file({**JOB, "data": str(self.folder / "*.txt"), **changed})

    def wire(self, cut: int = -1, *, is_answer_lost: bool = False) -> Wire:
        """A wire to the market."""
        return Wire(self.world.api(), self.world, cut, is_answer_lost)

    async def post(
        self,
        job: JobFile,
        wire: Wire | None = None,
        *,
        unmatched: bool = False,
        again: bool = False,
        agree: Callable[[Plan], None] = lambda plan: None,
    ) -> Submitted:
        """`job submit` over this wire, or a whole one."""
        now = UnixSeconds(self.now or self.world.chain.now)
        async with MarketClient("http://market", transport=wire or self.wire()) as client:
            return await submit(
                client,
                self.wallet,
                job,
                orders=self.folder / "orders",
                data=self.folder / "data",
                now=now,
                consent=Consent(agree, again=again, unmatched=unmatched),
            )

    async def more_coordinators(self, count: int) -> None:
        """The market's host has so many more."""
        await _host(self.world, [secrets.token_hex(4) for _ in range(count)])

    async def end(self, job: JobId) -> None:
        """The job is over: all went back."""
        async with self.world.new_work() as work:
            row = await work[JobRow].get(job)
            assert row is not None
            await work[JobRow].put(replace(row, state="closed"))

    async def jobs(self) -> list[JobRow]:
        """What the market holds."""
        return await self.world.rows(JobRow)

    @property
    def tokens(self) -> int:
        """What the wallet holds, in base units."""
        return self.world.chain.state.tokens[self.wallet.account]


async def poster_at(folder: Path, *, num_coordinators: int = 1, began: int = START) -> Poster:
    """A poster with text to train on, and a market whose host has that many coordinators.

    A chain that began at another moment has another first block, and the same addresses.
    """
    folder.mkdir(exist_ok=True)
    write_job(folder)
    world = empty_world(began)
    await _host(world, [str(number) for number in range(num_coordinators)])
    return Poster(world, folder)


async def _host(world: World, names: list[str]) -> None:
    wallets = [make_wallet(f"coordinator {name}") for name in names]
    signed = [
        (wallet.account, wallet.sign_digest(hosting_digest("host", wallet.account)))
        for wallet in wallets
    ]
    await register_host("host", signed, world.now, world.new_work())


async def world_of_a_person(folder: Path, *, num_coordinators: int) -> World:
    """A market by this machine's clock, and a folder of somebody who types: job file and wallet."""
    write_job(folder)
    world = (await poster_at(folder / "market", num_coordinators=num_coordinators)).world
    world.chain.now = int(time.time())
    poster = load_or_create_wallet(folder / "home" / "poster.json")
    world.chain.give_tokens(poster.account, BaseUnits(1000 * 10**6))
    return world


async def escrows(world: World) -> dict[JobId, int]:
    """Base units in escrow, by job, once the market has paid in all that it was posted."""
    for _ in range(3):
        await world.tick()
    rows = await world.rows(JobRow)
    return {row.job: (await world.chain.budget(row.job)).funded for row in rows}
