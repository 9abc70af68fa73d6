"""What does a wallet sign to sign in (EIP-4361), and where does it refuse to?"""

from datetime import UTC, datetime
from urllib.parse import urlsplit

from contracts.terms.digest import keccak
from contracts.terms.errors import Forbidden
from contracts.terms.ids import Address
from contracts.terms.moments import UnixMillis
from market.bodies import NonceView

STATEMENT = "Sign in to Tallystick. This moves no money."


def sign_in_text(asked: NonceView, url: str, account: Address, now: UnixMillis) -> str:
    """The message for the market at `url`.

    Raises:
        Forbidden: the market says that it is another one: what is signed might be used there.
    """
    parts = urlsplit(url)
    if (site := f"{parts.scheme}://{parts.netloc}") not in asked.sites:
        raise Forbidden(
            f"the market at {site} calls itself {', '.join(asked.sites)}: use that address",
            sites=list(asked.sites),
        )
    issued = datetime.fromtimestamp(now / 1000, UTC).isoformat(timespec="milliseconds")
    return (
        f"{parts.netloc} wants you to sign in with your Ethereum account:\n"
        f"{checksummed(account)}\n\n{STATEMENT}\n\n"
        f"URI: {site}\nVersion: 1\nChain ID: {asked.chain_id}\nNonce: {asked.nonce}\n"
        f"Issued At: {issued.removesuffix('+00:00')}Z"
    )


def checksummed(account: Address) -> str:
    """The account with a checksum in its letters (EIP-55)."""
    text = account.hex()
    marks = keccak(text.encode()).hex()
    return "0x" + "".join(
        letter.upper() if mark >= "8" else letter for letter, mark in zip(text, marks, strict=False)
    )
