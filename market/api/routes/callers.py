"""Sessions and keys: how a person, and a program for him, become somebody to the API."""

import secrets
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response

from contracts.terms.errors import BadSignature, Conflict, Expired, Forbidden, NotFound, WrongChain
from contracts.terms.moments import UnixMillis
from market.api.callers import SCOPES, Caller, caller, check_origin, signed_in
from market.api.context import PRIVATE, ApiDep, DigestPath, WorkDep, answer, body, documented
from market.api.refusals import refused
from market.bodies import (
    SESSION_COOKIE,
    CallerView,
    CreateKey,
    KeyCreated,
    KeysView,
    NonceView,
    SessionOpened,
    SignIn,
)
from market.service.api_keys import create_key, delete_key, keys_of
from market.service.sign_in import SignedIn, sign_in, sign_out
from market.service.sign_in_message import NONCE_MILLIS, make_nonce

router = APIRouter(tags=["callers"])

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@router.post("/session/nonce", response_model=NonceView)
async def post_nonce(api: ApiDep) -> Response:
    """Ask for a nonce, to sign in with.

    It is good for one session and five minutes. The message names it, the chain, and one of the
    sites: a wallet should sign it only for the site that its person is looking at.
    """
    now = api.market.clock()
    return answer(
        NonceView(
            nonce=make_nonce(api.door, now, secrets.token_bytes(8)),
            chain_id=api.door.chain_id,
            sites=api.sites,
            expires_at=UnixMillis(now + NONCE_MILLIS),
        ),
        headers=PRIVATE,
    )


@router.post(
    "/session",
    response_model=SessionOpened,
    status_code=201,
    openapi_extra=documented(SignIn),
    responses=refused(BadSignature, WrongChain, Expired, Forbidden),
)
async def post_session(
    request: Request, api: ApiDep, work: WorkDep, posted: Annotated[SignIn, body(SignIn)]
) -> Response:
    """Sign in with a wallet (EIP-4361).

    The answer holds a bearer token for programs and sets it as a cookie for pages. The session ends
    after a day, or when the message's Expiration Time has come.
    """
    if "origin" in request.headers:
        check_origin(request, api)
    now = api.market.clock()
    opened = await sign_in(posted.message, posted.signature, api.door, now=now, work=work)
    response = answer(
        SessionOpened.of(opened.row, by="session", scopes=SCOPES, token=opened.token),
        201,
        PRIVATE,
    )
    _set_cookie(response, opened, now)
    return response


@router.get("/session", response_model=CallerView)
async def get_session(who: Annotated[Caller, caller("read")]) -> Response:
    """Say who calls: the account of a session or a key, and what it may do."""
    return answer(CallerView.of(who), headers=PRIVATE)


@router.delete("/session", status_code=204)
async def delete_session(work: WorkDep, who: Annotated[Caller, signed_in()]) -> Response:
    """Sign out: the session's token holds no longer."""
    await sign_out(who.token, work)
    response = Response(status_code=204)
    response.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
    return response


@router.post(
    "/keys",
    response_model=KeyCreated,
    status_code=201,
    openapi_extra=documented(CreateKey),
    responses=refused(Conflict),
)
async def post_key(
    api: ApiDep,
    work: WorkDep,
    posted: Annotated[CreateKey, body(CreateKey)],
    who: Annotated[Caller, signed_in()],
) -> Response:
    """Make a key for a program; its token is shown this once. Needs a session."""
    made = await create_key(
        who.account,
        posted.name,
        posted.scopes,
        posted.expires_at,
        now=api.market.clock(),
        work=work,
    )
    return answer(made, 201, PRIVATE)


@router.get("/keys", response_model=KeysView)
async def get_keys(work: WorkDep, who: Annotated[Caller, signed_in()]) -> Response:
    """List the account's keys, by name. Needs a session."""
    return answer(await keys_of(who.account, work), headers=PRIVATE)


@router.delete("/keys/{name}", status_code=204, responses=refused(NotFound))
async def delete_key_of(
    key: DigestPath, work: WorkDep, who: Annotated[Caller, signed_in()]
) -> Response:
    """Take a key back; from now on it is refused. Needs a session."""
    await delete_key(who.account, key, work)
    return Response(status_code=204)


def _set_cookie(response: Response, opened: SignedIn, now: UnixMillis) -> None:
    response.set_cookie(
        SESSION_COOKIE,
        opened.token,
        max_age=(opened.row.expires_at - now) // 1000,
        path="/",
        # A browser takes no Secure cookie from plain HTTP, which only this machine may speak.
        secure=urlsplit(opened.site).hostname not in _LOOPBACK,
        httponly=True,
        samesite="strict",
    )
