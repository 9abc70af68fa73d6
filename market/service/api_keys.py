"""Keys that an account makes for its programs: made, found, listed, taken back."""

from collections.abc import Sequence

from contracts.terms.errors import Conflict, Forbidden, Malformed, NotFound
from contracts.terms.ids import Address, Digest
from contracts.terms.moments import UnixMillis
from market.bodies import MAX_KEY_DAYS, KeyCreated, KeysView, KeyView
from market.service.ports import UnitOfWork
from market.service.rows import ApiKeyRow
from market.service.tokens import KEY, new_token, token_digest

MAX_KEYS = 50
_MAX_MILLIS = MAX_KEY_DAYS * 24 * 3600 * 1000


async def create_key(
    account: Address,
    name: str,
    scopes: Sequence[str],
    expires_at: UnixMillis,
    *,
    now: UnixMillis,
    work: UnitOfWork,
) -> KeyCreated:
    """Make a key. Asked twice, the second is a conflict: nobody is left with one he never saw.

    Raises:
        Malformed: it would end in the past, or later than in a year.
        Conflict: the account has a key of this name.
        Forbidden: the account has as many as it may have.
    """
    if not now < expires_at <= now + _MAX_MILLIS:
        raise Malformed(f"expires_at: within {MAX_KEY_DAYS} days from now", field="expires_at")
    token = new_token(KEY)
    key = token_digest(token)
    assert key is not None
    row = ApiKeyRow(key, account, name, " ".join(sorted(set(scopes))), now, expires_at)
    async with work:
        known = await work[ApiKeyRow].where(account=account)
        if name in {each.name for each in known}:
            raise Conflict("there is a key of this name: delete it first", name=name)
        if len(known) >= MAX_KEYS:
            raise Forbidden(f"an account has at most {MAX_KEYS} keys: delete one first")
        await work[ApiKeyRow].add(row)
    return KeyCreated.of(row, scopes=_scopes(row), token=token)


async def find_key(key: Digest, now: UnixMillis, work: UnitOfWork) -> ApiKeyRow | None:
    """The key of a token, unless it has expired."""
    async with work:
        row = await work[ApiKeyRow].get(key)
    return None if row is None or row.expires_at <= now else row


async def keys_of(account: Address, work: UnitOfWork) -> KeysView:
    """All keys of an account, by name."""
    async with work:
        rows = await work[ApiKeyRow].where(account=account, order="name")
    return KeysView(keys=tuple(KeyView.of(row, scopes=_scopes(row)) for row in rows))


def _scopes(row: ApiKeyRow) -> tuple[str, ...]:
    return tuple(row.scopes.split())


async def delete_key(account: Address, key: Digest, work: UnitOfWork) -> None:
    """Take a key back; from now on it is refused.

    Raises:
        NotFound: the account has no such key.
    """
    async with work:
        row = await work[ApiKeyRow].lock(key)
        if row is None or row.account != account:
            raise NotFound("no such key", key=key.hex())
        await work[ApiKeyRow].remove(key)
