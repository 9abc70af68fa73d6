"""Has every live event that the API emits its words, and does a page listen to it?"""

from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from market.bodies.base import Body
from market.bodies.events import (
    JobEvent,
    MarketEvent,
    PeerEvent,
    RuledEvent,
)
from market.bodies.jobs import Excluded
from market.web import telling
from market.web.telling import JOB_EVENTS, MARKET_EVENTS, VERDICTS, told_of_job, told_of_market

JOB = "ab" * 32
Excluded.model_rebuild()  # bodies are built when they are first used: till then it has no signature


def kinds(events: Any) -> list[str]:
    """What `kind` of a union of events may be."""
    return sorted(cls.model_fields["kind"].default for cls in get_args(events))


def test_events__pages_and_api__have_exactly_the_same_kinds() -> None:
    assert sorted(JOB_EVENTS) == kinds(JobEvent)
    assert sorted(MARKET_EVENTS) == kinds(MarketEvent)
    assert set(VERDICTS) <= set(JOB_EVENTS)


def any_of(cls: type[Body]) -> st.SearchStrategy[Any]:
    """Events of a type, of the types of its fields."""
    hints = get_type_hints(cls, include_extras=True)
    fields = {name: st.from_type(hints[name]) for name in cls.model_fields}
    if "reason" in fields:
        fields["reason"] = st.just("no room on the disk")
    if get_origin(hints.get("steps")) is tuple:
        fields["steps"] = st.just((3, 4))
    return st.builds(cls, **fields)


@pytest.mark.parametrize(
    "cls", [*get_args(JobEvent), *get_args(MarketEvent)], ids=lambda cls: cls.__name__
)
@given(data=st.data())
@settings(max_examples=5)
def test_event__each_kind__is_a_sentence(cls: type[Body], data: st.DataObject) -> None:
    event = data.draw(any_of(cls))
    is_of_market = cls in get_args(MarketEvent)

    if is_of_market:
        (told,) = told_of_market([(7, event)])
    else:
        (told,) = told_of_job([(7, event)], JOB)

    assert (told.number, told.at) == (7, event.at)
    assert told.kind and told.said.text
    assert told.said.href[0] in "/#" if told.said.href else not is_of_market


def words_of(cls: Any, field: str) -> set[str]:
    return set(get_args(cls.model_fields[field].annotation))


def test_tables_of_words__values_that_the_api_may_say__are_all_there() -> None:
    assert set(telling._RULINGS) == words_of(RuledEvent, "what")
    assert set(telling._NOTICES) == words_of(PeerEvent, "what")
