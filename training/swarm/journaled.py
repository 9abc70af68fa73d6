"""Events as bytes and back: what the journal keeps of a job's life. Pure.

Invariant: `decode_event(encode_event(event)) == event`, so the state is the fold of what is stored.
"""

from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from typing import Any, cast, get_args

from pydantic import TypeAdapter, ValidationError

from contracts.terms.encoding import decode, encode
from contracts.terms.errors import Malformed, UnknownVersion
from contracts.terms.kinds import message_from_value
from contracts.terms.messages import Message
from training.swarm.events import Event
from training.swarm.state import Copy, SwarmState, Terms
from training.swarm.step import advance

MAX_EVENT_BYTES = 16 * 2**20

_EVENTS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}


def encode_event(event: Event) -> bytes:
    """Canonical bytes of an event."""
    values = {field.name: _plain(getattr(event, field.name)) for field in fields(event)}
    return encode({"event": type(event).__name__, "values": values})


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
            ready = {key: _restored(value) for key, value in values.items()}
            try:
                return cast(Event, _adapter(name).validate_python(ready))
            except ValidationError as error:
                raise Malformed(f"event {name}: {error}") from error
    raise Malformed("a journaled event has a name and values")


def replay(terms: Terms, events: Iterable[Event]) -> SwarmState:
    """The state that `events` lead to from the beginning."""
    state = SwarmState(terms)
    for event in events:
        state, _ = advance(state, event)
    return state


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(_EVENTS[name])


def _plain(value: Any) -> Any:
    match value:
        case Message():
            return value.value()
        case Copy():
            return {field.name: getattr(value, field.name) for field in fields(value)}
        case tuple():
            return tuple(_plain(each) for each in value)
    return value


def _restored(value: Any) -> Any:
    if isinstance(value, dict) and "kind" in value:
        return message_from_value(value)
    return value
