"""Who calls: signing in with a wallet (EIP-4361), and keys for programs."""

from typing import Annotated, Literal

from annotated_types import Len
from pydantic import Field

from contracts.terms.ids import AddressField, DigestField
from contracts.terms.moments import UnixMillisField
from market.bodies.base import Body

MAX_SIGN_IN_CHARACTERS = 1500
MAX_KEY_DAYS = 366
SESSION_COOKIE = "tallystick_session"

Scope = Literal["read", "jobs", "blobs"]
"""What a caller may do for an account: `read` what only the account sees, `jobs` steer its jobs,
`blobs` store blobs at its expense."""
Shown = Literal["session", "key", "signature"]
"""By what a caller is known: a session's token, a key's, or the signature of this request."""

KeyName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\x21-\x7e]([\x20-\x7e]*)$")]
BearerToken = Annotated[str, Field(pattern=r"^ts[sk]_[0-9A-Za-z_-]{43}$")]


class NonceView(Body):
    """What a message has to name: this nonce, this chain, and one of these sites."""

    nonce: str
    chain_id: int
    sites: tuple[str, ...]  # origins: `uri` is one of them, `domain` the part after `://`
    expires_at: UnixMillisField


class SignIn(Body):
    """An EIP-4361 message and the wallet's EIP-191 signature over it."""

    message: Annotated[str, Field(min_length=1, max_length=MAX_SIGN_IN_CHARACTERS)]
    signature: Annotated[bytes, Len(65, 65)]


class CallerView(Body):
    """Who calls, and what he may do."""

    account: AddressField
    by: Shown
    scopes: tuple[Scope, ...]
    expires_at: UnixMillisField


class SessionOpened(CallerView):
    """A wallet has signed in; the token is shown here and in the cookie, and nowhere else."""

    token: BearerToken


class CreateKey(Body):
    """A key for a program: no two of an account have one name."""

    name: KeyName
    scopes: Annotated[tuple[Scope, ...], Len(1, 3)]
    expires_at: UnixMillisField  # at most a year ahead


class KeyView(Body):
    """A key of the caller, without the secret."""

    key: DigestField
    name: KeyName
    scopes: tuple[Scope, ...]
    created_at: UnixMillisField
    expires_at: UnixMillisField


class KeyCreated(KeyView):
    """A new key; its token is shown this once."""

    token: BearerToken


class KeysView(Body):
    """Keys of the caller, by name; those that have expired, too."""

    keys: tuple[KeyView, ...]
