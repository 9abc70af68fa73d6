"""Log lines."""

import io
import json
import os
import time

import pytest

from training.telling import (
    JsonLines,
    Rarely,
    Span,
    telling_about,
)


def test_json_lines__event_with_bytes__one_line_of_json_in_hex() -> None:
    stream = io.StringIO()

    JsonLines(stream, process="worker")("seal_stored", step=3, seal=b"\x01\xff")

    line = json.loads(stream.getvalue())
    assert (line.pop("at") > 0, line.pop("mono") > 0, line.pop("pid")) == (True, True, os.getpid())
    assert line == {"process": "worker", "event": "seal_stored", "step": 3, "seal": "01ff"}


def test_telling_about__fields_of_the_event__win() -> None:
    told: list[dict[str, object]] = []

    tell = telling_about(lambda event, **fields: told.append({"event": event} | fields), job=b"j")
    tell("peer_lost", peer=b"p")
    tell("unit_done", job=b"k")

    assert told == [
        {"event": "peer_lost", "job": b"j", "peer": b"p"},
        {"event": "unit_done", "job": b"k"},
    ]


def test_span__waits_then_works__both_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([1_000, 501_000, 2_501_000, 2_601_000])
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(moments))

    span = Span()
    span.begin()

    assert span.take_timings() == {"took_us": 2000, "waited_us": 500}
    assert span.take_timings() == {"took_us": 100, "waited_us": 0}


def test_rarely__fault_that_lasts__is_told_once_a_minute_with_how_often_it_came() -> None:
    told: list[dict[str, object]] = []
    now = [0.0]
    tell = Rarely(lambda event, **fields: told.append(fields), clock=lambda: now[0])

    for now[0] in (0.0, 0.2, 59.0, 60.0, 61.0):
        tell("waits", code="unavailable", step=int(now[0]))

    assert told == [
        {"code": "unavailable", "step": 0},
        {"code": "unavailable", "step": 60, "times": 3},
    ]


def test_rarely__another_peer__is_another_fault() -> None:
    told: list[object] = []
    tell = Rarely(lambda event, **fields: told.append(fields["peer"]), clock=lambda: 0.0)

    for peer in (b"a", b"b", b"a"):
        tell("not_fetched", peer=peer)

    assert told == [b"a", b"b"]
