"""Who calls, and may it? One dependency that yields the account or refuses.

`who: Annotated[Caller, caller("jobs")]` in a route is all that it takes. A request that changes
something for an account is signed (`market.bodies.signing`) by its wallet, which may do
everything, or by the session key of one of its leases, which may store blobs.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Request
from fastapi.security.http import HTTPBase

from contracts.terms.errors import BadSignature, Forbidden
from contracts.terms.ids import Address, SessionKey
from contracts.terms.signatures import recover
from market.api.context import ApiDep, WorkDep
from market.bodies.signing import REQUEST_SCHEME, request_digest, signed_call
from market.domain.offers import check_moment
from market.service.session import account_of_session, check_session

Scope = Literal["jobs", "blobs"]
"""What a caller may do for an account: steer its jobs, store blobs at its expense."""

_SIGNED = HTTPBase(
    scheme=REQUEST_SCHEME,
    scheme_name="signature",
    description=(
        "This request, signed by a wallet or by a session key of a lease: `Authorization: "
        f"{REQUEST_SCHEME} NAME AT BODY SIGNATURE`; NAME is the account or the session key, AT the "
        "moment in ms, BODY the body's BLAKE3 digest. See `market/bodies/signing.py`."
    ),
    auto_error=False,
)


@dataclass(frozen=True)
class Caller:
    """An account for which this request was signed."""

    account: Address
    scopes: tuple[Scope, ...]


async def _signer(
    request: Request,
    api: ApiDep,
    work: WorkDep,
    signed: Annotated[object, Depends(_SIGNED)],
) -> Caller | None:
    """Who signed this request; None if nobody did. Whoever reads the body compares it.

    Raises:
        BadSignature, Expired: it is signed, and not so that it holds here and now.
    """
    if (call := signed_call(request.headers.get("authorization", ""))) is None:
        return None
    check_moment(call.at, now=api.market.clock(), previous=None)
    query = request.url.query
    said = request_digest(
        api.market.chain.domain,
        request.method,
        request.url.path + (f"?{query}" if query else ""),
        request.headers.get("idempotency-key", ""),
        call.body,
        call.at,
    )
    if len(call.name) == 20:
        account = Address(call.name)
        if recover(said, call.signature) != account:
            raise BadSignature(f"not signed by 0x{account.hex()} for this request on this chain")
        return Caller(account, ("jobs", "blobs"))
    key = SessionKey(call.name)
    check_session(key, said, call.signature)
    found = await account_of_session(key, work)
    return None if found is None else Caller(found, ("blobs",))


def caller(scope: Scope) -> Any:
    """A dependency that yields the `Caller`, who may do what `scope` says.

    Raises (in the request):
        BadSignature: nobody that we know.
        Forbidden: a session key without this scope.
    """

    async def check(who: Annotated[Caller | None, Depends(_signer)]) -> Caller:
        if who is None:
            raise BadSignature("nobody that this market knows: sign the request")
        if scope not in who.scopes:
            raise Forbidden(f"this key may not: it lacks the scope {scope}", scope=scope)
        return who

    return Depends(check)
