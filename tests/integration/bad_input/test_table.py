"""Requests that only a bad program sends: each with its code, what is told, and nothing moved.

What a person can write wrong is in the other tests here; what each route refuses, with the market.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from contracts.terms.errors import TallystickError, error_class
from contracts.terms.moments import UnixSeconds
from contracts.terms.typed_data import Domain
from market.api.problems import STATUS, status_of
from market.bodies.base import Problem, read_body
from market.bodies.jobs import Permit, PostJob
from market.bodies.offers import Withdrawal
from market.bodies.routes import DELETE_OFFER, POST_JOB
from market.bodies.signing import withdrawal_digest
from tallystick.cli.main import EXIT_CODES, exit_code
from tallystick.sdk.client import MarketClient
from tests.integration.bad_input.posting import Poster, poster_at
from tests.support.history import DOMAIN, make_session, make_wallet
from tests.support.market_world import market_spec, sign_digest

PERMIT = Permit(deadline=UnixSeconds(4_000_000_000), signature=bytes(65))


@dataclass(frozen=True)
class Place:
    """A poster at a market, a client of that market, and somebody else's program."""

    poster: Poster
    client: MarketClient
    http: httpx.AsyncClient


def refuse(answer: httpx.Response) -> None:
    """Raise the problem that came back."""
    problem = read_body(Problem, answer.content)
    cls = error_class(problem.code)
    assert answer.status_code == STATUS.get(cls, status_of(cls)), problem
    raise cls(problem.detail)


async def job_signed_for_another_chain(place: Place) -> None:
    spec, elsewhere = market_spec(), Domain(DOMAIN.chain_id + 1, DOMAIN.escrow)
    await place.poster.world.give_tokens(spec, "poster")
    signed = make_wallet("poster").sign(spec, elsewhere).encoded()
    await place.client.call(POST_JOB, PostJob(signed=signed, permit=PERMIT), key="k")


async def offer_withdrawn_by_another(place: Place) -> None:
    offer = await place.poster.world.offer("ann", 10**10)
    signature = sign_digest(make_session("eve"), withdrawal_digest(offer))
    await place.client.call(DELETE_OFFER, Withdrawal(signature=signature), offer=offer)


async def body_that_does_not_say_how_large_it_is(place: Place) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(17):
            yield bytes(2**16)

    refuse(await place.http.post("/offers", content=pieces()))


async def key_of_another_request(place: Place) -> None:
    one, other = (json.dumps({"account": "11" * 20}, indent=n).encode() for n in (None, 1))
    await place.http.post("/faucet", content=one, headers={"Idempotency-Key": "k"})
    refuse(await place.http.post("/faucet", content=other, headers={"Idempotency-Key": "k"}))


@pytest.mark.parametrize(
    ("attempt", "code", "told"),
    [
        (job_signed_for_another_chain, "bad_signature", ""),
        (offer_withdrawn_by_another, "bad_signature", ""),
        (body_that_does_not_say_how_large_it_is, "too_large", "more than"),
        (key_of_another_request, "conflict", "another request"),
    ],
)
async def test_request__of_a_bad_program__has_its_code_and_moves_nothing(
    attempt: Callable[[Place], Awaitable[None]], code: str, told: str, tmp_path: Path
) -> None:
    poster = await poster_at(tmp_path)
    wire = poster.wire()
    async with (
        MarketClient("http://market", transport=wire) as client,
        httpx.AsyncClient(transport=wire, base_url="http://market/v1") as http,
    ):
        with pytest.raises(TallystickError) as refused:
            await attempt(Place(poster, client, http))

    error = refused.value
    assert (error.code, exit_code(error)) == (code, EXIT_CODES.get(code, 2)), error
    assert told in str(error) and len(str(error)) > 10
    assert await poster.jobs() == [] and poster.world.chain.state.places == {}
