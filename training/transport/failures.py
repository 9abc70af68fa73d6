"""How an error crosses the wire, and which error the caller then sees.

What travels is the stable code, the message and the encodable part of the data; never a traceback
or the text of an error that is not ours. A peer chooses what it sends, so nothing it sends may
make a caller stop: its `InvariantBroken` (its bug, not ours) arrives as `Unavailable`, a code that
this program does not know as `UnknownVersion`. `data["peer"]` of every error that arrived names the
peer that reported it, in hex.
"""

from typing import Any, Literal

from pydantic import Field

from contracts.terms import errors
from contracts.terms.encoding import encode
from contracts.terms.ids import SessionKey
from training.transport.wire import KIB, WireMessage

MAX_FAILURE_BYTES = 16 * KIB
MAX_TEXT = 1000  # characters of a message
_MAX_DATA_BYTES = 8 * KIB


class Failure(WireMessage):
    """An error on its way: what `TallystickError` says, without where it happened."""

    kind: Literal["failure.v1"] = "failure.v1"
    code: str = Field(min_length=1, max_length=64)
    message: str = Field(max_length=MAX_TEXT)
    data: dict[str, Any]


def failure_bytes(error: errors.TallystickError) -> bytes:
    """`error` as bytes, at most `MAX_FAILURE_BYTES`."""
    if isinstance(error, errors.InvariantBroken):
        return Failure(code=error.code, message="an internal error", data={}).encoded()
    data = {key: _encodable(value) for key, value in error.data.items()}
    if len(encode(data)) > _MAX_DATA_BYTES:
        data = {}
    text = error.message.encode(errors="replace").decode()  # a name of a file may be no UTF-8
    return Failure(code=error.code, message=text[:MAX_TEXT], data=data).encoded()


def reported_error(data: bytes, peer: SessionKey) -> errors.TallystickError:
    """The error that `peer` reported; bytes that spell none are an error of their own."""
    try:
        failure = Failure.decoded(data, max_bytes=MAX_FAILURE_BYTES)
    except errors.TallystickError as error:
        return errors.Malformed(f"an error that cannot be read: {error.message}", peer=peer.hex())
    reported = _class_for(failure.code)(failure.message)
    reported.data = {**failure.data, "peer": peer.hex()}  # keys of a stranger are no arguments
    return reported


def _class_for(code: str) -> type[errors.TallystickError]:
    found = errors.error_class(code)
    if found is errors.InvariantBroken:
        return errors.Unavailable
    return errors.UnknownVersion if found is errors.TallystickError else found


def _encodable(value: object) -> Any:
    """`value` where the encoding has a place for it, else its text."""
    try:
        encode(value)  # type: ignore[arg-type]  # a value of any type: encode itself decides
    except (errors.TallystickError, UnicodeEncodeError):
        return str(value).encode(errors="replace").decode()
    return value
