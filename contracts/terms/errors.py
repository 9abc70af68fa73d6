"""Every error we raise, grouped by who has to act.

* TallystickError
  x Refused                 the caller's request; never retried           HTTP 4xx
    - Malformed             cannot be read as what it should be
      - Unreadable          a file that was packed, cut, changed, or made by another version
    - TooLarge              over a size bound
    - UnknownVersion        a kind or version that this program does not speak
    - BadSignature          not signed by whom it binds
      - WrongChain          signed for another chain
    - Expired               too late, replayed, or a clock that is off
    - NotFound              no such thing
    - Forbidden             known, and not allowed
    - Conflict              contradicts what is already fixed
    - Unaffordable          the budget does not cover it
    - NoMatch               no offer fits, with what would
    - InsufficientStake     not enough free stake
    - WrongConfiguration    this machine is not set up for it
    - Unconfirmed           it costs money, and nobody agreed to that
    - ContractRefused       the chain ran it and said no
  x Unavailable             the environment; retried with backoff         HTTP 503
    - PeerUnreachable       a session or a peer is gone
    - DeadlineExceeded      no answer in time
    - Overloaded            a bounded queue is full
      - RateLimited         too many requests of one caller           HTTP 429
    - ChainUnreachable      the RPC endpoint does not answer
    - RpcFailed             the RPC endpoint answers with an error of its own
    - ChainForgot           a block or transaction that the chain no longer knows
    - ServiceUnreachable    database, Redis, API or blob store does not answer
  x Misbehaved              a counterparty; becomes evidence, not HTTP
    - Equivocation          two values signed under one name
    - WrongBytes            bytes that differ from their digest
    - InvalidSeal           a seal that its members cannot derive
    - NotFinite             a tensor with inf or nan
    - AuditMismatch         an audit file that contradicts itself or the chain
  x InvariantBroken         us; crash, page, never caught                 HTTP 500
"""

from typing import ClassVar


class TallystickError(Exception):
    """Root of all our errors; `code` is stable and part of the API."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, **data: object) -> None:
        super().__init__(message)
        self.message = message
        self.data = data


class Refused(TallystickError):
    """The request cannot be served as it is; repeating it changes nothing."""

    code = "refused"


class Malformed(Refused):
    """Cannot be read as what it should be."""

    code = "malformed"


class Unreadable(Malformed):
    """A file that was packed, cut, changed, or made by another version; it accuses nobody."""

    code = "unreadable"


class TooLarge(Refused):
    """Over a size bound; data: `size`, `limit`."""

    code = "too_large"


class UnknownVersion(Refused):
    """A kind or version that this program does not speak; data: `kind`."""

    code = "unknown_version"


class BadSignature(Refused):
    """Not signed by whom it binds."""

    code = "bad_signature"


class WrongChain(BadSignature):
    """Signed for another chain; data: `chain_id` of this one."""

    code = "wrong_chain"


class Expired(Refused):
    """Too late, replayed, or a clock that is off by more than two minutes."""

    code = "expired"


class NotFound(Refused):
    """No such thing."""

    code = "not_found"


class Forbidden(Refused):
    """Known, and not allowed to do this."""

    code = "forbidden"


class Conflict(Refused):
    """Contradicts what is already fixed."""

    code = "conflict"


class Unaffordable(Refused):
    """The budget does not cover it; data says what would."""

    code = "unaffordable"


class NoMatch(Refused):
    """No offer fits; data counts what each constraint excludes."""

    code = "no_match"


class InsufficientStake(Refused):
    """Not enough free stake; data: `wanted`, `free`."""

    code = "insufficient_stake"


class WrongConfiguration(Refused):
    """This machine is not set up for it; the message says what to do."""

    code = "wrong_configuration"


class Unconfirmed(Refused):
    """It costs money, and nobody agreed to that; data: `warnings`."""

    code = "unconfirmed"


class ContractRefused(Refused):
    """The chain ran it and said no; data: `error`, the contract's error with its arguments."""

    code = "contract_refused"


class Unavailable(TallystickError):
    """The environment does not answer; the same request may succeed later."""

    code = "unavailable"


class PeerUnreachable(Unavailable):
    """A session or a peer is gone."""

    code = "peer_unreachable"


class DeadlineExceeded(Unavailable):
    """No answer in time."""

    code = "deadline_exceeded"


class Overloaded(Unavailable):
    """A bounded queue is full."""

    code = "overloaded"


class RateLimited(Overloaded):
    """Too many requests of one caller; data: `retry_after`, seconds."""

    code = "rate_limited"


class ChainUnreachable(Unavailable):
    """The RPC endpoint does not answer; a transaction may or may not be known."""

    code = "chain_unreachable"


class RpcFailed(Unavailable):
    """The RPC endpoint answers with an error of its own: no contract was run, or none said no."""

    code = "rpc_failed"


class ChainForgot(Unavailable):
    """A block or transaction that the chain no longer knows: pin the head again."""

    code = "chain_forgot"


class ServiceUnreachable(Unavailable):
    """Database, Redis, API or blob store does not answer."""

    code = "service_unreachable"


class Misbehaved(TallystickError):
    """A counterparty broke the protocol; the data are evidence."""

    code = "misbehaved"


class Equivocation(Misbehaved):
    """Two different values signed by one key under one name (docs/protocol.md 1)."""

    code = "equivocation"


class WrongBytes(Misbehaved):
    """Bytes that differ from their digest; data: `expected`, `actual`."""

    code = "wrong_bytes"


class InvalidSeal(Misbehaved):
    """A seal that its members cannot derive; data says which part."""

    code = "invalid_seal"


class NotFinite(Misbehaved):
    """A tensor with inf or nan."""

    code = "not_finite"


class AuditMismatch(Misbehaved):
    """An audit file that contradicts itself or the chain; data: `path`."""

    code = "audit_mismatch"


class InvariantBroken(TallystickError):
    """Our own bug; never caught, never blamed on a caller."""

    code = "invariant_broken"


def _tree(root: type[TallystickError]) -> dict[str, type[TallystickError]]:
    found: dict[str, type[TallystickError]] = {}
    for child in root.__subclasses__():
        found |= _tree(child)
    # A subclass elsewhere that has no code of its own is, to others, the class that it refines.
    return found | {root.code: root}


def error_class(code: str) -> type[TallystickError]:
    """The class with this stable `code`; an unknown code is the root class."""
    return _tree(TallystickError).get(code, TallystickError)
