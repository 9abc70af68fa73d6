"""Log lines and failpoints."""

import io
import json
import os
import signal
import time
from pathlib import Path

import pytest

from contracts.terms.errors import WrongConfiguration
from training.telling import (
    Failing,
    Failpoint,
    FailpointFile,
    JsonLines,
    Rarely,
    Span,
    parse_failpoints,
    tell_nobody,
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


def test_parse_failpoints__two_of_them__both_are_read() -> None:
    found = parse_failpoints("kill:seal_stored:3, stop:opened:0")

    assert found == (Failpoint("kill", "seal_stored", 3), Failpoint("stop", "opened", 0))
    assert parse_failpoints("") == ()


@pytest.mark.parametrize("text", ["kill", "kill:x", "kill:x:y", "die:x:1", "kill::1", "kill:x:-1"])
def test_parse_failpoints__something_else__is_refused(text: str) -> None:
    with pytest.raises(WrongConfiguration):
        parse_failpoints(text)


def test_failing__its_event_and_step__strikes_once_in_the_life_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: struck.append((pid, number)))
    points = parse_failpoints("kill:seal_stored:3")

    for _ in range(2):  # the second one as after a restart
        tell = Failing(tell_nobody, points, tmp_path)
        tell("seal_stored", step=2)
        tell("seal_stored", step=3)
        tell("seal_stored", step=3)

    assert struck == [(os.getpid(), signal.SIGKILL)]


def test_failpoint_file__two_processes_of_a_folder__each_is_struck_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _pid, number: struck.append(number))
    for name in ("failpoints-trainer-0", "failpoints-trainer-1"):
        (tmp_path / name).write_text("kill:seal_stored:3")

        for _ in range(2):
            FailpointFile(tell_nobody, tmp_path / name)("seal_stored", step=3)

    assert struck == [signal.SIGKILL] * 2


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
