"""Bad input, one row each: what it is, the exact code of its refusal, and what the caller is told.

A row tries the real thing: the SDK over the real API, or a session between two peers.
What needs processes of its own (servers, agents, a full disk) has its test elsewhere.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.keys.wallet import Wallet
from contracts.terms.encoding import decode, encode
from contracts.terms.errors import TallystickError, error_class
from contracts.terms.ids import Digest
from contracts.terms.messages import Message
from contracts.terms.moments import UnixMillis, UnixSeconds
from contracts.terms.typed_data import Domain
from market.api.problems import STATUS, status_of
from market.bodies.base import MAX_JSON_BYTES, Problem, SignedBody, read_body
from market.bodies.jobs import Permit, PostJob, QuoteRequest
from market.bodies.offers import Heartbeat, Withdrawal
from market.bodies.routes import (
    DELETE_OFFER,
    GET_NETWORK,
    POST_JOB,
    POST_OFFER,
    POST_OFFER_HEARTBEAT,
    POST_QUOTE,
)
from market.bodies.signing import heartbeat_digest, withdrawal_digest
from tallystick.cli.main import exit_code
from tallystick.sdk.client import MarketClient
from tallystick.sdk.job_file import load_job_file
from tests.integration.bad_input.posting import Poster, poster_at
from tests.integration.bad_input.servers import NOBODY
from tests.integration.transport.harness import DEADLINE, MemoryNet, connected
from tests.support.history import DOMAIN, START, make_session, make_wallet
from tests.support.market_world import market_spec, sign_digest
from tests.support.patience import patience
from training.transport.calls import METHODS
from training.transport.wire import Methods

PERMIT = Permit(deadline=UnixSeconds(4_000_000_000), signature=bytes(65))
GOOD = "name: a\nbudget: 10\nprice_ceiling: 2000\ndeadline: 1h\n"
ELSEWHERE_CHAIN = Domain(DOMAIN.chain_id + 1, DOMAIN.escrow)
TEN_MINUTES = 600

Attempt = Callable[["Place"], Awaitable[object]]


@dataclass(frozen=True)
class Place:
    """A poster with a folder at a market, and a client of that market."""

    poster: Poster
    client: MarketClient
    http: httpx.AsyncClient

    def file(self, text: str) -> Path:
        """A job file with this text."""
        path = self.poster.folder / "job.yaml"
        path.write_text(text)
        return path

    async def post(self, wallet: Wallet, domain: Domain = DOMAIN) -> None:
        """Post a job of the poster's that `wallet` has signed for the chain of `domain`."""
        spec = market_spec()
        await self.poster.world.give_tokens(spec, "poster")
        signed = wallet.sign(spec, domain).encoded()
        body = PostJob(signed=signed, permit=PERMIT)
        await self.client.call(POST_JOB, body, key="k")

    async def ask(self, method: str, path: str, content: bytes, **headers: str) -> None:
        """A request as somebody else's program may send it; raises the problem that comes back."""
        answer = await self.http.request(method, path, content=content, headers=headers)
        problem = read_body(Problem, answer.content)
        cls = error_class(problem.code)
        assert answer.status_code == STATUS.get(cls, status_of(cls)), problem
        raise cls(problem.detail)


@dataclass(frozen=True)
class Row:
    """A kind of bad input; `told` is what the caller reads, so that it knows what to do."""

    what: str
    code: str
    exit: int
    told: str
    attempt: Attempt


# -------------------------------------------------------------------------------- what is attempted


def job_file(text: str) -> Attempt:
    async def attempt(place: Place) -> None:
        load_job_file(place.file(text)).train_config()

    return attempt


def posted(**changed: Any) -> Attempt:
    async def attempt(place: Place) -> None:
        await place.poster.post(place.poster.job(**changed))

    return attempt


async def no_offer_has_the_memory(place: Place) -> None:
    await place.poster.world.offer("ann", 10**10, memory_bytes=2**20)
    await place.poster.post(place.poster.job())


async def no_json(place: Place) -> None:
    await place.ask("POST", "/jobs/quote", b"{")


async def another_signed_it(place: Place) -> None:
    await place.post(make_wallet("eve"))


async def signed_for_another_chain(place: Place) -> None:
    await place.post(make_wallet("poster"), ELSEWHERE_CHAIN)


async def withdrawn_by_another(place: Place) -> None:
    offer = await place.poster.world.offer("ann", 10**10)
    signature = sign_digest(make_session("eve"), withdrawal_digest(offer))
    await place.client.call(DELETE_OFFER, Withdrawal(signature=signature), offer=offer)


async def heartbeat(place: Place, offer: Digest, at: UnixMillis) -> None:
    signature = sign_digest(make_session("agent ann"), heartbeat_digest(offer, at))
    await place.client.call(
        POST_OFFER_HEARTBEAT, Heartbeat(at=at, signature=signature), offer=offer
    )


async def replayed_heartbeat(place: Place) -> None:
    offer = await place.poster.world.offer("ann", 10**10)
    at = UnixMillis(place.poster.world.now + 1)
    await heartbeat(place, offer, at)
    await heartbeat(place, offer, at)


async def heartbeat_of_a_clock_ten_minutes_off(place: Place) -> None:
    offer = await place.poster.world.offer("ann", 10**10)
    await heartbeat(place, offer, UnixMillis(place.poster.world.now + TEN_MINUTES * 1000))


async def offer_that_is_over(place: Place) -> None:
    await place.poster.world.stake("ann")
    offer = place.poster.world.sign_offer("ann", 1, expires_at=UnixSeconds(START - 1))
    await place.client.call(POST_OFFER, SignedBody(signed=offer.encoded()))


async def body_over_a_megabyte(place: Place) -> None:
    await place.ask("POST", "/offers", b" " * (MAX_JSON_BYTES + 1))


async def body_that_says_it_is_small(place: Place) -> None:
    async def pieces() -> Any:
        for _ in range(17):
            yield bytes(2**16)

    answer = await place.http.post("/offers", content=pieces())
    problem = read_body(Problem, answer.content)
    raise error_class(problem.code)(problem.detail)


async def tensor_over_the_bound(_: Place) -> None:
    name = next(name for name, each in METHODS.items() if each.max_tensors)
    most = METHODS[name].max_tensor_bytes
    liberal = Methods([replace(METHODS[name], max_tensor_bytes=most + 1)])
    net = MemoryNet()
    _one, _two, session = await connected(net, server_methods=METHODS, client_methods=liberal)
    try:
        await session.call(name, b"", [bytes(most + 1)], deadline=DEADLINE)
    finally:
        await net.close()


def of_version(message: Message, kind: str) -> bytes:
    value = decode(message.encoded(), max_bytes=2**20)
    assert isinstance(value, dict)
    return encode(value | {"kind": kind})


async def spec_of_tomorrow(place: Place) -> None:
    await place.client.call(
        POST_QUOTE, QuoteRequest(spec=of_version(market_spec(), "job_spec.v99"))
    )


async def nobody_there(_: Place) -> None:
    async with MarketClient(NOBODY, timeout=timedelta(seconds=patience(5))) as client:
        await client.call(GET_NETWORK)


async def same_key_for_another_request(place: Place) -> None:
    await place.poster.post(place.poster.job())
    one, other = (json.dumps({"account": "11" * 20}, indent=n).encode() for n in (None, 1))
    await place.http.post("/faucet", content=one, headers={"Idempotency-Key": "k"})
    await place.ask("POST", "/faucet", other, **{"Idempotency-Key": "k"})


LARGE = {"model": {"width": 1024, "num_layers": 8, "ffn_width": 4096}}

TABLE = (
    Row(
        "job file: unknown key",
        "malformed",
        2,
        "line 5: budgt: unknown field 'budgt'; did you mean 'budget'?",
        job_file(GOOD + "budgt: 1\n"),
    ),
    Row("body that is no JSON", "malformed", 2, "Invalid JSON", no_json),
    Row(
        "job that its budget does not cover",
        "unaffordable",
        5,
        "its budget is 10.000000",
        posted(price_ceiling=10**10),
    ),
    Row(
        "wallet that holds less than the budget",
        "unaffordable",
        5,
        "lower the budget or send tokens",
        posted(budget=5000),
    ),
    Row("missing path: data", "not_found", 3, "/nowhere", posted(data="/nowhere/*.txt")),
    Row(
        "stage that fits no memory a peer has",
        "refused",
        2,
        "use more stages",
        posted(**LARGE, peer_memory="1MiB"),
    ),
    Row(
        "stage that fits the memory of no offer",
        "no_match",
        5,
        "memory 0.000977 GiB",
        no_offer_has_the_memory,
    ),
    Row("wrong signature: job", "bad_signature", 4, "", another_signed_it),
    Row("wrong signature: withdrawal", "bad_signature", 4, "", withdrawn_by_another),
    Row("replayed message", "expired", 4, "said before", replayed_heartbeat),
    Row("expired message", "expired", 4, "the offer's window is over", offer_that_is_over),
    Row("oversized body, announced", "too_large", 2, "at most 1048576", body_over_a_megabyte),
    Row("oversized body, unannounced", "too_large", 2, "more than", body_that_says_it_is_small),
    Row("oversized tensor", "too_large", 2, "", tensor_over_the_bound),
    Row("unknown version", "unknown_version", 2, "job_spec.v99", spec_of_tomorrow),
    Row("wrong chain id: signature", "bad_signature", 4, "", signed_for_another_chain),
    Row(
        "clock off by ten minutes: heartbeat",
        "expired",
        4,
        "two minutes",
        heartbeat_of_a_clock_ten_minutes_off,
    ),
    Row("unreachable URL", "service_unreachable", 8, NOBODY, nobody_there),
    Row(
        "Idempotency-Key of another request", "conflict", 6, "another request",
        same_key_for_another_request,
    ),
)  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.what)
async def test_bad_input__row__has_its_code_and_a_remedy_and_moves_nothing(
    row: Row, tmp_path: Path
) -> None:
    poster = await poster_at(tmp_path)
    wire = poster.wire()
    async with (
        MarketClient("http://market", transport=wire) as client,
        httpx.AsyncClient(transport=wire, base_url="http://market/v1") as http,
    ):
        with pytest.raises(TallystickError) as refused:
            await row.attempt(Place(poster, client, http))

    error = refused.value
    assert (error.code, exit_code(error)) == (row.code, row.exit), error
    assert row.told in str(error) and len(str(error)) > 10
    if row.attempt is not same_key_for_another_request:  # which posts one that is right first
        assert await poster.jobs() == [] and poster.world.chain.state.places == {}
