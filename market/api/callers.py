"""Who calls, and may he? One dependency that yields the account or refuses.

`who: Annotated[Caller, caller("jobs")]` in a route is all that it takes. A caller shows a bearer
token (of a session or a key), signs the request (`market.bodies.requests`) or, from a page, shows
the cookie of his session. What a browser sends by itself proves no intention, so a request that
changes something and rests on the cookie has to come from a page of this site: its Origin says so.
"""

from dataclasses import dataclass
from typing import Annotated, Any, cast, get_args

from fastapi import Depends, Request
from fastapi.security import APIKeyCookie, HTTPBearer
from fastapi.security.http import HTTPBase

from contracts.terms.digest import digest
from contracts.terms.errors import BadSignature, Forbidden
from contracts.terms.ids import Address, Digest, SessionKey
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import recover
from market.api.context import SAFE, Api, ApiDep, WorkDep
from market.bodies import (
    CLOCK_SKEW_MILLIS,
    REQUEST_SCHEME,
    SESSION_COOKIE,
    Scope,
    Shown,
    SignedCall,
    request_digest,
    signed_call,
)
from market.domain.offers import check_moment
from market.service.api_keys import find_key
from market.service.ports import UnitOfWork
from market.service.session import account_of_session, check_session
from market.service.sign_in import find_sign_in
from market.service.tokens import KEY, token_digest

SCOPES: tuple[Scope, ...] = get_args(Scope)

_TOKEN = HTTPBearer(
    scheme_name="token",
    description="A session's token (`POST /v1/session`) or a key's (`POST /v1/keys`).",
    auto_error=False,
)
_COOKIE = APIKeyCookie(
    name=SESSION_COOKIE,
    scheme_name="cookie",
    description="A session, from the pages; what changes something needs their Origin.",
    auto_error=False,
)
_SIGNED = HTTPBase(
    scheme=REQUEST_SCHEME,
    scheme_name="signature",
    description=(
        "This request, signed by a wallet or by a session key of a lease: `Authorization: "
        f"{REQUEST_SCHEME} NAME AT BODY SIGNATURE`; NAME is the account or the session key, AT the "
        "moment in ms, BODY the body's BLAKE3 digest. See `market/bodies/requests.py`."
    ),
    auto_error=False,
)


@dataclass(frozen=True)
class Caller:
    """An account that has shown a token which holds, or signed this request."""

    account: Address
    by: Shown
    scopes: tuple[Scope, ...]
    expires_at: UnixMillis
    token: Digest  # of what it showed
    is_by_cookie: bool = False


async def identify(request: Request, api: Api, work: UnitOfWork) -> Caller | None:
    """Who calls; None for a stranger. Remembered for the rest of the request.

    Raises:
        BadSignature, Expired: the request is signed, and not so that it holds here and now.
    """
    if not hasattr(request.state, "caller"):
        request.state.caller = await _identified(request, api, work)
    return cast(Caller | None, request.state.caller)


async def _known(
    request: Request,
    api: ApiDep,
    work: WorkDep,
    shown: Annotated[object, Depends(_TOKEN)],
    cookie: Annotated[object, Depends(_COOKIE)],
    signed: Annotated[object, Depends(_SIGNED)],
) -> Caller | None:
    return await identify(request, api, work)


CallerDep = Annotated[Caller | None, Depends(_known)]
"""Who calls, where a signature in the body does as well: `permit` then says if it may."""


def caller(scope: Scope) -> Any:
    """A dependency that yields the `Caller`, who may do what `scope` says.

    Raises (in the request):
        BadSignature: nobody that we know, or no longer.
        Forbidden: a key without this scope; a page of another site.
    """
    return Depends(_needs(scope))


def signed_in() -> Any:
    """A dependency that yields the `Caller` of a session: keys may not. Raises as `caller`."""
    return Depends(_needs(None))


def permit(who: Caller | None, scope: Scope | None, request: Request, api: Api) -> Caller:
    """Who calls, if it may do what `scope` says; None asks for a session. Raises as `caller`."""
    if who is None:
        raise BadSignature(
            "nobody that this market knows: sign the request, sign in, or show a key that holds"
        )
    if who.is_by_cookie and request.method not in SAFE:
        check_origin(request, api)
    if scope is None and who.by != "session":
        raise Forbidden("keys may not do this: sign in")
    if scope is not None and scope not in who.scopes:
        raise Forbidden(f"this key may not: it lacks the scope {scope}", scope=scope)
    return who


def check_origin(request: Request, api: Api) -> None:
    """Refuse what a page of another site sends.

    Raises:
        Forbidden: its Origin is not one of ours.
    """
    if request.headers.get("origin") not in api.sites:
        raise Forbidden("pages of this market only: its Origin is missing or another")


def _needs(scope: Scope | None) -> Any:
    async def check(request: Request, api: ApiDep, who: CallerDep) -> Caller:
        return permit(who, scope, request, api)

    return check


async def _identified(request: Request, api: Api, work: UnitOfWork) -> Caller | None:
    shown = request.headers.get("authorization", "")
    now = api.market.clock()
    if (call := signed_call(shown)) is not None:
        return await _of_signature(request, call, api, work)
    kind, _, token = shown.partition(" ")
    if kind.lower() != "bearer":
        return await _of_session(request.cookies.get(SESSION_COOKIE, ""), now, work, by_cookie=True)
    if token.startswith(KEY):
        return await _of_key(token, now, work)
    return await _of_session(token, now, work, by_cookie=False)


async def _of_signature(
    request: Request, call: SignedCall, api: Api, work: UnitOfWork
) -> Caller | None:
    """Whoever reads the body checks that it is the one that was signed: `context.stream`."""
    check_moment(call.at, now=api.market.clock(), previous=None)
    query = request.url.query
    signed = request_digest(
        api.market.chain.domain,
        request.method,
        request.url.path + (f"?{query}" if query else ""),
        request.headers.get("idempotency-key", ""),
        call.body,
        call.at,
    )
    until, shown = UnixMillis(call.at + CLOCK_SKEW_MILLIS), digest("shown", call.signature)
    if len(call.name) == 20:
        account = Address(call.name)
        if recover(signed, call.signature) != account:
            raise BadSignature(f"not signed by 0x{account.hex()} for this request on this chain")
        return Caller(account, "signature", SCOPES, until, shown)
    key = SessionKey(call.name)
    check_session(key, signed, call.signature)
    found = await account_of_session(key, work)
    return None if found is None else Caller(found, "signature", ("blobs",), until, shown)


async def _of_key(token: str, now: UnixMillis, work: UnitOfWork) -> Caller | None:
    name = token_digest(token)
    row = None if name is None else await find_key(name, now, work)
    if row is None:
        return None
    scopes = cast(tuple[Scope, ...], tuple(row.scopes.split()))
    return Caller(row.account, "key", scopes, row.expires_at, row.key)


async def _of_session(
    token: str, now: UnixMillis, work: UnitOfWork, *, by_cookie: bool
) -> Caller | None:
    name = token_digest(token)
    row = None if name is None else await find_sign_in(name, now, work)
    if row is None:
        return None
    return Caller(row.account, "session", SCOPES, row.expires_at, row.token, by_cookie)
