"""Does this signed message (EIP-4361) let its wallet in, here and now? Pure, but for the library.

The nonce names its moment and carries our keyed digest, so nothing is stored until somebody has
signed; that it is used once is held by a unique column (`market.service.sign_in`). The site is
compared with a list of ours and never with what a request says of itself: a page elsewhere that
has a message signed for its own domain could send any header.
"""

import hmac
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from siwe import (
    ExpiredMessage,
    ISO8601Datetime,
    NotYetValidMessage,
    SiweMessage,
    VerificationError,
)

from contracts.terms.digest import digest
from contracts.terms.errors import BadSignature, Expired, Malformed, WrongChain
from contracts.terms.ids import Address
from contracts.terms.moments import UnixMillis
from market.bodies import CLOCK_SKEW_MILLIS

NONCE_MILLIS = 5 * 60_000
_AT, _RANDOM, _MAC = 12, 16, 32  # hex characters


@dataclass(frozen=True)
class Door:
    """Where one signs in."""

    sites: tuple[str, ...]  # origins under which people reach us
    chain_id: int
    secret: bytes  # that nonces are made under; all API processes have the same


@dataclass(frozen=True)
class Entrant:
    """Who signed."""

    account: Address
    nonce: str
    site: str
    expires_at: UnixMillis | None  # what the message says of itself


def make_nonce(door: Door, now: UnixMillis, random: bytes) -> str:
    """A nonce of this moment; `random` are 8 bytes."""
    payload = f"{now:0{_AT}x}{random.hex()}"
    return payload + _mac(door, payload)


def admit(text: str, signature: bytes, door: Door, now: UnixMillis) -> Entrant:
    """Whoever signed `text`.

    Raises:
        Malformed: no EIP-4361 message, or not spelled as that standard spells it.
        BadSignature: for another site, with a nonce that is not ours, or not signed by its address.
        WrongChain: for another chain.
        Expired: it, or its nonce, is over; or a clock is off.
    """
    message = _parsed(text)
    site = _site(message, door)
    if message.chain_id != door.chain_id:
        raise WrongChain(
            f"signed for chain {message.chain_id}: this market is on {door.chain_id}",
            chain_id=door.chain_id,
        )
    _check_moment(message, _nonce_moment(message.nonce, door, now), now)
    _check_signature(message, signature, now)
    return Entrant(Address(bytes.fromhex(message.address[2:])), message.nonce, site, _ends(message))


def _parsed(text: str) -> SiweMessage:
    try:
        # Its grammar takes seconds for some texts; the pattern is quick and fields are checked.
        message = SiweMessage.from_message(text, abnf=False)
        if message.prepare_message() == text:
            return message
    except (ValueError, RecursionError) as error:
        raise Malformed("message: not as EIP-4361 spells it", field="message") from error
    raise Malformed("message: not as EIP-4361 spells it", field="message")


def _site(message: SiweMessage, door: Door) -> str:
    for site in door.sites:
        parts = urlsplit(site)
        is_ours = message.uri == site or str(message.uri).startswith(site + "/")
        if message.domain == parts.netloc and is_ours and message.scheme in (None, parts.scheme):
            return site
    raise BadSignature("signed for another site", sites=list(door.sites))


def _nonce_moment(nonce: str, door: Door, now: UnixMillis) -> UnixMillis:
    payload, mac = nonce[: _AT + _RANDOM], nonce[_AT + _RANDOM :]
    if len(mac) != _MAC or not hmac.compare_digest(mac, _mac(door, payload)):
        raise BadSignature("this market gave no such nonce")
    at = UnixMillis(int(payload[:_AT], 16))
    if now > at + NONCE_MILLIS:
        raise Expired("the nonce is over: ask for another", ended_at=at + NONCE_MILLIS)
    return at


def _check_moment(message: SiweMessage, asked_at: UnixMillis, now: UnixMillis) -> None:
    issued = _millis(message.issued_at)
    if not asked_at - CLOCK_SKEW_MILLIS <= issued <= now + CLOCK_SKEW_MILLIS:
        raise Expired("issued before its nonce or in the future: is a clock off?", now=now)


def _check_signature(message: SiweMessage, signature: bytes, now: UnixMillis) -> None:
    moment = datetime.fromtimestamp(now / 1000, UTC)
    try:
        message.verify(signature.hex(), timestamp=moment)
    except (ExpiredMessage, NotYetValidMessage) as error:
        raise Expired("the message is over, or not valid yet", now=now) from error
    except VerificationError as error:
        raise BadSignature("not signed by the address that it names") from error


def _ends(message: SiweMessage) -> UnixMillis | None:
    return None if message.expiration_time is None else _millis(message.expiration_time)


def _millis(moment: ISO8601Datetime) -> UnixMillis:
    parsed = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    return UnixMillis(round(parsed.timestamp() * 1000))


def _mac(door: Door, payload: str) -> str:
    return digest("sign-in nonce", door.secret + payload.encode())[: _MAC // 2].hex()
