"""Has every live event that the API emits its words, and does a page listen to it?"""

import json
from typing import Any, get_args

import pytest

from market.api.examples import example_of
from market.bodies.base import Body
from market.bodies.events import (
    AnchoredEvent,
    CoinEvent,
    JobEvent,
    MarketEvent,
    NumberedJobEvent,
    NumberedMarketEvent,
    PeerEvent,
    RuledEvent,
    job_event_schema,
    market_event_schema,
    read_job_event,
    read_market_event,
)
from market.web import telling
from market.web.telling import JOB_EVENTS, MARKET_EVENTS, VERDICTS, told_of_job, told_of_market

JOB = "ab" * 32


def kinds(schema: dict[str, Any]) -> list[str]:
    """What the discriminator of a union of events may be."""
    return sorted(schema["discriminator"]["mapping"])


def test_events_of_a_job__pages_and_api__have_exactly_the_same_kinds() -> None:
    assert sorted(JOB_EVENTS) == kinds(job_event_schema())
    assert set(VERDICTS) <= set(JOB_EVENTS)


def test_events_of_the_market__pages_and_api__have_exactly_the_same_kinds() -> None:
    assert sorted(MARKET_EVENTS) == kinds(market_event_schema())


@pytest.mark.parametrize("cls", get_args(JobEvent), ids=lambda cls: cls.__name__)
def test_event_of_a_job__each_kind__is_a_sentence_that_leads_on(cls: type[Body]) -> None:
    steps = {"steps": [3, 4]} if cls in (AnchoredEvent, CoinEvent) else {}
    event = read_job_event(json.dumps(example_of(cls) | steps).encode())

    (told,) = told_of_job([NumberedJobEvent(7, event)], JOB)

    assert (told.number, told.at) == (7, event.at)
    assert told.kind and told.said.text
    assert told.said.href is None or told.said.href[0] in "/#"


@pytest.mark.parametrize("cls", get_args(MarketEvent), ids=lambda cls: cls.__name__)
def test_event_of_the_market__each_kind__is_a_sentence_that_leads_on(
    cls: type[Body],
) -> None:
    event = read_market_event(json.dumps(example_of(cls)).encode())

    (told,) = told_of_market([NumberedMarketEvent(1, event)])

    assert told.kind and told.said.text and told.said.href is not None


def words_of(cls: Any, field: str) -> set[str]:
    return set(get_args(cls.model_fields[field].annotation))


def test_tables_of_words__values_that_the_api_may_say__are_all_there() -> None:
    assert set(telling._RULINGS) == words_of(RuledEvent, "what")
    assert set(telling._NOTICES) == words_of(PeerEvent, "what")
