"""Sign in with a wallet, be known by a token, sign out."""

import asyncio
from dataclasses import dataclass, replace

from contracts.terms.errors import Conflict, Expired
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from market.service.ports import UnitOfWork
from market.service.rows import SignInRow
from market.service.sign_in_message import NONCE_MILLIS, Door, admit
from market.service.tokens import SESSION, new_token, token_digest

SESSION_MILLIS = 24 * 3600 * 1000
_SWEPT = 20  # old rows that a new one takes with it


@dataclass(frozen=True)
class SignedIn:
    """A session that has just begun; `token` is nowhere else."""

    token: str
    site: str
    row: SignInRow


async def sign_in(
    message: str, signature: bytes, door: Door, *, now: UnixMillis, work: UnitOfWork
) -> SignedIn:
    """Begin a session. It ends after a day, or when the message says, if that is sooner.

    Raises:
        Malformed, BadSignature, WrongChain, Expired: see `sign_in_message.admit`; a nonce that was
            used is expired.
    """
    entrant = await asyncio.to_thread(admit, message, signature, door, now)
    ends = min(now + SESSION_MILLIS, entrant.expires_at or now + SESSION_MILLIS)
    token = new_token(SESSION)
    name = token_digest(token)
    assert name is not None
    row = SignInRow(name, entrant.account, entrant.nonce, now, UnixMillis(ends))
    try:
        async with work:
            await _sweep(now, work)
            await work[SignInRow].add(row)
    except Conflict as error:
        raise Expired("this nonce was used: ask for another") from error
    return SignedIn(token, entrant.site, row)


async def find_sign_in(token: Digest, now: UnixMillis, work: UnitOfWork) -> SignInRow | None:
    """The session of a token, unless it is over."""
    async with work:
        row = await work[SignInRow].get(token)
    return None if row is None or row.ended or row.expires_at <= now else row


async def sign_out(token: Digest, work: UnitOfWork) -> None:
    """End a session; one that is over, or never was, stays so."""
    async with work:
        if row := await work[SignInRow].lock(token):
            await work[SignInRow].put(replace(row, ended=True))


async def _sweep(now: UnixMillis, work: UnitOfWork) -> None:
    # A row is what makes its nonce used, so none goes before its nonce is over.
    rows = work[SignInRow]
    over = UnixMillis(now - NONCE_MILLIS)
    for row in await rows.where(order="-expires_at", after=over, limit=_SWEPT, lock=True):
        await rows.remove(row.token)
