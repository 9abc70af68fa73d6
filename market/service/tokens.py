"""Bearer tokens: 32 random bytes that only their holder has; rows keep a digest of them.

A token says by its first letters what it is, so that one that was published by mistake is found by
whoever scans for secrets, and one row is looked up for it.
"""

import base64
import secrets
from typing import Literal

from contracts.terms.digest import digest
from contracts.terms.ids import Digest

Kind = Literal["tss_", "tsk_"]
SESSION: Kind = "tss_"
KEY: Kind = "tsk_"
_LENGTH = 4 + 43


def new_token(kind: Kind) -> str:
    """A token that nobody can guess."""
    return kind + base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")


def token_digest(token: str) -> Digest | None:
    """The name of a token's row; None for what no token looks like."""
    if len(token) != _LENGTH or not token.startswith((SESSION, KEY)):
        return None
    return digest("bearer token", token.encode())
