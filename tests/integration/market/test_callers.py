"""Who gets in by a signed message or a key, and who does not: each refusal with its code."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI
from siwe import ISO8601Datetime, SiweMessage

from contracts.keys.wallet import Wallet
from contracts.terms.errors import Forbidden
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from market.api.app import make_app
from market.api.callers import Caller, caller
from market.api.context import Api
from market.bodies import (
    SESSION_COOKIE,
    CallerView,
    CreateKey,
    KeyCreated,
    KeysView,
    NonceView,
    Problem,
    SessionOpened,
    SignIn,
    read_body,
)
from market.service.rows import ApiKeyRow, SignInRow
from market.service.sign_in import SESSION_MILLIS
from tallystick.sdk.client import MarketClient
from tallystick.sdk.sign_in import checksummed
from tests.integration.market.client import ON_MEMORY
from tests.support.history import DOMAIN, make_wallet
from tests.support.market_world import World

SITE = "http://127.0.0.1:8420"
ANN = make_wallet("ann")


@dataclass
class Door:
    """An application with one route that needs the scope `jobs`, and its client."""

    world: World
    app: FastAPI = field(init=False)
    client: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        self.app = make_app(self.world.api())

        @self.app.post("/v1/steer")
        async def steer(who: Annotated[Caller, caller("jobs")]) -> str:
            return who.account.hex()

        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url=SITE + "/v1")

    def api(self) -> Api:
        """What the application holds."""
        api = self.app.state.api
        assert isinstance(api, Api)
        return api

    async def nonce(self) -> NonceView:
        """A fresh nonce."""
        return read_body(NonceView, (await self.client.post("/session/nonce")).content)

    async def message(self, /, wallet: Wallet = ANN, **changed: Any) -> SiweMessage:
        """A message that is let in, but for what was changed."""
        values: dict[str, object] = {
            "domain": "127.0.0.1:8420",
            "address": checksummed(wallet.account),
            "uri": SITE,
            "version": "1",
            "chain_id": DOMAIN.chain_id,
            "nonce": (await self.nonce()).nonce,
            "issued_at": moment(self.world.now),
        }
        return SiweMessage(**(values | changed))

    async def post(self, message: SiweMessage, wallet: Wallet = ANN) -> httpx.Response:
        """Sign and send a message."""
        text = message.prepare_message()
        return await self.send(text, wallet.sign_text(text))

    async def send(self, text: str, signature: bytes, **headers: str) -> httpx.Response:
        """Send a text with a signature."""
        body = SignIn(message=text, signature=signature).json_bytes()
        return await self.client.post("/session", content=body, headers=headers)

    async def open(self) -> SessionOpened:
        """Sign in."""
        response = await self.post(await self.message())
        assert response.status_code == 201, response.text
        return read_body(SessionOpened, response.content)

    async def make_key(self, session: SessionOpened, *scopes: str) -> KeyCreated:
        """A key of a session's account."""
        ends = UnixMillis(self.world.now + 3_600_000)
        body = CreateKey.model_validate(
            {"name": f"key {scopes}", "scopes": scopes, "expires_at": ends}
        )
        response = await self.client.post(
            "/keys", content=body.json_bytes(), headers=bearer(session.token)
        )
        assert response.status_code == 201, response.text
        return read_body(KeyCreated, response.content)


@pytest.fixture
def door(world: World) -> Door:
    """An application that one can sign in to."""
    return Door(world)


def moment(at: int) -> str:
    return str(ISO8601Datetime.from_datetime(datetime.fromtimestamp(at / 1000, UTC)))


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, read_body(Problem, response.content).code


# --------------------------------------------------------------------------------------- sessions


async def test_session__signed_message__token_names_its_account(door: Door) -> None:
    opened = await door.open()
    door.client.cookies.clear()

    response = await door.client.get("/session", headers=bearer(opened.token))

    assert read_body(CallerView, response.content) == CallerView(
        account=ANN.account,
        by="session",
        scopes=("read", "jobs", "blobs"),
        expires_at=UnixMillis(opened.expires_at),
    )
    assert door.world.now < opened.expires_at <= door.world.now + SESSION_MILLIS


async def test_session__stored__is_not_the_token(door: Door) -> None:
    opened = await door.open()
    key = await door.make_key(opened, "read")

    async with door.world.new_work() as work:
        rows = [*await work[SignInRow].where(), *await work[ApiKeyRow].where()]

    assert opened.token not in repr(rows) and key.token not in repr(rows)


async def test_session__signed_out__holds_no_longer_and_its_nonce_neither(door: Door) -> None:
    message = await door.message()
    opened = read_body(SessionOpened, (await door.post(message)).content)
    door.client.cookies.clear()

    done = await door.client.delete("/session", headers=bearer(opened.token))
    after = await door.client.get("/session", headers=bearer(opened.token))
    again = await door.post(message)

    assert done.status_code == 204
    assert code(after) == (401, "bad_signature")
    assert after.headers["www-authenticate"] == "Bearer"
    assert code(again) == (410, "expired")


async def test_session__a_day_later__is_over_and_swept_by_the_next(door: Door) -> None:
    opened = await door.open()
    door.client.cookies.clear()
    door.world.wait(25 * 3600)

    response = await door.client.get("/session", headers=bearer(opened.token))
    await door.open()
    async with door.world.new_work() as work:
        left = await work[SignInRow].where()

    assert code(response) == (401, "bad_signature")
    assert len(left) == 1


async def test_session__message_says_when_it_ends__ends_then(door: Door) -> None:
    ends = door.world.now + 60_000
    response = await door.post(await door.message(expiration_time=moment(ends)))

    assert read_body(SessionOpened, response.content).expires_at == ends


Change = Callable[[Door], dict[str, Any]]
REFUSED: list[tuple[str, Change, tuple[int, str]]] = [
    ("chain", lambda door: {"chain_id": 1}, (401, "wrong_chain")),
    ("domain", lambda door: {"domain": "evil.example"}, (401, "bad_signature")),
    ("uri", lambda door: {"uri": "http://127.0.0.1:84201/"}, (401, "bad_signature")),
    ("scheme", lambda door: {"scheme": "https"}, (401, "bad_signature")),
    ("nonce", lambda door: {"nonce": "1" * 60}, (401, "bad_signature")),
    ("short nonce", lambda door: {"nonce": "12345678"}, (401, "bad_signature")),
    (
        "address",
        lambda door: {"address": checksummed(make_wallet("bob").account)},
        (401, "bad_signature"),
    ),
    (
        "slow clock",
        lambda door: {"issued_at": moment(door.world.now - 600_000)},
        (410, "expired"),
    ),
    (
        "fast clock",
        lambda door: {"issued_at": moment(door.world.now + 600_000)},
        (410, "expired"),
    ),
    (
        "expired",
        lambda door: {"expiration_time": moment(door.world.now - 1000)},
        (410, "expired"),
    ),
    ("early", lambda door: {"not_before": moment(door.world.now + 9000)}, (410, "expired")),
]


@ON_MEMORY
@pytest.mark.parametrize(
    ("change", "expected"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED]
)
async def test_sign_in__message_for_something_else__is_refused(
    door: Door, change: Change, expected: tuple[int, str]
) -> None:
    response = await door.post(await door.message(**change(door)))

    assert code(response) == expected
    async with door.world.new_work() as work:
        assert await work[SignInRow].where() == []


@ON_MEMORY
async def test_sign_in__clock_within_two_minutes__is_let_in(door: Door) -> None:
    for skew in (-110_000, 110_000):
        response = await door.post(await door.message(issued_at=moment(door.world.now + skew)))
        assert response.status_code == 201


async def test_sign_in__same_message_twice__is_replayed(door: Door) -> None:
    message = await door.message()

    first, second = await door.post(message), await door.post(message)

    assert first.status_code == 201
    assert code(second) == (410, "expired")


@ON_MEMORY
async def test_sign_in__nonce_of_six_minutes_ago__is_over(door: Door) -> None:
    nonce = (await door.nonce()).nonce
    door.world.wait(6 * 60)

    response = await door.post(await door.message(nonce=nonce))

    assert code(response) == (410, "expired")


@ON_MEMORY
@pytest.mark.parametrize("text", ["", "x", "a" * 1500, "\n" * 700, "URI: " * 300, "\ud83d\ude00"])
async def test_sign_in__no_such_message__is_malformed(door: Door, text: str) -> None:
    body = {"message": text.encode("utf-8", "replace").decode(), "signature": "00" * 65}

    response = await door.client.post("/session", json=body)

    assert code(response) == (400, "malformed")


@ON_MEMORY
async def test_sign_in__signature_of_nothing__is_refused(door: Door) -> None:
    text = (await door.message()).prepare_message()

    for signature in (bytes(65), b"\xff" * 65, make_wallet("bob").sign_text(text)):
        assert code(await door.send(text, signature)) == (401, "bad_signature")


# ---------------------------------------------------------------------------------------- cookies


@ON_MEMORY
async def test_cookie__on_this_machine__is_for_this_site_alone(door: Door) -> None:
    response = await door.post(await door.message())

    cookie = response.headers["set-cookie"]
    assert cookie.startswith(f"{SESSION_COOKIE}=tss_")
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/" in cookie
    assert "Secure" not in cookie


@ON_MEMORY
async def test_cookie__elsewhere__is_secure(door: Door) -> None:
    door.api().sites = ("https://market.example",)
    message = await door.message(domain="market.example", uri="https://market.example/market")

    response = await door.post(message)

    assert "Secure" in response.headers["set-cookie"]


@ON_MEMORY
async def test_cookie__changes_something__needs_the_origin_of_this_site(door: Door) -> None:
    await door.open()  # the client keeps the cookie

    seen = await door.client.get("/session")
    without = await door.client.post("/steer")
    foreign = await door.client.post("/steer", headers={"Origin": "https://evil.example"})
    sandboxed = await door.client.post("/steer", headers={"Origin": "null"})
    own = await door.client.post("/steer", headers={"Origin": SITE})

    assert seen.status_code == 200
    assert [code(each) for each in (without, foreign, sandboxed)] == [(403, "forbidden")] * 3
    assert own.json() == ANN.account.hex()


@ON_MEMORY
async def test_sign_in__from_a_foreign_page__is_refused(door: Door) -> None:
    text = (await door.message()).prepare_message()

    response = await door.send(text, ANN.sign_text(text), Origin="https://evil.example")

    assert code(response) == (403, "forbidden")


# ------------------------------------------------------------------------------------------- keys


async def test_key__made_listed_deleted__holds_in_between(door: Door) -> None:
    session = await door.open()
    door.client.cookies.clear()
    made = await door.make_key(session, "read", "jobs")

    listed = await door.client.get("/keys", headers=bearer(session.token))
    used = await door.client.post("/steer", headers=bearer(made.token))
    gone = await door.client.delete(f"/keys/{made.key.hex()}", headers=bearer(session.token))
    again = await door.client.delete(f"/keys/{made.key.hex()}", headers=bearer(session.token))
    after = await door.client.post("/steer", headers=bearer(made.token))

    assert [each.key for each in read_body(KeysView, listed.content).keys] == [made.key]
    assert made.token not in listed.text
    assert used.json() == ANN.account.hex()
    assert gone.status_code == 204
    assert code(again) == (404, "not_found")
    assert code(after) == (401, "bad_signature")


@ON_MEMORY
async def test_key__without_the_scope__is_forbidden(door: Door) -> None:
    session = await door.open()
    door.client.cookies.clear()
    reads = await door.make_key(session, "read")
    steers = await door.make_key(session, "jobs")

    assert code(await door.client.post("/steer", headers=bearer(reads.token)))[1] == "forbidden"
    assert code(await door.client.get("/session", headers=bearer(steers.token)))[1] == "forbidden"
    assert (await door.client.get("/session", headers=bearer(reads.token))).status_code == 200


@ON_MEMORY
async def test_key__for_keys__is_forbidden(door: Door) -> None:
    made = await door.make_key(await door.open(), "read", "jobs")
    door.client.cookies.clear()

    response = await door.client.get("/keys", headers=bearer(made.token))

    assert code(response) == (403, "forbidden")


@ON_MEMORY
async def test_key__over__is_refused(door: Door) -> None:
    made = await door.make_key(await door.open(), "jobs")
    door.client.cookies.clear()
    door.world.wait(3601)

    assert code(await door.client.post("/steer", headers=bearer(made.token)))[0] == 401


@ON_MEMORY
async def test_key__of_another_account__cannot_be_deleted(door: Door) -> None:
    made = await door.make_key(await door.open(), "jobs")
    door.client.cookies.clear()
    bob = make_wallet("bob")
    other = read_body(SessionOpened, (await door.post(await door.message(bob), bob)).content)

    response = await door.client.delete(f"/keys/{made.key.hex()}", headers=bearer(other.token))

    assert code(response) == (404, "not_found")


async def test_key__same_name_or_too_far_ahead__is_refused(door: Door) -> None:
    session = await door.open()
    await door.make_key(session, "jobs")
    year, now = 367 * 24 * 3600 * 1000, door.world.now

    async def post(name: str, ends: int) -> tuple[int, str]:
        body = {"name": name, "scopes": ["read"], "expires_at": ends}
        return code(await door.client.post("/keys", json=body, headers=bearer(session.token)))

    assert await post("key ('jobs',)", now + 1000) == (409, "conflict")
    assert await post("late", now + year) == (400, "malformed")
    assert await post("early", now) == (400, "malformed")


@ON_MEMORY
@pytest.mark.parametrize(
    "token", ["", "x", "tss_" + "a" * 43, "tsk_" + "a" * 43, "the host's token", "tsk_" + "a" * 44]
)
async def test_token__unknown__is_a_bad_signature(door: Door, token: str) -> None:
    response = await door.client.post("/steer", headers=bearer(token))

    assert code(response) == (401, "bad_signature")


# -------------------------------------------------------------------------------------------- sdk


@ON_MEMORY
async def test_client__signs_in_and_out__is_somebody_in_between(door: Door) -> None:
    wire = httpx.ASGITransport(door.app)
    async with MarketClient(SITE, transport=wire) as client:
        opened = await client.sign_in(ANN, door.world.now)
        who = await client.who()
        body = CreateKey(
            name="ci", scopes=("jobs",), expires_at=UnixMillis(door.world.now + 60_000)
        )
        made = await client.create_key(body)
        names = [key.name for key in await client.keys()]
        await client.delete_key(Digest(made.key))
        await client.sign_out()

    assert who.account == opened.account == ANN.account
    assert names == ["ci"]


@ON_MEMORY
async def test_client__market_calls_itself_otherwise__signs_nothing(door: Door) -> None:
    wire = httpx.ASGITransport(door.app)
    async with MarketClient("http://elsewhere:1", transport=wire) as client:
        with pytest.raises(Forbidden):
            await client.sign_in(ANN, door.world.now)
