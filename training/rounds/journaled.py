"""Events as bytes and back: what the journal keeps of a job's life. Pure.

Invariant: `decode_event(encode_event(event)) == event`, so the state is the fold of what is stored.
"""

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, cast, get_args

from pydantic import TypeAdapter, ValidationError

from contracts.terms.encoding import decode, encode
from contracts.terms.errors import Malformed, UnknownVersion
from contracts.terms.work import WorkClaim
from training.rounds.events import Event

MAX_EVENT_BYTES = 16 * 2**20

_EVENTS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}


def encode_event(event: Event) -> bytes:
    """Canonical bytes of an event."""
    return encode({"event": type(event).__name__, "values": _plain(event)})


def decode_event(data: bytes) -> Event:
    """The event that `data` spells.

    Raises:
        TooLarge, Malformed: no canonical bytes of an event.
        UnknownVersion: an event that this program does not know.
    """
    match decode(data, max_bytes=MAX_EVENT_BYTES):
        case {"event": str(name), "values": dict(values)}:
            if name not in _EVENTS:
                raise UnknownVersion(f"unknown event {name!r:.80}")
            ready: dict[str, Any] = dict(values)
            if isinstance(claim := values.get("claim"), dict):
                ready["claim"] = WorkClaim.from_value(claim)
            try:
                return cast(Event, _adapter(name).validate_python(ready))
            except ValidationError as error:
                raise Malformed(f"event {name}: {error}") from error
    raise Malformed("a journaled event has a name and values")


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(_EVENTS[name])


def _plain(value: Any) -> Any:
    if isinstance(value, WorkClaim):
        return value.value()
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, frozenset):
        return [_plain(each) for each in sorted(value)]
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value
