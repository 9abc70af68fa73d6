"""What a host shows: a credential of its own, made from the operator's token and bound to its name.

`tsh_NAME.OWNER.MAC`: the name in base64url, the account that the host speaks for in hex (empty: not
said), a keyed digest of both. Nothing is stored: the market makes it again from the token that lies
in `keys/host-token`, and so does a host that lies beside it. Another token makes all of them void.
"""

import base64
import binascii
import hmac
from dataclasses import dataclass

from contracts.terms.digest import digest
from contracts.terms.encoding import Value, encode
from contracts.terms.ids import Address

PREFIX = "tsh_"


@dataclass(frozen=True)
class HostCredential:
    """Whose credential it is."""

    host: str
    owner: Address | None = None

    def shown(self, operator_token: str) -> str:
        """The credential as the bearer token that its host shows."""
        name = base64.urlsafe_b64encode(self.host.encode()).decode().rstrip("=")
        owner = "" if self.owner is None else self.owner.hex()
        said: list[Value] = [operator_token, self.host, owner]
        return f"{PREFIX}{name}.{owner}.{digest('host credential', encode(said)).hex()}"


def host_credential(shown: str, operator_token: str) -> HostCredential | None:
    """Whose credential a bearer token is; None if it is none of this market."""
    name, _, rest = shown.removeprefix(PREFIX).partition(".")
    try:
        host = base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
        owner = bytes.fromhex(rest.partition(".")[0])
    except (binascii.Error, ValueError):
        return None
    if not operator_token or len(owner) not in (0, 20):
        return None
    found = HostCredential(host, Address(owner) if owner else None)
    known = found.shown(operator_token).encode()
    return found if hmac.compare_digest(known, shown.encode(errors="replace")) else None
